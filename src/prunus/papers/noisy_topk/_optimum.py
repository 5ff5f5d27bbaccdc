"""The best any mechanism can do: metric and pure local privacy (N-9).

The overlap of a random index set with the true one is hypergeometric; a purely private mechanism can only weigh it
between 1 and exp(epsilon), which gives the two-level rule and a converse.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.swap_privacy import theta_for_local_epsilon
from prunus.formulas.two_level import HUGE, checked_law, overlaps, sums_from_above

_CLOSE = {"xtol": 1e-15, "rtol": 1e-14, "maxiter": 1000}  # tolerance
_SLACK = 1e-12  # tolerance


@claim("N-9a")
def metric_optimum(d: int, m: int, theta: float) -> float:
    """N-9a: largest kept fraction of any mechanism with metric privacy theta; noisy top-k attains it."""
    law = checked_law(d, m, theta)
    return law.m / (law.m + law.others) + law.gain / law.m


@claim("N-9c")
def kept_at_local_epsilon(d: int, m: int, epsilon: float) -> float:
    """N-9c: kept fraction of the noisy top-k law at a pure local privacy."""
    return metric_optimum(d, m, theta_for_local_epsilon(d, m, epsilon))


@claim("N-9d")
def kept_fraction_bound(d: int, m: int, epsilon: float) -> float:
    """N-9d: no purely private release keeps more: mean of the top exp(-epsilon) part of the overlap, over m."""
    epsilon = domain.real("epsilon", epsilon, 0.0)
    overlap, logs, mean = overlaps(d, m, epsilon)
    heavy = np.exp(np.minimum(logs + epsilon, HUGE))
    mass = sums_from_above(heavy)
    inside = mass <= 1.0
    if not inside.any():
        return float(overlap[-1]) / m
    first = int(np.argmax(inside))
    above = float(sums_from_above(heavy * (overlap - mean))[first])
    rest = (1.0 - float(mass[first])) * (float(overlap[first]) - 1.0 - mean)
    return (mean + above + rest) / m


@claim("N-9e")
def rough_kept_fraction(m: int, k: float, epsilon: float) -> float:
    """N-9e: the p >= k with m KL(p, k) = epsilon, the exponent of N-9d only; 1 where even p = 1 is allowed."""
    m = domain.whole("m", m, 1)
    k = domain.probability("k", k, open_low=True, open_high=True)
    target = domain.real("epsilon", epsilon, 0.0) / m
    if target == 0.0:
        return k
    if target >= -math.log(k):
        return 1.0

    # p = k (1 + x): each half of the divergence is small where x is, so a tiny target keeps its digits. The divergence
    # is at most k x^2 / (1 - k), which bounds the root from below.
    def gap(logarithm: float) -> float:
        x = math.exp(logarithm)
        kept = k * ((1.0 + x) * math.log1p(x) - x)
        rest = (1.0 - k * (1.0 + x)) * math.log1p(-k * x / (1.0 - k)) + k * x
        return kept + rest - target

    low, high = 0.5 * (math.log(target) + math.log1p(-k) - math.log(k)), math.log1p(-k) - math.log(k)
    root = optimize.brentq(gap, low - _SLACK, high - _SLACK, **_CLOSE) if gap(high - _SLACK) > 0.0 else high
    return min(k * (1.0 + math.exp(root)), 1.0)
