"""Lemmas of section 9 with explicit constants: masked means, suprema of Gaussian processes, activation gradients.

Where the paper leaves a constant open (Omega), the one given here follows from the multiplicative Chernoff bound with
constant 3 (K-11a) and a union bound; each is checked against exact tails.
"""

from __future__ import annotations

import math

from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.tangent import kept


@claim("K-25a")
def masked_mean_tail(density: float, count: int, deviation: float, shift: float, variance: float = 1.0) -> float:
    """K-25a (Theorem 9.2, repaired): failure of a mean over masked sub-Gaussian variables, with Chernoff's constant 3.

    The mean of X_i Y_i / density misses E X by deviation (|E X| + shift) + shift at most with this probability.
    """
    return _masked_tail(density, count, deviation, shift, variance, 3.0)


@printed("K-25a")
def masked_mean_tail_printed(
    density: float, count: int, deviation: float, shift: float, variance: float = 1.0
) -> float:
    """K-25a with the constant 1 of Theorem 9.1 as printed."""
    return _masked_tail(density, count, deviation, shift, variance, 1.0)


@claim("K-25b")
def supremum_tail(radius: float, deviation: float) -> float:
    """K-25b (Lemma 9.5): chance that a Gaussian process over a set of this radius exceeds its mean by `deviation`."""
    radius, deviation = domain.positive("radius", radius), domain.real("deviation", deviation, 0.0)
    return math.exp(-0.5 * (deviation / radius) ** 2)


@claim("K-25c")
def implication_probability(first: float, given: float) -> dict[str, float]:
    """K-25c (Lemma 9.6): P(A implies B) = 1 - P(A)(1 - P(B | A)), and how far it lies above P(B | A)."""
    first, given = domain.probability("first", first), domain.probability("given", given)
    return {"probability": 1.0 - first * (1.0 - given), "gain": (1.0 - first) * (1.0 - given)}


@claim("K-25d")
def gradient_width(density: float, error: float, delta: float, depth: int, rows: int) -> int:
    """K-25d (Lemma 9.12): width at which all masked activation gradients are within `error` of their mean.

    6 / (density error^2) ln(6 depth rows / delta): a sum of independent Bernoulli variables of mean at most half the
    kept ones, three pairs of inputs, every row of every layer.
    """
    density, error = kept("density", density), domain.real("error", error, 0.0, 1.0, open_low=True)
    events = domain.whole("depth", depth, 1) * domain.whole("rows", rows, 1)
    return math.ceil(6.0 / (density * error * error) * math.log(6.0 * events / domain.delta_in(delta)))


@claim("K-25e")
def projected_norm_bound(density: float, delta: float, norm: float = math.sqrt(2.0)) -> float:
    """K-25e (Lemma 9.28, repaired): norm of the backward vector along one masked direction.

    1/sqrt(density) stands on both terms. Fails with probability at most delta / 8; `norm` is that of the next layer's
    backward vector.
    """
    density, delta = kept("density", density), domain.delta_in(delta)
    return domain.positive("norm", norm) * (1.0 + math.sqrt(2.0 * math.log(8.0 / delta))) / math.sqrt(density)


@printed("K-25e")
def projected_norm_bound_printed(density: float, delta: float, norm: float = math.sqrt(2.0)) -> float:
    """K-25e as printed: the mean term without 1/sqrt(density)."""
    density, delta = kept("density", density), domain.delta_in(delta)
    return domain.positive("norm", norm) * (1.0 + math.sqrt(2.0 / density * math.log(8.0 / delta)))


def _masked_tail(density: float, count: int, deviation: float, shift: float, variance: float, constant: float) -> float:
    kept_count = kept("density", density) * domain.whole("count", count, 1)
    deviation = domain.real("deviation", deviation, 0.0, 0.5, open_low=True, open_high=True)
    shift, variance = domain.positive("shift", shift), domain.positive("variance", variance)
    mean = 2.0 * math.exp(-(1.0 - deviation) * kept_count * shift * shift / (2.0 * variance))
    return mean + 2.0 * math.exp(-deviation * deviation * kept_count / constant)
