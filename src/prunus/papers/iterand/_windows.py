"""Chances of hitting a window with re-sampled uniform draws: the exact law behind all lemmas of the appendix.

A neuron has one inner weight u and one outer weight v per output, each drawn uniformly from [-1, 1] and re-drawn up to
R - 1 times. It serves a target weight if some u lies in its window (chance q of one draw) and some v lies in its own.
The R^2 pairs share their draws: what counts is s = 1 - (1 - q)^R for u and for v, not R^2 independent pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from prunus.errors import BadInput

# Standard deviations, and ten more counts each, after which a binomial sum is cut.
_CUT = 40  # tolerance
_MOST_NEURONS = 10**12  # the sum has about forty times the root of them


def log_miss(window: float, resamples: int) -> float:
    """ln (1 - q)^R: the log chance that none of R draws lands in a window of chance q."""
    return resamples * math.log1p(-window) if window < 1 else -math.inf


def pair_exponent(window_u: float, window_v: float, resamples: int) -> float:
    """-ln(1 - s_u s_v): exponent, per neuron, of the chance that no neuron has both a u and a v in their windows."""
    miss_u, miss_v = math.exp(log_miss(window_u, resamples)), math.exp(log_miss(window_v, resamples))
    both = math.expm1(log_miss(window_u, resamples)) * math.expm1(log_miss(window_v, resamples))
    if both < 0.5:  # tolerance
        return -math.log1p(-both)
    # 1 - s_u s_v = miss_u + miss_v - miss_u miss_v, a sum of small numbers when s is near 1.
    rest = miss_u + miss_v - miss_u * miss_v
    return -math.log(rest) if rest > 0 else -max(log_miss(window_u, resamples), log_miss(window_v, resamples))


def overlap(target: float, reach: float) -> float:
    """Chance that a uniform draw from [-1, 1] lies within `reach` of the target, itself in [-1, 1].

    A sum of two sides: the difference of the window's ends would lose a small reach.
    """
    return (min(reach, 1.0 - target) + min(reach, 1.0 + target)) / 2


def coordinate_law(miss_u: float, misses_v: Mapping[float, int], half: int) -> tuple[float, float]:
    """Success and failure of one input coordinate and sign served by `half` neurons, for all outputs at once.

    `miss_u` and the keys of `misses_v` are log chances of missing; the values count the outputs that share one. The
    number g of neurons whose u hits is binomial; given g, an output fails with chance miss_v^g, independently of the
    others. Both sums have positive terms only, so neither a small success nor a small failure suffers cancellation.
    """
    if half == 0:
        return 0.0, 1.0
    if half > _MOST_NEURONS:
        raise BadInput(f"The sum over neurons takes at most {_MOST_NEURONS:.0e} of them for a sign, got {half:.3g}.")
    counts, weights = _binomial(half, miss_u)
    log_hits = np.zeros(counts.size)
    with np.errstate(divide="ignore", invalid="ignore"):  # no hit at all: log of 0, and 0 times minus infinity
        for miss, outputs in misses_v.items():
            lost = np.where(counts == 0, 0.0, counts * miss)
            log_hits += float(outputs) * np.log(-np.expm1(lost))
    # Weights sum to 1 up to rounding.
    return min(float(weights @ np.exp(log_hits)), 1.0), min(float(weights @ -np.expm1(log_hits)), 1.0)


def _binomial(n: int, miss: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of binomial(n, 1 - exp(miss)) by ratios from the mode; far tails left out."""
    p = -math.expm1(miss)
    if math.exp(miss) == 0 or p == 0:
        return np.array([n if p else 0]), np.array([1.0])
    mode = min(n, int((n + 1) * p))
    reach = int(_CUT * (math.sqrt(n * p * math.exp(miss)) + 10))  # tolerance
    low, high = max(0, mode - reach), min(n, mode + reach)
    log_odds = math.log(p) - miss
    up = np.arange(mode, high, dtype=np.float64)
    down = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumsum(np.log((n - up) / (up + 1)) + log_odds)
    falling = np.cumsum(np.log(down / (n - down + 1)) - log_odds)
    logs = np.concatenate([falling[::-1], [0.0], rising])
    weights = np.exp(logs)
    return np.arange(low, high + 1, dtype=np.float64), weights / weights.sum()
