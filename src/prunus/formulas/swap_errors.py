"""Expected squared error of a vector after top-k selection and swaps, and the theta that gives a number of swaps."""

from __future__ import annotations

import math

from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.energy import bank_energy, energy_split
from prunus.formulas.swap_counts import law_of

ROUNDING = 1e-12  # tolerance

_SLACK = 1e-9  # tolerance


@claim("N-2b")
def topk_error(d: int, m: int, sigma: float = 1.0) -> dict[str, float]:
    """N-2b: mean squared error of exact top-k, exact for any dimension: d sigma^2 e(d, d-m)."""
    d = domain.whole("d", d, 2)
    relative = bank_energy(d, d - domain.whole("m", m, 0, d))
    return {"squared_error": d * domain.positive("sigma", sigma) ** 2 * relative, "relative": relative}


@claim("N-3b")
def swap_slope(d: int, m: int) -> float:
    """N-3b: mean kept energy minus mean pruned energy, exact for any dimension, over sigma^2."""
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    removed, kept = energy_split(d, d - m)
    return kept * (d / m) - removed * (d / (d - m))


@claim("N-3d")
def error_after_swaps(d: int, m: int, swaps: float, sigma: float = 1.0) -> float:
    """N-3d: mean squared error after a (mean) number of random swaps, sigma^2 (d e + slope swaps)."""
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    swaps = domain.real("swaps", swaps, 0, min(m, d - m))
    return topk_error(d, m, sigma)["squared_error"] + sigma**2 * swap_slope(d, m) * swaps


@claim("N-11a")
def theta_for_swaps(m: int, others: int, swaps: float) -> dict[str, float]:
    """N-11a: concentration with a wanted mean number of swaps; unique, as the mean falls in theta (N-6).

    Newton's method on the logarithm of the mean, held in a bracket: E[i] <= m others q bounds theta from above.
    """
    m = domain.whole("m", m, 1)
    others = domain.whole("others", others, 1)
    most = float(m) * others / (m + others)
    wanted = domain.real("swaps", swaps, 0.0, most * (1.0 + ROUNDING), open_low=True)
    if wanted >= most * (1.0 - ROUNDING):
        return {"theta": 0.0, "start": 0.0}
    start = -0.5 * (math.log(wanted / (m - wanted)) + math.log(wanted / (others - wanted)))
    low, high = 0.0, 0.5 * math.log(float(m) * others / wanted) + _SLACK
    theta = min(max(start, low), high)
    for _ in range(100):  # tolerance
        law = law_of(m, others, theta)
        near = law.gain < 0.5 * most  # tolerance
        gap = most - wanted - law.gain if near else law.mean - wanted
        low, high = (theta, high) if gap > 0.0 else (low, theta)
        # Newton on log E[i] for a relative gap, on E[i] for a small one: the same to first order.
        step = math.log1p(gap / wanted) * law.mean / (2.0 * law.variance) if law.variance > 0.0 else math.inf
        moved = theta + step
        if not low <= moved <= high:
            moved = 0.5 * (low + high)
        if abs(moved - theta) <= 1e-15 * max(abs(theta), 1e-300):  # tolerance
            return {"theta": moved, "start": start}
        theta = moved
    return {"theta": theta, "start": start}
