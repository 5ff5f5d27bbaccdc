from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from prunus.errors import BadInput
from prunus.layers import prunable_weights
from prunus.training import Callback, FitConfig, Ramp, Run, TicketOptions
from prunus.training.popup import Popup, mask_of, number_pruned, redraw_of
from support.training import digits, fc


def popup_over(model: nn.Module, sparsity: float = 0.5, seed: int = 0, **rest) -> Popup:
    weights = prunable_weights(model)
    options = rest.pop("options", TicketOptions())
    return Popup(weights, dict.fromkeys(weights, sparsity), seed, options, **rest)


@pytest.mark.parametrize(("total", "sparsity", "iterand", "hidden"), [
    (10, 0.5, 4, 5), (11, 0.5, 5, 5), (100, 0.5, 50, 50), (576, 0.6, 345, 345), (1000, 0.95, 949, 950),
])  # fmt: skip
def test_numbers_pruned_are_the_ledgers(total: int, sparsity: float, iterand: int, hidden: int) -> None:
    scores = torch.randn(total, generator=torch.Generator().manual_seed(total))
    assert int((~mask_of(scores, sparsity, counting="iterand")).sum()) == iterand
    assert int((~mask_of(scores, sparsity, counting="hidden-networks")).sum()) == hidden
    assert (
        int((~mask_of(scores, sparsity)).sum()) == number_pruned(total, sparsity) == math.floor(sparsity * total + 0.5)
    )


def test_ties_go_by_position_and_the_authors_counting_keeps_them() -> None:
    equal = torch.zeros(10)
    assert mask_of(equal, 0.3).tolist() == [False] * 3 + [True] * 7
    assert mask_of(equal, 0.3, counting="iterand").all()


def test_ranking_by_value_and_by_magnitude() -> None:
    scores = torch.tensor([-5.0, 1.0, 2.0, -3.0])
    assert mask_of(scores, 0.5, "signed").tolist() == [False, True, True, False]
    assert mask_of(scores, 0.5, "absolute").tolist() == [True, False, False, True]


@pytest.mark.parametrize("ranking", ["signed", "absolute"])
def test_the_straight_through_gradient_of_the_ledger(ranking: str) -> None:
    """I-2: w = (1, -2, 3, -4), s = (.1, .4, .2, .3), p = .5 and dL/d(w m) = 1 give the gradient w, pruned ones too."""
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))
    popup = popup_over(model, options=TicketOptions(ranking=ranking))
    signs = torch.tensor([[1.0, 1.0, -1.0, -1.0]]) if ranking == "absolute" else torch.ones(1, 4)
    with torch.no_grad():
        popup.scores["weight"].copy_(torch.tensor([[0.1, 0.4, 0.2, 0.3]]) * signs)
    popup.refresh()
    assert popup.masks["weight"].tolist() == [[False, True, False, True]]
    assert torch.equal(model.weight.detach(), torch.tensor([[0.0, -2.0, 0.0, -4.0]]))
    assert (model.weight.detach().view(torch.int32)[~popup.masks["weight"]] == 0).all()  # +0.0
    model(torch.ones(1, 4)).sum().backward()
    popup.after_backward(None)
    assert torch.equal(popup.scores["weight"].grad, torch.tensor([[1.0, -2.0, 3.0, -4.0]]) * signs)
    assert model.weight.grad is None


def test_gradients_are_those_of_an_autograd_straight_through() -> None:
    """Against a slow oracle: a custom autograd function, through a whole network."""

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores):
            return mask_of(scores, 0.5).float()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    model = fc("64-16-16-10", init="kaiming_uniform")
    popup = popup_over(model)
    popup.refresh()
    inputs, labels = digits(32)[0].dataset.batch(slice(0, 32))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    popup.after_backward(None)
    scores = {name: popup.scores[name].detach().clone().requires_grad_() for name in popup.scores}
    biases = {name: value for name, value in model.named_parameters() if name not in scores}
    effective = {name: popup.frozen[name] * Through.apply(scores[name]) for name in scores}
    outputs = torch.func.functional_call(model, {**effective, **biases}, (inputs,))
    nn.functional.cross_entropy(outputs, labels).backward()
    for name in scores:
        assert torch.allclose(scores[name].grad, popup.scores[name].grad, rtol=1e-5, atol=1e-8)


def test_score_and_weight_constants() -> None:
    """I-3: bounds at fan 576 and 9."""
    for fan, constant, bound in ((576, 0.05892556510, 0.10206207262), (9, 0.47140452079, 0.81649658093)):
        channels = fan // 9
        conv = nn.Conv2d(channels, 64, 3)
        from prunus.models import initialise

        initialise(conv, "signed_constant", seed=0)
        assert conv.weight.abs().unique().tolist() == pytest.approx([constant], rel=1e-7)
        initialise(conv, "kaiming_uniform", seed=0)
        assert float(conv.weight.detach().abs().max()) <= bound
        popup = popup_over(conv)
        largest = float(popup.scores["weight"].detach().abs().max())
        assert 0.9 * bound < largest <= bound
        narrow = popup_over(conv, options=TicketOptions(score_init="narrow"))
        assert float(narrow.scores["weight"].detach().abs().max()) <= 1 / math.sqrt(fan)


