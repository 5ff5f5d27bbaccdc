from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from prunus.contract import whole
from prunus.errors import BadInput
from prunus.training import Callback, FitConfig, ImpOptions, Run, imp
from support import scale
from support.training import Stop, conv_net, digits, fc, same_bytes

QUICK = FitConfig(lr=0.05, batch_size=32)


def total(level) -> int:
    return sum(row.total for row in level.masks.layers)


@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_masks_nest_and_counts_are_exact(allocation: str) -> None:
    train, test = digits(200)
    model = conv_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = ImpOptions(allocation=allocation)
    levels = imp(model, train, rounds=4, fraction=0.3, length="1ep", test=test, config=QUICK, options=options)
    assert same_bytes(before, model.state_dict())
    assert levels[0].density == 1.0
    for one, two in itertools.pairwise(levels):
        assert all(bool((one.masks[name] | ~two.masks[name]).all()) for name in one.masks)
        kept = [(a.kept, b.kept) for a, b in zip(one.masks.layers, two.masks.layers)]
        if allocation == "uniform":
            assert all(b == a - whole(0.3, a) for a, b in kept)
        before_, after = sum(a for a, _ in kept), sum(b for _, b in kept)
        if allocation == "global":
            assert after == before_ - whole(0.3, before_)
        # what went were the smallest of the trained survivors
        if allocation == "global":
            sizes = {n: p.detach().abs() for n, p in one.masks.parameters_of(one.model).items()}
            lost = torch.cat([sizes[n][one.masks[n] & ~two.masks[n]] for n in sizes])
            stay = torch.cat([sizes[n][two.masks[n]] for n in sizes])
            assert lost.max() <= stay.min()
    for level in levels:
        for name, mask in level.masks.items():
            assert not level.model.get_parameter(name).detach()[~mask].any()
        assert level.history[-1].test_accuracy is not None


def test_densities_are_powers_of_four_fifths() -> None:
    """I-6: .8, .64, .512, .4096 ... to within rounding."""
    levels = imp(fc("64-100-10"), digits(64)[0], rounds=9, length="1it", config=QUICK, options=ImpOptions("uniform"))
    for level in levels:
        assert level.density == pytest.approx(0.8**level.index, abs=2e-4)
    assert levels[-1].density == pytest.approx(0.1342, abs=2e-4)


@pytest.mark.parametrize("mean", [0.0, 0.9])
def test_rewinding_restores_the_weights_of_that_step_and_the_schedule_goes_on(mean: float) -> None:
    train, _ = digits(128)
    model = fc()
    started: list[tuple[int, dict, float]] = []

    class Watch(Callback):
        def before_step(self, run) -> None:
            if run.step == 6:
                state = {name: value.clone() for name, value in run.model.state_dict().items()}
                started.append((run.step, state, run.lr))

    imp(model, train, rounds=2, rewind="6it", length="12it", config=QUICK.replace(callbacks=(Watch(),), ema=mean))
    assert len(started) == 3
    dense = fc()
    run = Run(dense, train, "12it", QUICK, stop=6)
    run.train()
    assert run.step == 6
    for _, state, lr in started:
        assert lr == started[0][2]
        for name, value in dense.state_dict().items():
            same = (state[name] == value) | (state[name] == 0)
            assert bool(same.all())
    assert same_bytes(started[0][1], dense.state_dict())


def test_level_zero_with_rewinding_is_plain_training_with_a_fresh_optimizer() -> None:
    train, _ = digits(128)
    plain = fc()
    Run(plain, train, "2ep", QUICK).train()
    levels = imp(fc(), train, rounds=0, length="2ep", config=QUICK)
    assert same_bytes(plain.state_dict(), levels[0].model.state_dict())


