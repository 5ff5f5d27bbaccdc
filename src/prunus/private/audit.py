"""An audit: run the mechanism on worst-case neighbours and bound its epsilon from below, with exact confidence.

For each pair of vectors an event is chosen on one half of the draws and judged on the other half, with Clopper-Pearson
limits; epsilon is at least log(p_low / q_high). A bound above the claim means that the mechanism does not do what it
says. The reverse is no proof: an audit can only fail to find a fault.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from prunus.errors import BadInput
from prunus.private.exchange import in_groups
from prunus.private.index_mechanism import IndexMechanism
from prunus.private.mechanism import NoisyTopK
from prunus.private.randomness import Integers, Source, source

Sampler = Callable[[Tensor, int], np.ndarray]  # (vector, draws) -> (draws, m) index sets
_MOST_SETS = 200
_MOST_PAIRED = 16
_LARGEST = 62  # coordinates: an index set is one integer here


@dataclass(frozen=True)
class Finding:
    """One pair of neighbours: what is claimed between them, and what the draws show at least."""

    pair: str
    swaps: int
    claimed: float
    lower_bound: float
    event: str
    passed: bool


@dataclass(frozen=True)
class Audit:
    """All findings; `passed` is wrong for an honest mechanism with probability below 1 - confidence."""

    findings: tuple[Finding, ...]
    draws: int
    confidence: float

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"passed": self.passed} | asdict(self)


def audit(
    mech: IndexMechanism,
    d: int = 8,
    draws: int = 20_000,
    confidence: float = 1.0 - 1e-6,
    sampler: Sampler | None = None,
    insecure_seed: int | None = None,
) -> Audit:
    """Look for more leakage than `mech` claims; `sampler` is what really runs (the mechanism itself by default).

    Small d is where the worst case can be seen: every index set has a probability that counting can reach.
    """
    if draws < 100 or not 0.0 < confidence < 1.0:
        raise BadInput("An audit needs at least 100 draws and a confidence between 0 and 1.")
    if not 2 <= d <= _LARGEST:
        raise BadInput(f"An audit takes vectors of 2 to {_LARGEST} coordinates, got {d}.")
    m = mech.count(d)
    if m == d:
        raise BadInput("Keeping every coordinate releases nothing; audit a mechanism that keeps fewer than d.")
    run = sampler or mechanism_sampler(mech, insecure_seed)
    pairs = list(_pairs(d, m))
    level = (1.0 - confidence) / (4 * len(pairs))
    findings = []
    for name, swaps, first, second in pairs:
        claimed = mech.privacy(d, swaps).at_distance if swaps else 0.0
        left, right = run(first, draws), run(second, draws)
        bound, event = max(_lower_bound(left, right, d, level), _lower_bound(right, left, d, level))
        findings.append(Finding(name, swaps, claimed, bound, event, bound <= claimed + 1e-9))
    return Audit(tuple(findings), draws, confidence)


def mechanism_sampler(mech: IndexMechanism, insecure_seed: int | None = None) -> Sampler:
    """The mechanism as users call it: a few hundred draws one by one, the rest as groups of one call."""
    seeds = itertools.count(0 if insecure_seed is None else insecure_seed * 1_000_003)

    def run(vector: Tensor, draws: int) -> np.ndarray:
        d, m = vector.numel(), mech.count(vector.numel(), quiet=True)
        counted = dataclasses.replace(mech, k=m)
        alone = min(draws // 2, 250)
        seed = (lambda: None) if insecure_seed is None else (lambda: next(seeds))
        single = [counted.select(vector, insecure_seed=seed()).numpy() for _ in range(alone)]
        many = counted.select(vector.repeat(draws - alone), group=d, insecure_seed=seed()).numpy()
        sets = np.concatenate((np.stack(single), many.reshape(-1, m) % d))
        return sets[np.random.Generator(np.random.PCG64(0)).permutation(draws)]

    return run


def _pairs(d: int, m: int) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Neighbours at growing distance, and two vectors with the same magnitudes."""
    most = min(m, d - m)
    base = torch.linspace(0.1, 0.2, d)
    for swaps in sorted({1, (most + 1) // 2, most}):
        first, second = base.clone(), base.clone()
        first[:m] += 1.0
        second[swaps : m + swaps] += 1.0
        name = "one swap" if swaps == 1 else "farthest" if swaps == most else "half way"
        yield name, swaps, first, second
    signed = base.clone()
    signed[:m] += 1.0
    yield "same magnitudes", 0, signed, torch.where(torch.arange(d) < m, -signed, signed)


def _events(sets: np.ndarray, other: np.ndarray, d: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(name, happened in `sets`, happened in `other`): single index sets where they are few, single coordinates."""
    m = sets.shape[1]
    codes, others = (1 << sets).sum(axis=1), (1 << other).sum(axis=1)
    if math.comb(d, m) <= _MOST_SETS:
        for subset in itertools.combinations(range(d), m):
            code = sum(1 << i for i in subset)
            yield f"kept {list(subset)}", codes == code, others == code
    for i in range(d):
        for kept in (True, False):
            here, there = ((codes >> i) & 1) == kept, ((others >> i) & 1) == kept
            yield f"coordinate {i} {'kept' if kept else 'left out'}", here, there
    for i, j in itertools.permutations(range(min(d, _MOST_PAIRED)), 2):
        here, there = ((codes >> i) & ~(codes >> j) & 1) == 1, ((others >> i) & ~(others >> j) & 1) == 1
        yield f"coordinate {i} kept without {j}", here, there


def _lower_bound(sets: np.ndarray, other: np.ndarray, d: int, level: float) -> tuple[float, str]:
    half = len(sets) // 2
    best: tuple[float, str, np.ndarray, np.ndarray] | None = None
    for name, here, there in _events(sets, other, d):
        value = _epsilon(int(here[:half].sum()), int(there[:half].sum()), half, level)
        if best is None or value > best[0]:
            best = value, name, here[half:], there[half:]
    assert best is not None
    _, name, here, there = best
    return max(_epsilon(int(here.sum()), int(there.sum()), len(here), level), 0.0), name


def _epsilon(often: int, seldom: int, draws: int, level: float) -> float:
    """log(p_low / q_high) with one-sided Clopper-Pearson limits."""
    if often == 0:
        return -math.inf
    low = float(stats.beta.ppf(level, often, draws - often + 1))
    high = float(stats.beta.ppf(1.0 - level, seldom + 1, draws - seldom)) if seldom < draws else 1.0
    return math.log(low / high) if low > 0.0 else -math.inf


# ------------------------------------------------------------------------------------------------------ planted faults


def _faulty(mech: NoisyTopK, *, absolute: bool = True, factor: float = 1.0, cut: bool = False) -> Sampler:
    bits = source(11)

    def counts(number: int, m: int, others: int, bits: Source) -> Integers:
        table = NoisyTopK(m, mech.theta * factor).table(m, others)
        swaps = table.draw(number, bits)
        while cut and (swaps == min(m, others)).any():
            far = swaps == min(m, others)
            swaps[far] = table.draw(int(far.sum()), bits)
        return swaps

    def run(vector: Tensor, draws: int) -> np.ndarray:
        d, m = vector.numel(), mech.count(vector.numel(), quiet=True)
        ranked = vector if absolute else vector - vector.min() + 1.0
        return in_groups(ranked.repeat(draws), d, lambda n: m, counts, bits).numpy().reshape(draws, m) % d

    return run


def _reused_seed(mech: NoisyTopK) -> Sampler:
    def run(vector: Tensor, draws: int) -> np.ndarray:
        m = mech.count(vector.numel(), quiet=True)
        kept = NoisyTopK(m, mech.theta).select(vector, insecure_seed=12).numpy()
        return np.repeat(kept[None], draws, axis=0)

    return run


FAULTS: dict[str, Callable[[NoisyTopK], Sampler]] = {
    "no-absolute-value": lambda mech: _faulty(mech, absolute=False),
    "half-noise": lambda mech: _faulty(mech, factor=2.0),
    "truncated-tail": lambda mech: _faulty(mech, cut=True),
    "reused-seed": _reused_seed,
}
