"""The shrunk network equals the masked one, on networks nobody designed."""

from __future__ import annotations

import copy
import statistics
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tools.evidence import record

import prunus
from prunus.structure import find_removal
from support import only_when_proving
from support.random_graphs import KINDS, make


@dataclass(frozen=True)
class Outcome:
    """One random network: its kinds of steps, the share it was left with, and how far it is from the masked one."""

    kinds: frozenset[str]
    share: float
    gap: float


def check(seed: int, fraction: float = 0.6) -> Outcome:
    """Shrink one random network; the gap is the largest, relative to the masked original's outputs on new inputs."""
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
    gap = float((expected - found).abs().max() / expected.abs().max())
    return Outcome(model.kinds, removal.share, gap)


@pytest.mark.parametrize("seed", range(20))
def test_shrunk_equals_masked(seed: int) -> None:
    assert check(seed).gap < 1e-4


@pytest.mark.prove
@only_when_proving
def test_a_thousand_graphs() -> None:
    found = [check(seed, fraction=0.4 + 0.5 * (seed % 7) / 7) for seed in range(1000)]
    assert max(outcome.gap for outcome in found) < 1e-4
    rows = [_row("all", found)]
    rows += [_row(kind, [outcome for outcome in found if kind in outcome.kinds]) for kind in KINDS]
    record(
        "shrink-random-graphs",
        rows,
        "Random networks, each of two to five steps of the kinds named: the shrunk network against the masked one on "
        "new inputs. The gap is relative to the largest output.",
    )


def _row(name: str, found: list[Outcome]) -> dict[str, Any]:
    gaps = [outcome.gap for outcome in found]
    share = statistics.median(outcome.share for outcome in found)
    return {
        "with": name, "networks": len(found), "largest gap": max(gaps), "median gap": statistics.median(gaps),
        "multiply-adds left, median": share,
    }  # fmt: skip
