"""Whether a network works in place or not, it is reconstructed to the same weights and statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import as_batch
from prunus.layers import prunable_weights
from prunus.recovery._moments import trace
from prunus.recovery._units import UnitWalk, divide


def images(inplace: bool) -> nn.Module:
    act = nn.ReLU(inplace)
    convolutions = nn.Conv2d(16, 16, 3), act, nn.Conv2d(16, 16, 3), act, nn.Conv2d(16, 16, 2)
    return nn.Sequential(
        nn.Unflatten(1, (16, 1, 1)), nn.Upsample(6), *convolutions, act, nn.Flatten(), nn.Linear(16, 4)
    )


def vectors(inplace: bool) -> nn.Module:
    act = nn.ReLU(inplace)
    return nn.Sequential(nn.Linear(16, 32), act, nn.Linear(32, 32), act, nn.Linear(32, 32), act, nn.Linear(32, 4))


def normed(inplace: bool) -> nn.Module:
    parts = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace), nn.BatchNorm1d(16)) for _ in range(3)]
    return nn.Sequential(*(layer for part in parts for layer in part), nn.Linear(16, 4))


class Before(nn.Module):
    """A residual block with its norms before the layers."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.layers = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for norm, layer in zip(self.norms, self.layers):
            out = layer(torch.relu(norm(out)))
        if self.inplace:
            out += x
            return out
        return out + x


def blocks(inplace: bool) -> nn.Module:
    inner = Before(inplace), Before(inplace), nn.BatchNorm2d(16), nn.ReLU(inplace)
    return nn.Sequential(
        nn.Unflatten(1, (16, 1, 1)), nn.Upsample(4), nn.Conv2d(16, 16, 1), *inner, nn.Flatten(), nn.Linear(256, 4)
    )


class Branch(nn.Module):
    """Linear layers beside a connection."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.inplace, self.first, self.second = inplace, nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(torch.relu(self.first(x)))
        return out.add_(x) if self.inplace else out + x


def branches(inplace: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), Branch(inplace), Branch(inplace), nn.Linear(16, 4))


class Loop(nn.Module):
    """A layer that runs three times and changes what it was given."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.inplace, self.first, self.again, self.last = inplace, *(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            step = torch.tanh(self.again(x))
            x = x.add_(step) if self.inplace else x + step
        return self.last(x)


@pytest.mark.parametrize("allocation", ["uniform", "damage"])
@pytest.mark.parametrize("make", [images, vectors, normed, blocks, branches, Loop])
def test_work_in_place_changes_nothing(make: Callable[[bool], nn.Module], allocation: str) -> None:
    torch.manual_seed(0)
    plain = make(False)
    data = torch.randn(128, 16)
    with torch.no_grad():
        for _ in range(20):
            plain(data)  # settles the norms
    other = make(True)
    other.load_state_dict(plain.state_dict())
    before = copy.deepcopy(plain)
    for model in (plain, other):
        prunus.reconstruct(model, 0.5, data, "unstructured", allocation, samples=128)
    for (name, one), two in zip(plain.state_dict().items(), other.state_dict().values()):
        assert torch.equal(one, two), name
    assert any(not torch.equal(one, two) for one, two in zip(before.parameters(), plain.parameters()))


def test_only_a_norm_of_the_untouched_rows_counts_as_right_behind() -> None:
    class Places(nn.Module):  # a norm over positions, in the memory of the layer's output
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.layer(x.unflatten(1, (8, 8))))

    layers = nn.Linear(64, 64), nn.BatchNorm1d(64)
    models = nn.Sequential(*layers), nn.Sequential(layers[0], nn.ReLU(inplace=True), layers[1]), Places()
    batch, found = as_batch(torch.randn(4, 64)), []
    for model in models:
        (stage,) = trace(model.eval(), prunable_weights(model), batch)
        found.append((list(stage.norms.values()), list(stage.after)))
    assert found == [(["1"], []), ([], ["2"]), ([], ["norm"])]


def test_what_stands_for_unread_outputs_is_whole_again_after_work_in_place() -> None:
    seen: list[Tensor] = []

    class Change(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return x.fill_(0.0)

    model = nn.Sequential(nn.Linear(4, 6), Change(), nn.Linear(6, 4), Change(), nn.Linear(4, 4))
    batch = as_batch(torch.randn(3, 4))
    walk = UnitWalk(model, divide(model, prunable_weights(model), batch), [batch])
    with torch.no_grad():
        walk.advance()
        walk.advance()
        seen.clear()
        for _ in range(2):
            walk.inputs(0)
    unread, read = seen[0::2], seen[1::2]
    assert all(bool(each.isnan().all()) and each.shape == (3, 6) for each in unread)
    assert all(torch.equal(each, walk.outputs[0]) for each in read)
