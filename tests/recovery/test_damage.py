"""Damage is what the network's output loses, not what a layer's own output loses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import prunus


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
