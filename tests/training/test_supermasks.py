from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from prunus.errors import BadFile, BadInput, RunFailed
from prunus.layers import prunable_weights
from prunus.storage import read_tensors, write_tensors
from prunus.training import Callback, FitConfig, Ramp, Ticket, TicketOptions, find_ticket
from prunus.training.popup import Popup, number_pruned
from prunus.training.supermasks import GemMiner, Multicoated, searcher
from support.training import Stop, StopAt, conv_net, digits, fc, same_bytes

QUICK = FitConfig(lr=0.3, seed=2)
BATCH = digits(32)[0].dataset.batch(slice(0, 32))


class Through(torch.autograd.Function):
    """A step of the scores whose gradient is taken to be one."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Tensor:
        return mask.to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def slow(model: nn.Module, frozen: dict[str, Tensor], factors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Outputs and loss of the network whose weights are `frozen` times `factors`, by autograd."""
    rest = {name: value for name, value in model.named_parameters() if name not in frozen}
    effective = {name: frozen[name] * factors[name] for name in frozen}
    outputs = torch.func.functional_call(model, {**effective, **rest}, (BATCH[0],))
    return outputs, nn.functional.cross_entropy(outputs, BATCH[1])


def made(method: str, model: nn.Module, sparsity: float = 0.5, period: int = 2, **options: Any) -> Popup:
    weights = prunable_weights(model)
    return searcher(method, weights, dict.fromkeys(weights, sparsity), 0, TicketOptions(**options), period, 0.1)


# ------------------------------------------------------------------------------------------------------------ Gem-Miner


def test_gem_miner_rounds_and_its_gradient_is_the_straight_through_one() -> None:
    """Against autograd: w * round(p) * alive, with l1 * sum(p) beside the loss; frozen scores get none."""
    model = fc("64-16-16-10", init="kaiming_uniform")
    gem = made("gem-miner", model, 0.8, l1=0.01)
    assert isinstance(gem, GemMiner)
    assert all(0 <= float(s.detach().min()) < 0.02 < 0.98 < float(s.detach().max()) <= 1 for s in gem.scores.values())
    gem.refresh(2, 7)  # the first of three freezes
    scores = {name: value.detach().clone().requires_grad_() for name, value in gem.scores.items()}
    factors = {n: Through.apply(s, torch.round(s.detach())) * gem.alive[n] for n, s in scores.items()}
    outputs, loss = slow(model, gem.frozen, factors)
    (loss + 0.01 * sum((s * gem.alive[n]).sum() for n, s in scores.items())).backward()
    assert torch.equal(model(BATCH[0]), outputs)
    nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]).backward()
    gem.after_backward(None)
    for name, value in scores.items():
        assert torch.allclose(value.grad, gem.scores[name].grad, rtol=1e-5, atol=1e-8)
        assert not gem.scores[name].grad[~gem.alive[name]].any()
        assert int((~gem.alive[name]).sum()) == number_pruned(value.numel(), 1 - 0.2 ** (1 / 3))