def test_levels_resume_one_by_one(tmp_path: Path) -> None:
    train, _ = digits(200)
    options = ImpOptions(controls=("shuffle-layers", "reinitialise"))
    whole_run = imp(conv_net(), train, 3, 0.4, "3it", "2ep", config=QUICK, options=options)
    steps: list[int] = []

    class StopAfter(Callback):
        def __init__(self, budget: int) -> None:
            self.budget = budget

        def before_step(self, run) -> None:
            steps.append(run.step)
            self.budget -= 1
            if self.budget < 0:
                raise Stop

    kept = QUICK.replace(folder=tmp_path, resume=True, every="2it")
    for _ in range(3):
        with pytest.raises(Stop):
            imp(
                conv_net(),
                train,
                3,
                0.4,
                "3it",
                "2ep",
                config=kept.replace(callbacks=(StopAfter(21),)),
                options=options,
            )
    made = len(steps)
    again = imp(conv_net(), train, 3, 0.4, "3it", "2ep", config=kept, options=options)
    assert made < 100
    for one, two in zip(whole_run, again):
        assert one.masks == two.masks
        assert same_bytes(one.model.state_dict(), two.model.state_dict())
        assert [h[-1].loss for h in one.controls.values()] == [h[-1].loss for h in two.controls.values()]
    with pytest.raises(BadInput, match="cannot be resumed"):
        imp(conv_net(), train, 3, 0.5, "3it", "2ep", config=kept, options=options)


def test_controls_have_the_same_density(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = digits(200)
    seen: list[tuple[float, list[int]]] = []

    class Watch(Callback):
        def start(self, run) -> None:
            if run.masks is not None:
                seen.append((run.masks.sparsity, [row.kept for row in run.masks.layers]))

    controls = ("shuffle-layers", "shuffle-global", "reinitialise")
    config = QUICK.replace(callbacks=(Watch(),))
    levels = imp(fc(), train, 1, 0.5, length="1ep", test=test, config=config, options=ImpOptions(controls=controls))
    assert set(levels[1].controls) == set(controls)
    assert not levels[0].controls
    assert len({round(sparsity, 9) for sparsity, _ in seen[1:]}) == 1
    assert seen[2][1] == seen[1][1]  # shuffled in layers
    assert seen[3][1] != seen[1][1]  # shuffled over all
    assert "shuffle-global" in levels[1].to_dict()


@pytest.mark.prove
@pytest.mark.parametrize("fraction", ["certified", "statistical"])
def test_a_plan_chooses_what_each_round_removes(fraction: str) -> None:
    """Every round stays within the error, certified again from the outside (the use named in the closeness paper)."""
    import prunus

    train, test = digits()
    domain = prunus.Ball(1.0) if fraction == "certified" else None
    options = ImpOptions(domain=domain, error=4.0, exclude=("layers.2",))
    rounds = scale(1, full=2) if fraction == "certified" else 2
    levels = imp(fc("64-16-16-10"), train, rounds, fraction, "2ep", "4ep", test, config=QUICK, options=options)
    assert 0.0 < levels[1].masks.sparsity <= levels[rounds].masks.sparsity
    assert set(levels[rounds].masks) == {"layers.0.weight", "layers.1.weight"}
    for one, two in itertools.pairwise(levels):
        assert all(bool((one.masks[name] | ~two.masks[name]).all()) for name in one.masks)
        if fraction == "certified":
            assert prunus.certify(one.model.eval(), two.masks, domain, attack=False).bound <= 4.0 * (1 + 1e-6)


def test_bad_input() -> None:
    train, _ = digits(64)
    for wrong in ({"rounds": -1}, {"fraction": 0.0}, {"fraction": 1.0}, {"fraction": "bold"}, {"rewind": "1ep"}):
        with pytest.raises(BadInput):
            imp(fc(), train, **{"rounds": 1, "length": "1ep", **wrong})
    with pytest.raises(BadInput, match="ImpOptions"):
        imp(fc(), train, 1, "certified")
    with pytest.raises(BadInput, match="no weight"):
        imp(fc("64-2-10"), train, 3, 0.95, length="1it", options=ImpOptions(allocation="uniform"))
    with pytest.raises(BadInput):
        ImpOptions(controls=("coin",))


def test_a_resumed_call_rewinds_to_the_stored_weights(tmp_path: Path) -> None:
    train, _ = digits(200)
    whole_run = imp(fc(seed=0), train, 2, length="1ep")
    imp(fc(seed=0), train, 1, length="1ep", config=FitConfig(folder=tmp_path))
    again = imp(fc(seed=7), train, 2, length="1ep", config=FitConfig(folder=tmp_path, resume=True))
    for one, two in zip(whole_run, again):
        assert one.masks == two.masks
        assert same_bytes(one.model.state_dict(), two.model.state_dict())
    with pytest.raises(BadInput, match=r"fraction=0\.2 and cannot be resumed with fraction=0\.3"):
        imp(fc(seed=0), train, 2, 0.3, length="1ep", config=FitConfig(folder=tmp_path, resume=True))
