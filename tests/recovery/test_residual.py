"""Residual connections and small samples: what a layer aims at, and how far."""

import copy

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import batches
from prunus.layers import all_weights
from prunus.recovery import ReconstructOptions
from prunus.recovery._layer import aim, trusted
from prunus.recovery._moments import trace
from prunus.recovery._solve import Factors, damped


class Branch(nn.Module):
    """x + second(relu(first(x))), or with something in between that makes it another sum."""

    def __init__(self, between: str = "") -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(16, 32), nn.Linear(32, 16), between

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        if self.between == "relu_":
            y = y.relu_()
        if self.between == "scaled":
            return torch.add(x, y, alpha=0.5)
        if self.between == "transposed":
            return x.transpose(0, 1) + y.transpose(0, 1)
        return x + y


@pytest.mark.parametrize("between, found", [("", True), ("relu_", False), ("scaled", False), ("transposed", False)])
def test_only_a_plain_sum_with_the_output_counts(between: str, found: bool) -> None:
    model = Branch(between)
    (batch,) = batches(torch.randn(8, 16), size=8)
    stages = trace(model, all_weights(model), batch)
    assert [stage.summed for stage in stages] == [False, found]


def test_the_sum_is_the_least_squares_fit_to_the_dense_sum() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 16), Branch()).double().eval()
    data = torch.randn(4000, 16, dtype=torch.float64)
    pruned = copy.deepcopy(dense)
    levels = {"0.weight": 0.5, "1.first.weight": 0.5, "1.second.weight": 0.0}
    prunus.reconstruct(pruned, levels, data, samples=4000, options=ReconstructOptions(damping=1e-9))
    with torch.no_grad():
        stem = pruned[0](data)
        hidden = torch.relu(pruned[1].first(stem))
        wanted = dense(data) - stem
        best = torch.linalg.lstsq(torch.cat([hidden, torch.ones(4000, 1, dtype=torch.float64)], 1), wanted).solution
        least = (hidden @ best[:-1] + best[-1] - wanted).square().sum()
        got = (pruned(data) - dense(data)).square().sum()
        plain = (stem + dense[1].second(hidden) - dense(data)).square().sum()
    assert got <= 1.01 * least < 0.95 * plain
    torch.testing.assert_close(pruned(data).mean(0), dense(data).mean(0))


@pytest.mark.parametrize("places", [60, 6000])
def test_chance_is_not_trusted_and_a_relation_is(places: int) -> None:
    generator = torch.Generator().manual_seed(places)
    inputs = torch.randn(places, 40, generator=generator, dtype=torch.float64)
    weight = torch.zeros(1, 20, 40, dtype=torch.float64)
    relation = torch.randn(20, 40, generator=generator, dtype=torch.float64)
    noise = torch.randn(places, 20, generator=generator, dtype=torch.float64)
    own = (inputs.T @ inputs / places).unsqueeze(0)
    parts = []
    for lacking in (noise, inputs @ relation.T, noise + inputs @ relation.T * 0.1):
        extra = (lacking.T @ inputs / places).unsqueeze(0)
        ridge = Factors(damped(own, 1e-6))
        best = aim(weight, ridge, extra)
        parts.append(trusted(weight, best, own, ridge, float(lacking.square().sum()) / places, places))
    assert parts[0] < 0.2
    assert parts[1] > 0.999
    share = 0.4 / (0.4 + 40 / places)  # signal against signal and noise that a fit holds
    assert parts[2] == pytest.approx(share, abs=0.1)