def test_gem_miner_freezes_the_smallest_for_good_by_its_schedule() -> None:
    """Against a slow reference that sorts: after e of E freezes the share (1 - p)^(e / E) is alive."""
    seen: list[dict[str, Tensor]] = []

    class Watch(Callback):
        def before_step(self, run: Any) -> None:
            (gem,) = (hook for hook in run.hooks if isinstance(hook, GemMiner))
            seen.append({name: value.clone() for name, value in gem.alive.items()})
            for name, scores in gem.scores.items():
                assert 0 <= float(scores.detach().min()) <= float(scores.detach().max()) <= 1
                assert not scores[~gem.alive[name]].any()
                living = scores[gem.alive[name]]
                total, event = scores.numel(), min(run.step // 3, 3)
                assert len(living) == total - number_pruned(total, 1 - 0.2 ** (event / 3) if event < 3 else 0.8)

    ticket = find_ticket(fc(), digits(128)[0], "gem-miner", 0.8, 3, length="6ep", config=QUICK.replace(
        callbacks=(Watch(),)))  # fmt: skip
    assert ticket.record["events"] == 3, "of 12 steps: after the third, sixth and ninth"
    for before, after in itertools.pairwise(seen):
        assert all(bool((before[name] | ~after[name]).all()) for name in before), "what is frozen stays so"
    assert same_bytes(dict(ticket.masks), seen[-1])


def test_one_freeze_takes_the_smallest_living_scores() -> None:
    gem = made("gem-miner", nn.Linear(4, 2, bias=False), 0.5)
    gem.alive["weight"][0, 0] = False
    with torch.no_grad():
        gem.scores["weight"].copy_(torch.tensor([[0.9, 0.0, 0.6, 2.0], [0.0, 0.4, -1.0, 0.5]]))
    gem.refresh(2, 4)
    expected = torch.tensor([[False, False, True, True], [False, True, False, True]])
    assert torch.equal(gem.alive["weight"], expected), "the dead one first, then zeros by position"
    assert torch.equal(gem.masks["weight"], expected & (gem.scores["weight"] >= 0.5))
    assert torch.equal(gem.scores["weight"].detach(), torch.tensor([[0.0, 0.0, 0.6, 1.0], [0.0, 0.4, 0.0, 0.5]]))
    gem.refresh(2, 4)
    assert torch.equal(gem.alive["weight"], expected), "the same freeze again changes nothing"


def test_what_rounding_left_out_comes_back_unless_it_shall_not() -> None:
    train, test = digits(400)
    run = {"sparsity": 0.4, "period": 3, "length": "2ep", "config": QUICK}
    exact = find_ticket(fc(), train, "gem-miner", test=test, **run)
    loose = find_ticket(fc(), train, "gem-miner", test=test, options=TicketOptions(restore=False), **run)
    restored = sum(int((exact.masks[name] & ~loose.masks[name]).sum()) for name in exact.masks)
    assert exact.record["restored"] == restored > 0
    assert loose.record["restored"] == 0
    for name, mask in exact.masks.items():
        assert int((~mask).sum()) == number_pruned(mask.numel(), 0.4)
        assert bool((mask | ~loose.masks[name]).all())
    assert exact.history[-1].sparsity == exact.masks.sparsity < loose.masks.sparsity == loose.history[-1].sparsity


def test_gem_miner_over_all_layers() -> None:
    options = TicketOptions(allocation="global")
    ticket = find_ticket(fc(), digits(128)[0], "gem-miner", 0.7, 3, length="4ep", config=QUICK, options=options)
    total = sum(mask.numel() for mask in ticket.masks.values())
    assert sum(int((~mask).sum()) for mask in ticket.masks.values()) == number_pruned(total, 0.7)


def test_scores_that_all_fall_below_one_half_stop_the_run_only_where_nothing_comes_back() -> None:
    train = digits(64)[0]
    run = {"period": 1, "length": "3it", "config": FitConfig(lr=1.0, momentum=0.0)}
    with pytest.raises(RunFailed, match=r"No weight of layers\.0\.weight is left at step 3: .* restore=True"):
        find_ticket(fc(), train, "gem-miner", options=TicketOptions(l1=10.0, restore=False), **run)
    assert find_ticket(fc(), train, "gem-miner", options=TicketOptions(l1=10.0), **run).masks.sparsity == 0.5


# ---------------------------------------------------------------------------------------------------------- multicoated


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("ranking", ["signed", "absolute"])
@pytest.mark.parametrize("coating", ["uniform", "linear"])
def test_coats_add_up_and_every_one_passes_the_gradient_on(coating: str, ranking: str, allocation: str) -> None:
    """Against autograd and a sort: the sum of the coats, each straight through, times the frozen weight."""
    model = fc("64-16-16-10", init="kaiming_uniform")
    options = {"coats": 4, "coating": coating, "ranking": ranking, "allocation": allocation}
    popup = made("multicoated", model, 0.6, **options)
    assert isinstance(popup, Multicoated)
    popup.refresh()
    scores = {name: value.detach().clone().requires_grad_() for name, value in popup.scores.items()}
    keys = {n: s.abs() if ranking == "absolute" else s for n, s in scores.items()}
    groups = [list(keys)] if allocation == "global" else [[name] for name in keys]
    factors: dict[str, Tensor] = {}
    for names in groups:
        ordered = torch.cat([keys[name].detach().reshape(-1) for name in names]).sort(descending=True).values
        kept = len(ordered) - number_pruned(len(ordered), 0.6)
        low, high = ordered[kept - 1], ordered[0]
        for name in names:
            factors[name] = torch.zeros(())
            for coat in range(4):
                count = len(ordered) - number_pruned(len(ordered), 1 - kept / len(ordered) * (4 - coat) / 4)
                least = ordered[count - 1] if coating == "uniform" else low + coat / 4 * (high - low)
                factors[name] = factors[name] + Through.apply(keys[name], keys[name].detach() >= least)
    outputs, loss = slow(model, popup.frozen, factors)
    loss.backward()
    for name, factor in factors.items():
        assert torch.equal(popup.coats[name].float(), factor.detach())
        assert torch.equal(popup.masks[name], factor > 0)
        assert int(popup.coats[name].max()) == 4 or allocation == "global"
    assert torch.equal(model(BATCH[0]), outputs)
    nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]).backward()
    popup.after_backward(None)
    for name, value in scores.items():
        assert torch.allclose(value.grad, popup.scores[name].grad, rtol=1e-5, atol=1e-8)


