"""Alignment, distance, limits of concrete networks, dead units, drift."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import prunus
from prunus.errors import BadInput
from prunus.tangent import (
    Drift,
    alignment,
    dead_units,
    distance,
    empirical,
    limit,
    limit_convolutional,
    limit_of,
    parametrise,
)


def test_distance_and_alignment() -> None:
    a = torch.eye(3)
    assert distance(2 * a, a) == pytest.approx(1.0)
    labels = torch.tensor([0, 0, 1, 1])
    hot = nn.functional.one_hot(labels).double() - 0.5
    assert alignment(hot @ hot.T, labels) == pytest.approx(1.0)
    assert alignment(torch.ones(4, 4), labels) == pytest.approx(0.0, abs=1e-12)
    assert alignment(hot @ hot.T + 5, hot[:, :1], centred=True) == pytest.approx(1.0)
    for call in (
        lambda: distance(a, torch.eye(2)),
        lambda: distance(a, 0 * a),
        lambda: alignment(a, torch.tensor([0, 1])),
        lambda: alignment(a, torch.tensor([0, -1, 1])),
    ):
        with pytest.raises(BadInput):
            call()


def test_limit_of_a_network() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    form = parametrise(prunus.models.make("fc:6-9-9-1", init="normal", seed=0).double())
    assert torch.equal(limit_of(form, x), limit(x, depth=2))
    standard = parametrise(prunus.models.make("fc:6-4096-1", init="kaiming_normal", seed=0).double())
    torch.testing.assert_close(limit_of(standard, x), limit(x, depth=1) * 2 / 6)
    assert distance(empirical(standard, x), limit_of(standard, x)) < 0.1
    images = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    layers = [nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1, bias=False)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(48, 1, bias=False)).double()
    found = limit_of(parametrise(net, weights="keep"), images)
    torch.testing.assert_close(found, limit_convolutional(images, depth=2))
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1, bias=False)]
    pooled = limit_of(parametrise(nn.Sequential(*layers, *head).double(), weights="keep"), images)
    torch.testing.assert_close(pooled, limit_convolutional(images, depth=2, head="average"))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), "biases"),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)), "one ReLU"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1, bias=False)),
            "keep the size",
        ),
    ],
)
def test_networks_without_a_limit(net: nn.Module, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        limit_of(parametrise(net), torch.ones(2, 4))
    with pytest.raises(BadInput, match="NTK form"):
        limit_of(net, torch.ones(2, 4))  # type: ignore[arg-type]


def test_dead_units() -> None:
    model = prunus.models.make("fc:3-6-5-1", seed=0).double()
    with torch.no_grad():
        model.layers[0].weight[2] = 0.0
        model.layers[0].bias[2] = -1.0
    kept = torch.ones(5, 6, dtype=torch.bool)
    kept[:2] = False
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    first, second = dead_units(model, x, prunus.Masks({"layers.1.weight": kept}))
    assert (first.name, first.units, first.cut_off) == ("layers.0", 6, 0)
    hidden = model.layers[0](x.double())
    assert first.dead == int((~(hidden > 0).any(0)).sum()) >= 1
    assert (second.units, second.cut_off) == (5, 2)
    conv = prunus.models.make("conv6:width=0.1,size=8", seed=0)
    assert [row.units for row in dead_units(conv, torch.randn(2, 3, 8, 8))][:3] == [6, 6, 13]


def test_drift_while_training() -> None:
    """Wider networks in NTK form move their kernel less: the lazy regime."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 4, generator=generator), torch.randn(32, 1, generator=generator)
    ends = []
    for width in (16, 1024):
        form = parametrise(prunus.models.make(f"fc:4-{width}-{width}-1", init="normal", seed=1))
        drift = Drift(form, x[:8])
        config = prunus.training.FitConfig(
            lr=0.05, momentum=0.0, weight_decay=0.0, schedule="constant", loss="mse", callbacks=(drift,), batch_size=32
        )
        prunus.training.fit(form, TensorDataset(x, y), length="20ep", config=config)
        assert len(drift.rows) == 20
        assert drift.rows[0]["distance"] <= drift.rows[-1]["distance"]
        assert -1 <= drift.rows[-1]["cosine"] <= 1 + 1e-9
        ends.append(drift.rows[-1]["distance"])
    assert ends[1] < ends[0] / 2


def test_limit_of_a_pruned_input_layer() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    form = parametrise(prunus.models.make("fc:4-9-9-1", init="normal", seed=0).double())
    torch.testing.assert_close(limit_of(form, x, pruned_input=0.5), limit(x, depth=2, density=0.5, prune_input=True))
    assert torch.equal(limit_of(form, x, pruned_input=1.0), limit(x, depth=2))