@pytest.mark.parametrize("init", ["signed_constant", "kaiming_uniform", None])
def test_an_event_touches_only_a_part_of_the_pruned_weights(init: str | None) -> None:
    """I-4: kept weights bitwise unchanged, fraction redrawn near the rate, scores and sparsity untouched.

    False-alarm rate below 1e-6: five standard deviations of a binomial.
    """
    model = fc("64-300-100-10", init=init)
    popup = popup_over(model, 0.5, period=5, rate=0.2)
    popup.refresh()
    before = {name: value.clone() for name, value in popup.frozen.items()}
    scores = {name: value.detach().clone() for name, value in popup.scores.items()}
    effective = {name: value.detach().clone() for name, value in model.named_parameters()}
    popup.rerandomise(4)
    popup.refresh()
    changed = pruned = 0
    for name, mask in popup.masks.items():
        assert torch.equal(before[name][mask], popup.frozen[name][mask])
        assert torch.equal(scores[name], popup.scores[name])
        assert torch.equal(effective[name], model.get_parameter(name))
        assert int((~mask).sum()) == number_pruned(mask.numel(), 0.5)
        changed += int((before[name] != popup.frozen[name]).sum())
        pruned += int((~mask).sum())
    rate = 0.1 if init == "signed_constant" else 0.2  # a signed constant flips with probability one half
    assert abs(changed - rate * pruned) < 5 * math.sqrt(pruned * rate * (1 - rate)) + 0.01 * pruned * (init is None)
    if init == "signed_constant":
        assert all(value.abs().unique().numel() == 1 for value in popup.frozen.values())


def test_new_values_have_the_old_distribution() -> None:
    conv, linear = nn.Conv2d(8, 16, 3), nn.Linear(300, 100)
    from prunus.models import initialise

    for kind in ("signed_constant", "kaiming_uniform"):
        assert redraw_of(initialise(conv, kind, seed=1).weight.detach(), 72) == kind
    assert redraw_of(nn.Linear(300, 100).weight.detach(), 300) == "initial"  # torch's own U(+-1/sqrt(fan_in))
    popup = popup_over(linear, period=1, rate=1.0)
    popup.refresh()
    pool = set(popup.frozen["weight"].reshape(-1).tolist())
    popup.rerandomise(0)
    assert set(popup.frozen["weight"].reshape(-1).tolist()) <= pool


def test_momenta_are_untouched_by_an_event() -> None:
    model = fc("64-16-10", init="kaiming_uniform")
    popup = popup_over(model, period=4, rate=1.0)
    momenta: list[dict[str, torch.Tensor]] = []

    class Watch(Callback):
        def __init__(self, at: str) -> None:
            self.at = at

        def before_step(self, run) -> None:
            if run.step == 3:
                momenta.append(
                    {str(i): v["momentum_buffer"].clone() for i, v in enumerate(run.optimizer.state.values())}
                )

    run = Run(
        model, digits(256)[0], "4it", FitConfig(lr=0.3),
        parameters=list(popup.scores.values()), callbacks=[Watch("before"), popup, Watch("after")],
    )  # fmt: skip
    run.train()
    assert popup.events == 1
    assert all(torch.equal(momenta[0][key], momenta[1][key]) for key in momenta[0])
    assert all(float(value.abs().sum()) > 0 for value in momenta[0].values())


def test_sparsity_follows_its_ramp_exactly() -> None:
    seen: list[float] = []

    class Watch(Callback):
        def after_step(self, run) -> None:
            seen.append(popup.sparsity)

    model = fc("64-16-10", init="signed_constant")
    ramp = Ramp("linear", end="8it")
    popup = popup_over(model, 0.8, options=TicketOptions(ramp=ramp))
    Run(
        model, digits(256)[0], "10it", FitConfig(lr=0.3),
        parameters=list(popup.scores.values()), callbacks=[popup, Watch()],
    ).train()  # fmt: skip
    expected = [min(1.0, step / 8) * 0.8 for step in range(1, 11)]
    assert seen == pytest.approx(expected, abs=1 / 160)


def test_a_global_threshold_prunes_the_exact_number_over_all_layers() -> None:
    model = fc("64-30-20-10")
    popup = popup_over(model, 0.7, options=TicketOptions(allocation="global"))
    popup.refresh()
    total = sum(mask.numel() for mask in popup.masks.values())
    assert sum(int((~mask).sum()) for mask in popup.masks.values()) == number_pruned(total, 0.7)
    assert len({round(float(mask.float().mean()), 3) for mask in popup.masks.values()}) > 1
    kept = torch.cat([popup.scores[n].detach()[m] for n, m in popup.masks.items()])
    lost = torch.cat([popup.scores[n].detach()[~m] for n, m in popup.masks.items()])
    assert kept.min() >= lost.max()


def test_bad_options() -> None:
    with pytest.raises(BadInput, match="prune all 160"):
        popup_over(nn.Linear(16, 10), 0.999)
    for wrong in ({"ranking": "upward"}, {"counting": "roughly"}, {"redraw": "cauchy"}, {"allocation": "lamp"}):
        with pytest.raises(BadInput):
            TicketOptions(**wrong)
    with pytest.raises(BadInput, match="layer by layer"):
        TicketOptions(allocation="global", counting="iterand")


def test_small_layers_are_not_mistaken_for_kaiming_uniform() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        assert redraw_of(nn.Linear(4, 10).weight.detach(), 4) == "initial"  # half as wide
        bound = math.sqrt(6 / 4)
        assert redraw_of(torch.empty(10, 4).uniform_(-bound, bound), 4) == "kaiming_uniform"