def test_a_single_coat_is_edge_popup_to_the_last_bit() -> None:
    train, model = digits(200)[0], conv_net(dropout=0.0)
    plain = find_ticket(model, train, "edge-popup", length="2ep", config=QUICK)
    for coating in ("uniform", "linear"):
        options = TicketOptions(coats=1, coating=coating)
        coated = find_ticket(model, train, "multicoated", length="2ep", config=QUICK, options=options)
        assert same_bytes(plain.model.state_dict(), coated.model.state_dict())
        assert plain.masks == coated.masks


def test_coats_follow_a_ramp_and_weights_are_whole_multiples() -> None:
    train, model = digits(200)[0], fc(init="signed_constant")
    options = TicketOptions(ramp=Ramp("linear", end="2ep"))
    ticket = find_ticket(model, train, "multicoated", 0.8, length="3ep", config=QUICK, options=options)
    for name, count in ticket.coats.items():
        assert torch.equal(ticket.model.get_parameter(name), model.get_parameter(name) * count + 0.0)
        assert int((count == 0).sum()) == number_pruned(count.numel(), 0.8)
        sizes = torch.bincount(count.reshape(-1).int())[1:]
        assert len(sizes) == 3
        assert int(sizes.max()) - int(sizes.min()) <= 1, "uniform: each factor equally often"


# ----------------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("method", ["gem-miner", "multicoated"])
def test_weights_are_never_trained_and_the_same_seed_gives_the_same_bytes(method: str) -> None:
    train, model = digits(200)[0], fc(init="kaiming_uniform")
    before = copy.deepcopy(model.state_dict())
    tickets = [find_ticket(model, train, method, 0.7, 3, length="2ep", seed=seed) for seed in (1, 1, 2)]
    assert same_bytes(before, model.state_dict())
    assert same_bytes(tickets[0].model.state_dict(), tickets[1].model.state_dict())
    assert tickets[0].masks != tickets[2].masks
    for name, mask in tickets[0].masks.items():
        factor = tickets[0].coats.get(name, mask)
        assert torch.equal(tickets[0].model.get_parameter(name), before[name] * factor)
        assert int((~mask).sum()) == number_pruned(mask.numel(), 0.7)


