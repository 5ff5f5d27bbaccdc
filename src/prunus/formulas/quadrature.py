"""Means over an order statistic: the quadrature behind the energies of finite banks.

V ~ Beta(a, b) is the level (value of the cdf) of an order statistic of magnitudes. For a function G with G(0) = 0 and
derivative g with respect to the magnitude x,

    E G(Q(V)) = G(c) - int_0^c g(x) P(V <= F(x)) dx + int_c^inf g(x) P(V > F(x)) dx      (any c).

With c near the centre of the law both integrals run over a few standard deviations only, so the difference
E G(Q(V)) - G(c) keeps its digits up to samples of 10^9, where it is 10^-9 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from prunus.formulas.laws import Law

_NODES = 64  # tolerance

Array = NDArray[np.float64]

# Levels that V passes with a probability below exp(-_NEGLIGIBLE) do not count in double precision.
_NEGLIGIBLE = 44.0  # tolerance


@cache
def nodes(count: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (points + 1.0), 0.5 * weights


def panel(low: float, high: float, count: int = _NODES) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [low, high]."""
    points, weights = nodes(count)
    return low + (high - low) * points, (high - low) * weights


def excess(law: Law, a: float, b: float, center: float, slope: Callable[[Array], Any], end: float = np.inf) -> float:
    """E G(Q(V)) - G(center) for V ~ Beta(a, b), G' = slope; `end` cuts where the slope itself is negligible."""
    low = float(law.quantile(negligible_level(a, b)))
    high = min(float(law.tail_quantile(negligible_level(b, a))), end)
    middle = min(center, end)
    total = 0.0
    if low < middle:
        x, weights = panel(low, middle)
        total -= float(weights @ (slope(x) * level_below(law, a, b, x)))
    if middle < high:
        x, weights = panel(middle, high)
        total += float(weights @ (slope(x) * level_above(law, a, b, x)))
    return total


def negligible_level(a: float, b: float) -> float:
    """A level v with P(V <= v) < exp(-_NEGLIGIBLE), V ~ Beta(a, b) with whole a, b: Chernoff's bound of a binomial.

    P(V <= v) = P(Bin(N, v) >= a) <= exp(-N KL(a/N, v)), N = a + b - 1. Inverting the incomplete beta function itself
    fails for very unequal a and b.
    """
    trials = a + b - 1.0
    p = a / trials
    rest = special.xlogy(1.0 - p, 1.0 - p)
    low, high = math.log(p) - _NEGLIGIBLE / a - 1.0, math.log(p)
    for _ in range(40):  # tolerance
        middle = 0.5 * (low + high)
        divergence = p * (math.log(p) - middle) + rest - (1.0 - p) * math.log1p(-math.exp(middle))
        if trials * divergence > _NEGLIGIBLE:
            low = middle
        else:
            high = middle
    return math.exp(low)


def level_below(law: Law, a: float, b: float, x: Array) -> Array:
    """P(V <= F(x)) for V ~ Beta(a, b), from whichever of F and 1 - F is the smaller."""
    below, above = law.cdf(x), law.tail(x)
    smaller = below < 0.5  # tolerance
    result: Array = np.where(smaller, special.betainc(a, b, below), special.betaincc(b, a, above))
    return result


def level_above(law: Law, a: float, b: float, x: Array) -> Array:
    """P(V > F(x)) for V ~ Beta(a, b), from whichever of F and 1 - F is the smaller."""
    below, above = law.cdf(x), law.tail(x)
    smaller = below < 0.5  # tolerance
    result: Array = np.where(smaller, special.betaincc(a, b, below), special.betainc(b, a, above))
    return result
