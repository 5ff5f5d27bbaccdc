"""The shrunk network equals the masked one, on networks nobody designed."""

from __future__ import annotations

import copy

import pytest
import torch
from tools.evidence import record

import prunus
from prunus.structure import find_removal
from support import only_when_proving
from support.random_graphs import make


def check(seed: int, fraction: float = 0.6) -> float:
    """Shrink one random network; returns the largest relative gap to the masked original on new inputs."""
    model = make(seed)
    before = copy.deepcopy(model.state_dict())
    try:
        removal = find_removal(model, fraction, example=torch.randn(2, 3, 8, 8), score="random", seed=seed)
    except prunus.BadInput:  # too much of a small network is fixed: ask for less
        removal = find_removal(model, 0.95, example=torch.randn(2, 3, 8, 8), score="random", seed=seed)
    small = removal.apply()
    masked = removal.masks.apply_(copy.deepcopy(model))
    inputs = torch.randn(3, 3, 12, 12) if "mean" in str(model.steps[-1]) else torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        expected, found = masked(inputs), small(inputs)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return float((expected - found).abs().max() / expected.abs().max())


@pytest.mark.parametrize("seed", range(20))
def test_shrunk_equals_masked(seed: int) -> None:
    assert check(seed) < 1e-4


@pytest.mark.prove
@only_when_proving
def test_a_thousand_graphs() -> None:
    gaps = [check(seed, fraction=0.4 + 0.5 * (seed % 7) / 7) for seed in range(1000)]
    assert max(gaps) < 1e-4
    record(
        "shrink-random-graphs",
        [{"networks": len(gaps), "largest gap": max(gaps), "median gap": sorted(gaps)[len(gaps) // 2]}],
        "Random networks (residual, concatenated, grouped, depthwise, shared, gated): shrunk against masked, relative.",
    )