@pytest.mark.parametrize("method", ["gem-miner", "multicoated"])
def test_a_search_resumes_to_the_same_bytes(tmp_path: Path, method: str) -> None:
    train, model = digits(200)[0], conv_net()
    options = {"period": 3, "length": "4ep"}
    whole = find_ticket(model, train, method, config=QUICK, **options)
    kept = QUICK.replace(folder=tmp_path, resume=True, every="2it")
    for stop in (5, 13):
        with pytest.raises(Stop):
            find_ticket(model, train, method, config=kept.replace(callbacks=(StopAt(stop),)), **options)
    for _ in range(2):  # the second finds the run at its end
        again = find_ticket(model, train, method, config=kept, **options)
        assert same_bytes(whole.model.state_dict(), again.model.state_dict())
        assert whole.masks == again.masks
        assert whole.record["events"] == again.record["events"]
        assert whole.record.get("restored") == again.record.get("restored")
    other = TicketOptions(coats=4, restore=False)
    with pytest.raises(BadInput, match=r"restore=True|coats=3"):
        find_ticket(model, train, method, config=kept, options=other, **options)


@pytest.mark.parametrize("method", ["gem-miner", "multicoated"])
def test_files_round_trip_with_and_without_weights(tmp_path: Path, method: str) -> None:
    drawn = TicketOptions(weights="kaiming_uniform", coats=5)
    train = digits(200)[0]
    ticket = find_ticket(fc("64-300-10"), train, method, 0.6, 3, length="2ep", config=QUICK, options=drawn)
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    ticket.save(small)
    ticket.save(large, with_weights=True)
    assert small.stat().st_size < large.stat().st_size / 4
    for path in (small, large):
        other = Ticket.load(path, fc("64-300-10", seed=77))
        assert same_bytes(ticket.model.state_dict(), other.model.state_dict())
        assert other.masks == ticket.masks
        assert same_bytes(other.coats, ticket.coats)
        assert other.coats.keys() == (ticket.masks.keys() if method == "multicoated" else set())
        again = tmp_path / "again.safetensors"
        other.save(again)
        assert again.read_bytes() == path.read_bytes()


def test_files_of_before_coats_load_and_torn_coats_are_refused(tmp_path: Path) -> None:
    path, train = tmp_path / "ticket.safetensors", digits(100)[0]
    ticket = find_ticket(fc(), train, "edge-popup", length="1ep", options=TicketOptions(weights="kaiming_uniform"))
    ticket.save(path)
    tensors, record = read_tensors(path, "ticket")
    del record["coats"]
    write_tensors(path, tensors, "ticket", record)
    old = Ticket.load(path, fc(seed=5))
    assert same_bytes(old.model.state_dict(), ticket.model.state_dict())
    assert not old.coats
    find_ticket(fc(), train, "multicoated", length="1ep").save(path)
    tensors, record = read_tensors(path, "ticket")
    for wrong in (4, "many", 2.5):
        write_tensors(path, tensors, "ticket", {**record, "coats": wrong})
        with pytest.raises(BadFile, match="do not fit together"):
            Ticket.load(path, fc())


def test_bad_input() -> None:
    train = TensorDataset(torch.zeros(4, 64), torch.zeros(4, dtype=torch.long))
    for wrong in (
        {"coats": 0},
        {"coats": 256},
        {"coats": 2.0},
        {"coating": "thick"},
        {"l1": -1.0},
        {"l1": float("nan")},
    ):
        with pytest.raises(BadInput) as error:
            TicketOptions(**wrong)
        assert str(error.value).count("\n") == 0
    for sentence, wrong in (
        ("period is 0; it counts steps between two freezes", {"period": 0}),
        ("would freeze nothing: its period is 300 steps and the search has 4;", {}),
        ("has its own ramp", {"options": TicketOptions(ramp=Ramp("cubic"))}),
        ("ranks by value", {"options": TicketOptions(ranking="absolute")}),
    ):
        with pytest.raises(BadInput, match=sentence):
            find_ticket(fc(), train, "gem-miner", **{"length": "4it", **wrong})
