"""Parts that change no more run once; a part that ends with the layer in work is finished from that layer's inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import prunus
from prunus.adapters import as_batch
from prunus.layers import all_weights
from prunus.recovery import ReconstructOptions
from prunus.recovery._moments import trace
from prunus.recovery._units import UnitWalk


class Counted(nn.Linear):
    """Counts its runs."""

    runs = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        return super().forward(inputs)


class Inner(nn.Module):
    """Two layers; what it gives is the last one's output, or something made of it."""

    def __init__(self, after: str = "") -> None:
        super().__init__()
        self.one, self.two, self.after = Counted(6, 6), Counted(6, 6), after

    def forward(self, x: Tensor) -> Any:
        y = self.two(self.one(x).relu())
        return y + x if self.after == "sum" else (y.relu() if self.after == "relu" else (y, None))


class Unit(nn.Module):
    """A unit with a residual branch."""

    def __init__(self, after: str = "") -> None:
        super().__init__()
        self.inner = Inner(after)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return x + (y[0] if isinstance(y, tuple) else y)


def _walk(after: str = "", memory: float = 1e6) -> tuple[UnitWalk, Inner]:
    torch.manual_seed(0)
    unit = Unit(after).eval()
    walk = UnitWalk(nn.Sequential(unit), ["0"], [as_batch(torch.randn(3, 6)) for _ in range(2)], memory)
    walk.settle([unit.inner.one.weight], [unit.inner.two.weight])
    walk.close(unit.inner.two, list(unit.inner.parameters()), [])
    return walk, unit.inner


def _change(walk: UnitWalk, inner: Inner) -> list[Tensor]:
    """Give the last layer another weight, finish, and return what the unit gives."""
    inner.two.weight.mul_(0.5)
    walk.finish()
    walk.settle(list(inner.parameters()), [])
    return [walk.run(index) for index in range(2)]


@torch.no_grad()
@pytest.mark.parametrize("memory", [1e6, 0.0])
def test_a_part_that_ends_with_the_layer_needs_nothing_but_the_layer(memory: float) -> None:
    walk, inner = _walk(memory=memory)
    for index in range(2):
        walk.run(index)
    assert (inner.one.runs, inner.two.runs) == (3, 3)  # one run to count the modules
    assert not walk.parts.known[inner.one]  # the inputs of the ending layer are kept instead
    found = _change(walk, inner)
    assert (inner.one.runs, inner.two.runs) == (3, 5)
    for index, batch in enumerate(walk.batches):
        assert torch.equal(found[index], walk.model(*batch.args))


@torch.no_grad()
@pytest.mark.parametrize("after", ["relu", "sum"])
def test_other_parts_run_again(after: str) -> None:
    walk, inner = _walk(after)
    for index in range(2):
        walk.run(index)
    assert not walk.parts.waiting
    found = _change(walk, inner)
    for index, batch in enumerate(walk.batches):
        assert torch.equal(found[index], walk.model(*batch.args))


@torch.no_grad()
def test_what_an_inner_part_gave_is_used_until_the_outer_one_has_run() -> None:
    walk, inner = _walk("relu")
    for index in range(2):
        walk.run(index)
    runs = inner.one.runs
    assert len(walk.parts.known[inner.one]) == 2
    walk.settle(list(inner.parameters()), [])
    for index in range(2):
        walk.run(index)
    assert inner.one.runs == runs
    assert not walk.parts.known[inner.one]
    assert len(walk.parts.known[inner]) == 2
    walk.advance()
    assert walk.room.taken == sum(output.numel() * 4 for output in walk.outputs.items.values())


def test_room_does_not_change_the_bytes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Unit(), Unit("relu"), Unit("sum"), nn.Linear(6, 4)).eval()
    data = torch.randn(640, 6)
    found = []
    for memory in (1e9, 4e4, 0.0):
        pruned = copy.deepcopy(model)
        prunus.reconstruct(pruned, 0.5, data, "2:4", misfits="skip", options=ReconstructOptions(memory=memory))
        found.append(pruned.state_dict())
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in other)


def test_tracing_keeps_no_activations() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(20))).eval()
    made: list[StorageWeakRef] = []
    alive: list[int] = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        alive.append(sum(not reference.expired() for reference in made))
        made.append(StorageWeakRef(output.untyped_storage()))

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(hook)
    stages = trace(model, all_weights(model), as_batch(torch.randn(4, 8)))
    assert [len(stage.names) for stage in stages] == [1] * 20
    assert max(alive) <= 5
