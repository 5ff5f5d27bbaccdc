"""The best any mechanism can do: metric and pure local privacy (N-9).

The overlap of a random index set with the true one is hypergeometric; a purely private mechanism can only weigh it
between 1 and exp(epsilon), which gives the two-level rule and a converse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize, special

from prunus.theory import _domain
from prunus.theory.swaps._counts import law_of
from prunus.theory.swaps._law import Array, SwapLaw
from prunus.theory.swaps._privacy import theta_for_local_epsilon

_CHUNK = 4096  # accuracy only
_CLOSE = {"xtol": 1e-16, "rtol": 1e-14}  # accuracy only
# exp() of more than this overflows soon; such overlaps are far below the level that matters.
_HUGE = 600.0  # accuracy only
_MARGIN = 60.0  # accuracy only


def metric_optimum(d: int, m: int, theta: float) -> float:
    """N-9a: largest kept fraction of any mechanism with metric privacy theta; noisy top-k attains it."""
    law = _law(d, m, theta)
    return law.m / (law.m + law.others) + law.gain / law.m


def two_level_rule(d: int, m: int, epsilon: float) -> dict[str, Any]:
    """N-9b: best kept fraction under pure local privacy: density exp(epsilon) from an overlap `level` on, 1 below."""
    epsilon = _domain.positive("epsilon", epsilon)
    overlap, logs, mean = _overlap(d, m, epsilon)
    heavy = np.exp(np.minimum(logs + epsilon, _HUGE))
    share = -math.expm1(-epsilon)
    mass = _from_above(heavy)
    gains = share * _from_above(heavy * (overlap - mean)) / (1.0 + share * mass)
    best = int(np.argmax(gains))
    return {"level": int(overlap[best]), "kept": (mean + float(gains[best])) / m}


def two_level_law(d: int, m: int, epsilon: float) -> tuple[int, Array]:
    """Law of the number of swaps under the two-level rule: (low, probabilities of low, low + 1, ...)."""
    level = two_level_rule(d, m, epsilon)["level"]
    overlap, logs, _ = _overlap(d, m, float(epsilon))
    tilted = logs + np.where(overlap >= level, float(epsilon), 0.0)
    probabilities = np.exp(tilted - special.logsumexp(tilted))
    return m - int(overlap[-1]), probabilities[::-1]


def kept_at_local_epsilon(d: int, m: int, epsilon: float) -> float:
    """N-9c: kept fraction of the noisy top-k law at a pure local privacy."""
    return metric_optimum(d, m, theta_for_local_epsilon(d, m, epsilon))


def kept_fraction_bound(d: int, m: int, epsilon: float) -> float:
    """N-9d: no purely private release keeps more: mean of the top exp(-epsilon) part of the overlap, over m."""
    epsilon = _domain.real("epsilon", epsilon, 0.0)
    overlap, logs, mean = _overlap(d, m, epsilon)
    heavy = np.exp(np.minimum(logs + epsilon, _HUGE))
    mass = _from_above(heavy)
    inside = mass <= 1.0
    if not inside.any():
        return float(overlap[-1]) / m
    first = int(np.argmax(inside))
    above = float(_from_above(heavy * (overlap - mean))[first])
    rest = (1.0 - float(mass[first])) * (float(overlap[first]) - 1.0 - mean)
    return (mean + above + rest) / m


def rough_kept_fraction(m: int, k: float, epsilon: float) -> float:
    """N-9e: the p >= k with m KL(p, k) = epsilon, the exponent of N-9d only; 1 where even p = 1 is allowed."""
    m = _domain.whole("m", m, 1)
    k = _domain.probability("k", k, open_low=True, open_high=True)
    target = _domain.real("epsilon", epsilon, 0.0) / m
    if target == 0.0:
        return k
    if target >= -math.log(k):
        return 1.0

    def gap(p: float) -> float:
        return float(special.rel_entr(p, k) + special.rel_entr(1.0 - p, 1.0 - k)) - target

    return float(optimize.brentq(gap, k, 1.0, **_CLOSE))


def _overlap(d: int, m: int, epsilon: float) -> tuple[Array, Array, float]:
    """Overlaps x in ascending order, their log probabilities for a random index set, and the mean m^2/d.

    The upper tail goes down to exp(-epsilon - 60), where the two levels of a private mechanism stop mattering.
    """
    law = _law(d, m, 0.0)
    low, probabilities = law.window
    logs = [np.log(probabilities)]
    level, count = float(logs[0][0]), _CHUNK
    while low > 0 and level > -(epsilon + _MARGIN):
        steps = np.arange(low, max(low - count, 0), -1, dtype=np.float64)
        more = level + np.cumsum(np.log(law.down(steps)))
        logs.insert(0, more[::-1])
        low, level, count = low - len(steps), float(more[-1]), 2 * count
    ascending = np.concatenate(logs)[::-1]
    overlap = law.m - low - np.arange(len(ascending), dtype=np.float64)[::-1]
    return overlap, ascending, law.m * (law.m / (law.m + law.others))


def _from_above(values: Array) -> Array:
    """Sums of the entries from each position to the end."""
    return np.cumsum(values[::-1])[::-1]


def _law(d: int, m: int, theta: float) -> SwapLaw:
    d = _domain.whole("d", d, 2)
    m = _domain.whole("m", m, 1, d - 1)
    return law_of(m, d - m, theta)
