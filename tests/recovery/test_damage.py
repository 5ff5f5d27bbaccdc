"""Damage is what the network's output loses, not what a layer's own output loses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import as_batch
from prunus.errors import BadInput
from prunus.layers import prunable_weights
from prunus.recovery import _damage
from prunus.recovery._progress import LayerProgress


class Branches(nn.Module):
    """Two equal branches; what the second gives counts a hundredth."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.quiet = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.loud(x)) + 0.01 * torch.relu(self.norm(self.quiet(x)))


def test_a_layer_that_hardly_counts_gets_the_zeros() -> None:
    torch.manual_seed(0)
    model, data = Branches().eval(), torch.randn(256, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = prunus.recovery.measure_damage(model, data, "unstructured", samples=256)
    assert found.curves["quiet.weight"][-1] < 0.01 * found.curves["loud.weight"][-1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    levels, _ = found.levels(0.5)
    assert levels["quiet.weight"] > 0.9 > 0.2 > levels["loud.weight"]


def test_layers_with_the_same_inputs_may_be_units_of_their_own() -> None:
    torch.manual_seed(0)
    model, data = Branches().eval(), torch.randn(256, 32)
    with torch.no_grad():
        dense = model(data)
        masks = prunus.reconstruct(model, 0.5, data, samples=256)
        lost = float((model(data) - dense).square().mean() / dense.var())
    assert lost < 0.2
    assert set(masks) == {"loud.weight", "quiet.weight"}


class Wide(nn.Module):
    """One layer beside two, and exits of all that are joined at the end."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined, self.wide = joined, nn.Linear(32, 16)
        self.deep = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        wide, deep = self.wide(x), self.deep(x)
        return torch.cat([wide, deep], 1) if self.joined else wide + deep


@pytest.mark.parametrize("joined", [False, True])
def test_branches_may_meet_behind_the_last_layer(joined: bool) -> None:
    torch.manual_seed(0)
    model, data = Wide(joined).eval(), torch.randn(256, 32)
    found = prunus.recovery.measure_damage(model, data, "unstructured", samples=256, grid=(0.25, 0.5, 0.75))
    assert all(curve[-1] > 0 for curve in found.curves.values())
    with torch.no_grad():
        dense = model(data)
        masks = prunus.reconstruct(model, 0.5, data, "unstructured", "damage", samples=256)
        lost = float((model(data) - dense).square().mean() / dense.var())
    assert masks.sparsity == pytest.approx(0.5, abs=0.01)
    assert lost < 0.1


@pytest.mark.parametrize("place", [1, 2])
def test_the_curve_meets_what_pruning_the_layer_alone_costs(place: int) -> None:
    torch.manual_seed(0)
    model, data = Branches().eval(), torch.randn(128, 32)
    grid = (0.25, 0.5, 0.75)
    found = prunus.recovery.measure_damage(model, data, "unstructured", samples=128, grid=grid)
    with torch.no_grad():
        dense = model(data)
        prunus.reconstruct(model, grid[place], data, pattern="unstructured", exclude=("quiet",), samples=128)
        lost = float((model(data) - dense).square().mean() / dense.var())
    assert 0.5 * lost < found.curves["loud.weight"][place] < 2 * lost


class Steep(nn.Module):
    """What errors of the first layer cost is not in proportion to them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x).pow(5)


def test_the_cost_of_large_errors_is_measured_and_not_taken_from_small_ones() -> None:
    torch.manual_seed(0)
    model, data, grid = Steep().eval(), torch.randn(512, 32), (0.3, 0.6, 0.9)
    found = prunus.recovery.measure_damage(model, data, "unstructured", samples=512, grid=grid).curves["first.weight"]
    with torch.no_grad():
        dense = model(data)
        prunus.reconstruct(model, 0.9, data, pattern="unstructured", samples=512)
        lost = float((model(data) - dense).square().mean() / dense.var())
    assert 0.8 * lost < found[2] < 1.25 * lost


def test_a_network_that_has_zeros_already() -> None:
    """Up to its own sparsity it loses nothing but rounding, which must not be taken for a measurement."""
    torch.manual_seed(0)
    data = torch.randn(128, 16, 8, 8)
    layers: list[nn.Module] = []
    for _ in range(3):
        norm = nn.BatchNorm2d(16)
        norm.running_var.uniform_(0.5, 2.0)
        layers += [nn.Conv2d(16, 16, 3, padding=1, bias=False), norm, nn.ReLU()]
    model = nn.Sequential(*layers).eval()
    prunus.reconstruct(model, 0.5, data, samples=128)
    grid = (0.0, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8)
    found = prunus.recovery.measure_damage(model, data, samples=128, grid=grid)
    for curve in found.curves.values():
        assert max(curve[:5]) < 1e-6
        assert 1e-3 < curve[-1] < 2.0


class Ending(nn.Module):
    """Two layers and something behind the last."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Linear(32, 32), nn.Linear(32, 16), end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.b(torch.relu(self.a(x))))


@pytest.mark.parametrize(
    ("end", "part"),
    [
        (lambda y: y * torch.nan, "outputs of the model hold NaN"),
        (lambda y: y * torch.inf, "outputs of the model hold NaN"),
        (lambda y: y.argmax(1), "no numbers with fractions"),
    ],
)
def test_outputs_that_cannot_be_compared_are_refused_and_the_model_stays(end: Any, part: str) -> None:
    torch.manual_seed(0)
    model, data = Ending(end), torch.randn(128, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=part) as caught:
        prunus.reconstruct(model, 0.5, data, allocation="damage")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_a_layer_that_must_not_be_pruned_is_named() -> None:
    torch.manual_seed(0)
    data = torch.randn(128, 32)
    model = Ending(lambda y: y)
    dense = model(data).detach()
    model.end = lambda y: torch.where((y[: len(y)] - dense[: len(y)]).abs().max() < 1e-4, y, torch.nan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=r"With 'a\.weight' alone pruned .* exclude that layer"):
        prunus.reconstruct(model, 0.5, [data], allocation="damage")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_answers_that_are_never_given_may_be_infinite() -> None:
    torch.manual_seed(0)
    data, never = torch.randn(128, 32), torch.arange(16) == 3
    model = Ending(lambda y: y.masked_fill(never, -torch.inf))
    found = prunus.recovery.measure_damage(model, data, "unstructured", grid=(0.0, 0.5, 0.9))
    assert all(0 < curve[-1] < 2 for curve in found.curves.values())


@pytest.mark.parametrize("name", ["fc:64-128-64-10", "fc:64-300-100-10", "fc:64-32-10"])
def test_mixes_of_nm_reach_the_sparsity_asked_for(name: str) -> None:
    model = prunus.models.make(name, seed=0)
    data = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    masks = prunus.reconstruct(model, 0.5, data, pattern="2:4", allocation="damage")
    assert masks.sparsity == masks.notes["reached"] == 0.5


def test_the_notes_tell_the_sparsity_reached() -> None:
    model, data = prunus.models.make("fc:64-48-10", seed=0), torch.randn(512, 64)
    masks = prunus.reconstruct(model, 0.77, data, allocation="damage")
    assert masks.notes["sparsity"] == 0.77
    assert masks.notes["reached"] == masks.sparsity != 0.77


def test_options_reach_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    late = _damage._late

    class Noted(_damage.UnitWalk):
        def __init__(self, model: Any, units: Any, batches: Any, memory: float) -> None:
            super().__init__(model, units, batches, memory)
            given.append(memory)

    def line(total: int, wanted: bool | None) -> Any:
        given.append(wanted)
        return late(total, wanted)

    monkeypatch.setattr(_damage, "UnitWalk", Noted)
    monkeypatch.setattr(_damage, "_late", line)
    options = prunus.recovery.ReconstructOptions(memory=1234.0, progress=False)
    model, data = prunus.models.make("fc:64-48-10", seed=0), torch.randn(128, 64)
    prunus.reconstruct(model, 0.5, data, allocation="damage", options=options)
    assert given == [False, 1234.0]


def curves_of(draw: random.Random, m: int, layers: int) -> prunus.recovery.Damage:
    sizes = {f"layer{at}": 8 * draw.choice([320, 640, 1000, 2048, 2048, 8192, 19200, 30000]) for at in range(layers)}
    curves = {name: sorted(draw.random() ** 3 for _ in range(m)) for name in sizes}
    return prunus.recovery.Damage(_damage.steps(prunus.patterns.NM(m, m)), curves, sizes, stepped=True)


@pytest.mark.parametrize("seed", range(40))
def test_no_mix_of_nm_is_nearer_and_none_as_near_loses_less(seed: int) -> None:
    draw = random.Random(seed)
    m = draw.choice([1, 2, 4, 8])
    found = curves_of(draw, m, draw.randint(1, 4))
    total, levels = sum(found.sizes.values()), list(found.choices)
    sparsity = draw.choice(levels) if draw.random() < 0.6 else draw.random()
    goal = min(sparsity, levels[-1]) * total

    def judged(chosen: tuple[float, ...]) -> tuple[float, float]:
        zeros = sum(size * level for size, level in zip(found.sizes.values(), chosen))
        lost = sum(curve[levels.index(level)] for curve, level in zip(found.curves.values(), chosen))
        return abs(zeros - goal), lost

    mixes = [judged(chosen) for chosen in itertools.product(levels, repeat=len(found.sizes))]
    nearest = min(off for off, _ in mixes)
    slack = max(min(found.sizes.values()) / m / 2 if m > 1 else 0.0, 1e-4 * total)
    picked, shapes = found.levels(sparsity)
    off, lost = judged(tuple(picked.values()))
    assert list(picked) == list(found.sizes)
    assert all(shapes[name] == found.choices[level] for name, level in picked.items())
    assert off <= nearest + slack + 1e-6
    assert lost <= min(lost for off, lost in mixes if off <= nearest + slack) + 1e-9


def test_many_layers_of_any_size_are_mixed_too() -> None:
    draw = random.Random(0)
    found = curves_of(draw, 4, 60)
    sizes = {name: 4 * draw.randint(1000, 500_000) for name in found.sizes}
    found = prunus.recovery.Damage(found.choices, found.curves, sizes, stepped=True)
    levels, total = list(found.choices), sum(sizes.values())
    picked, _ = found.levels(0.5)
    assert sum(sizes[name] * level for name, level in picked.items()) / total == pytest.approx(0.5, abs=2e-4)
    lost = sum(found.curves[name][levels.index(level)] for name, level in picked.items())
    # No mix of 0.5 loses less than the best with a price on every zero gives back (weak duality).
    least = max(
        sum(
            min(loss - price * sizes[name] / total * (level - 0.5) for level, loss in zip(levels, curve))
            for name, curve in found.curves.items()
        )
        for price in range(0, 200)
    )
    assert lost < 1.02 * least
    assert lost < 0.8 * sum(curve[2] for curve in found.curves.values()), "equal shares lose more"


def test_equal_shares_win_where_losses_are_equal() -> None:
    sizes = {"a": 4096, "b": 4096, "c": 4096}
    same = {name: [0.0, 0.1, 0.2, 0.3] for name in sizes}
    found = prunus.recovery.Damage(_damage.steps(prunus.patterns.NM(2, 4)), same, sizes, stepped=True)
    assert set(found.levels(0.5)[0].values()) == {0.5}


def measured(model: nn.Module, data: Tensor, **options: Any) -> _damage.Damage:
    weights, batches = prunable_weights(model), [as_batch(part) for part in data.split(32)]
    with torch.no_grad():
        choices = _damage.around(prunus.patterns.parse("unstructured"), 0.5)
        return _damage.damage(model.eval(), weights, choices, batches, [()] * len(batches), 0.01, **options)


def test_the_curves_take_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, data, given = Branches(), torch.randn(128, 32), []

    class Noted(_damage.UnitWalk):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            given.append(self.room)

    monkeypatch.setattr(_damage, "UnitWalk", Noted)
    free, tight = measured(model, data), measured(model, data, memory=0.0)
    assert free.curves == tight.curves, "what does not fit lies in a file, bit by bit the same"
    assert [room.file is not None for room in given] == [False, True]


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, []), (1.5, [1, "b.weight"]), (3.0, [2, "a.weight", "b.weight"])])
def test_progress_is_shown_where_it_takes_long(
    seconds: float, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    clock = itertools.count()

    @contextmanager
    def line(total: int, wanted: bool | None) -> Iterator[LayerProgress]:
        assert wanted is True
        said.append(total)
        yield LayerProgress(lambda text: said.append(text.split()[0]))

    monkeypatch.setattr(_damage, "progress", line)
    monkeypatch.setattr(_damage.time, "monotonic", lambda: seconds * next(clock))
    torch.manual_seed(0)
    measured(Ending(torch.relu), torch.randn(64, 32), shown=True)
    assert said == shown
