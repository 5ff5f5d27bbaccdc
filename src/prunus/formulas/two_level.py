"""The two-level rule: the best selection under pure local privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.swap_counts import law_of
from prunus.formulas.swap_law import Array, SwapLaw

_CHUNK = 4096  # tolerance
_MOST_OVERLAPS = 4 * 10**6

_MARGIN = 60.0  # tolerance

# exp() of more than this overflows soon; such overlaps are far below the level that matters.
HUGE = 600.0  # tolerance


@claim("N-9b")
def two_level_rule(d: int, m: int, epsilon: float) -> dict[str, Any]:
    """N-9b: best kept fraction under pure local privacy: density exp(epsilon) from an overlap `level` on, 1 below."""
    epsilon = domain.positive("epsilon", epsilon)
    overlap, logs, mean = overlaps(d, m, epsilon)
    heavy = np.exp(np.minimum(logs + epsilon, HUGE))
    share = -math.expm1(-epsilon)
    mass = sums_from_above(heavy)
    gains = share * sums_from_above(heavy * (overlap - mean)) / (1.0 + share * mass)
    best = int(np.argmax(gains))
    return {"level": int(overlap[best]), "kept": (mean + float(gains[best])) / m}


def two_level_law(d: int, m: int, epsilon: float) -> tuple[int, Array]:
    """Law of the number of swaps under the two-level rule: (low, probabilities of low, low + 1, ...)."""
    level = two_level_rule(d, m, epsilon)["level"]
    overlap, logs, _ = overlaps(d, m, float(epsilon))
    tilted = logs + np.where(overlap >= level, float(epsilon), 0.0)
    probabilities = np.exp(tilted - special.logsumexp(tilted))
    return m - int(overlap[-1]), probabilities[::-1]


def overlaps(d: int, m: int, epsilon: float) -> tuple[Array, Array, float]:
    """Overlaps x in ascending order, their log probabilities for a random index set, and the mean m^2/d.

    The upper tail goes down to exp(-epsilon - 60), where the two levels of a private mechanism stop mattering.
    """
    law = checked_law(d, m, 0.0)
    low, probabilities = law.window
    logs = [np.log(probabilities)]
    level, count = float(logs[0][0]), _CHUNK
    while low > 0 and level > -(epsilon + _MARGIN):
        steps = np.arange(low, max(low - count, 0), -1, dtype=np.float64)
        more = level + np.cumsum(np.log(law.down(steps)))
        logs.insert(0, more[::-1])
        low, level, count = low - len(steps), float(more[-1]), 2 * count
        if count > _MOST_OVERLAPS:
            raise BadInput(f"At epsilon {epsilon:.3g} more than {_MOST_OVERLAPS:.0e} overlaps count: take less.")
    ascending = np.concatenate(logs)[::-1]
    overlap = law.m - low - np.arange(len(ascending), dtype=np.float64)[::-1]
    return overlap, ascending, law.m * (law.m / (law.m + law.others))


def sums_from_above(values: Array) -> Array:
    """Sums of the entries from each position to the end."""
    return np.cumsum(values[::-1])[::-1]


def checked_law(d: int, m: int, theta: float) -> SwapLaw:
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    return law_of(m, d - m, theta)
