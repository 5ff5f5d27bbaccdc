from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.papers.runs import standardised
from prunus.pruning import find_masks, patterns
from prunus.training import Callback, FitConfig, GradualOptions, Ramp, Regrowth, accuracy, fit, prune_gradually
from prunus.training.gradual import Growing, at_level
from prunus.training.ramps import EXPONENTS
from support.training import ConvNet, Stop, StopAt, conv_net, digits, fc, same_bytes


class Watch(Callback):
    """Keeps the masks after every change."""

    def __init__(self) -> None:
        self.seen: list[Masks] = []

    def after_step(self, run) -> None:
        if run.masks is not None and (not self.seen or self.seen[-1] != run.masks):
            self.seen.append(run.masks)


def wide_conv_net() -> ConvNet:
    return conv_net(channels=8)


PATTERNS = ["unstructured", "balanced:8", "2:4", "kernels", "channels", "blocks:2x4"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_nest_and_end_at_the_pattern(pattern: str) -> None:
    train, _ = digits(256)
    model, watch = wide_conv_net(), Watch()
    sparsity = 0.5 if pattern == "2:4" else 0.6
    ramp = Ramp("cubic", every="2it", end="12it")
    masks = prune_gradually(model, train, sparsity, pattern, ramp, "16it", config=FitConfig(callbacks=(watch,)))
    assert len(watch.seen) >= 3
    for before, after in zip(watch.seen, watch.seen[1:]):
        assert all(bool((before[name] | ~after[name]).all()) for name in after)
        assert after.sparsity >= before.sparsity
    expected = find_masks(model, sparsity, pattern=pattern)  # what is gone is smallest, so the same counts come out
    assert [row.kept for row in masks.layers] == [row.kept for row in expected.layers]
    assert masks == expected
    for name, mask in masks.items():
        assert (model.get_parameter(name).detach()[~mask].view(torch.int32) == 0).all()


@pytest.mark.parametrize("shape", ["linear", "cubic"])
def test_sparsity_follows_the_formula(shape: str) -> None:
    ramp = Ramp(shape, start=0.2, begin="10it", end="50it", every="4it")
    for step in range(80):
        held = min(50, max(10, 10 + (step - 10) // 4 * 4)) if step < 50 else 50
        expected = 0.9 + (0.2 - 0.9) * (1 - (held - 10) / 40) ** EXPONENTS[shape]
        assert ramp.at(0.9, step, 80, 7) == pytest.approx(expected)


def test_a_ramp_that_ends_with_the_run_still_arrives() -> None:
    train, _ = digits(128)
    masks = prune_gradually(fc(), train, 0.8, schedule=Ramp("linear", end="6it", every="1it"), length="6it")
    assert masks.sparsity == pytest.approx(0.8, abs=1e-3)


def test_n_of_m_narrows_step_by_step() -> None:
    pattern = patterns.NM(2, 8)
    kept = [at_level(pattern, level)[0].n for level in (0.0, 0.1, 0.3, 0.5, 0.74, 0.75)]
    assert kept == [8, 8, 6, 4, 3, 2]
    assert at_level(pattern, 0.8, beyond=True)[0].n == 1


@pytest.mark.parametrize("rule", ["set", "rigl"])
@pytest.mark.parametrize("pattern", ["unstructured", "balanced:8", "2:4"])
def test_regrowth_keeps_the_count_and_moves_weights(rule: str, pattern: str) -> None:
    train, _ = digits(256)
    model, watch = wide_conv_net(), Watch()
    options = GradualOptions(regrow=Regrowth(rule, 0.4, every="3it", end="14it"))
    sparsity = 0.5
    config = FitConfig(callbacks=(watch,))
    masks = prune_gradually(model, train, sparsity, pattern, "constant", "16it", config=config, options=options)
    counts = [[row.kept for row in one.layers] for one in watch.seen]
    assert len(watch.seen) == 5
    assert all(count == counts[0] for count in counts)
    moved = sum(int((watch.seen[0][name] != masks[name]).sum()) for name in masks)
    assert moved > 0


def test_rigl_grows_where_the_gradient_is_largest() -> None:
    """One update against an oracle: autograd of the loss of that batch with the smallest weights given up."""
    train, _ = digits(64)
    model = fc("64-16-10")
    options = GradualOptions(regrow=Regrowth("rigl", 0.5, every="1it", end="3it"))
    seen: list[tuple[dict, Masks]] = []

    class Spy(Growing):
        def update(self, run, step) -> None:
            before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
            old = self.masks
            super().update(run, step)
            if step == 1:
                seen.append((before, old))
                seen.append(({}, self.masks))

    from prunus.training import Run

    spy = Spy(0.6, patterns.parse("unstructured"), Ramp("constant"), options)
    run = Run(model, train, "2it", FitConfig(batch_size=64), callbacks=[spy])
    run.train()
    (state, old), (_, new) = seen
    other = fc("64-16-10")
    other.load_state_dict(state)
    inputs, labels, _ = next(run.batches.from_step(1))
    nn.functional.cross_entropy(other(inputs), labels).backward()
    part = options.regrow.part(1, run.total, 1)
    for name, mask in new.items():
        weight = state[name]
        gone = weight.numel() - round((1 - (0.6 + 0.4 * part)) * weight.numel())
        kept = torch.zeros(weight.numel(), dtype=torch.bool)
        order = weight.abs().masked_fill(~old[name], -1).reshape(-1).argsort(stable=True)
        kept[order[gone:]] = True
        assert bool(mask.reshape(-1)[kept].all())
        gradient = other.get_parameter(name).grad.abs().reshape(-1).masked_fill(kept, -1)
        grown = int(mask.sum()) - int(kept.sum())
        expected = set(gradient.topk(grown).indices.tolist())
        assert expected == set((mask.reshape(-1) & ~kept).nonzero().flatten().tolist())


@pytest.mark.parametrize("regrow", [None, Regrowth("set", 0.3, "3it"), Regrowth("rigl", 0.3, "3it")])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path, regrow: Regrowth | None) -> None:
    train, _ = digits(256)
    options, ramp = GradualOptions(regrow=regrow), Ramp("linear", every="2it")
    whole = conv_net()
    expected = prune_gradually(whole, train, 0.7, "balanced:4", ramp, "5ep", options=options)
    kept = FitConfig(folder=tmp_path, resume=True, every="3it")
    for stop in (4, 10, 17):
        with pytest.raises(Stop):
            stopped = kept.replace(callbacks=(StopAt(stop),))
            prune_gradually(conv_net(), train, 0.7, "balanced:4", ramp, "5ep", config=stopped, options=options)
    again = conv_net(seed=3)
    masks = prune_gradually(again, train, 0.7, "balanced:4", ramp, "5ep", config=kept, options=options)
    assert masks == expected
    assert same_bytes(whole.state_dict(), again.state_dict())


def test_gradual_pruning_keeps_accuracy_where_pruning_at_once_does_not() -> None:
    train, test = standardised(*digits())
    model, dense = fc("64-100-10"), fc("64-100-10")
    masks = prune_gradually(model, train, 0.9, "balanced:8", length="30ep", test=test)
    history = masks.notes["history"]
    fit(dense, train, "30ep")
    find_masks(dense, 0.9, pattern="balanced:8").apply_(dense)
    assert history[-1]["test_accuracy"] > accuracy(dense, test) + 0.1
    assert history[-1]["test_accuracy"] > 0.9
    assert history[-1]["sparsity"] == pytest.approx(0.9, abs=0.02)
    assert history[0]["sparsity"] < 0.3


def test_bad_input() -> None:
    train, _ = digits(64)
    with pytest.raises(BadInput, match=r"has the sparsity 0\.5"):
        prune_gradually(fc(), train, 0.6, "2:4")
    with pytest.raises(BadInput, match="inside it"):
        prune_gradually(fc(), train, 0.6, schedule=Ramp("linear", end="9ep"), length="2ep")
    for wrong in ({"schedule": "quartic"}, {"pattern": "stripes"}, {"sparsity": 1.2}):
        with pytest.raises(BadInput):
            prune_gradually(fc(), train, **{"sparsity": 0.5, **wrong})
    for wrong in ({"rule": "magic"}, {"fraction": 1.0}, {"every": "never"}):
        with pytest.raises(BadInput):
            Regrowth(**wrong)


def test_what_could_only_fail_later_is_refused_before_the_first_step() -> None:
    train, _ = digits(100)
    model = fc()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=r"no weight in layers\.0\.weight"):
        prune_gradually(model, train, 0.9999, length="3ep")
    for allocation in ("global", "erk"):
        with pytest.raises(BadInput, match="allocation='uniform'"):
            prune_gradually(model, train, 0.5, "2:4", options=GradualOptions(allocation=allocation))
    with pytest.raises(BadInput, match="none to exchange"):
        prune_gradually(model, train, 0.75, "1:4", "constant", options=GradualOptions(regrow=Regrowth("rigl")))
    assert same_bytes(before, model.state_dict())
