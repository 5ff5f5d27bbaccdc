"""Numbers of swaps as functions of plain numbers (N-1, N-4, N-6, N-12, N-13)."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.swap_counts import law_of
from prunus.formulas.swap_law import SwapLaw, log_binomial

_ROUNDING = 1e-9  # tolerance
_MOST_SWAPS = 20_000


@claim("N-1")
def index_sets(d: int, k: float) -> dict[str, int]:
    """N-1: sizes of the kept and the pruned index set, and the most swaps; the Hamming distance is twice the swaps."""
    d = domain.whole("d", d, 2)
    m = kept_count(d, k)
    return {"m": m, "others": d - m, "most_swaps": min(m, d - m)}


@printed("N-1")
def index_sets_printed(d: int, k: float) -> dict[str, int]:
    """N-1 as printed: (31) exchanges the two sizes, and the swaps run up to k d."""
    right = index_sets(d, k)
    return {"m": right["others"], "others": right["m"], "most_swaps": right["m"]}


@claim("N-4a")
def swap_probability(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-4a: probability of a number of swaps, and log probability of one index set at that distance."""
    law = law_of(m, others, theta)
    logarithm = law.log_probability(swaps)
    return {"probability": math.exp(logarithm), "log_set_probability": -2.0 * law.theta * int(swaps) - law.log_psi}


@claim("N-4b")
def swap_sets(m: int, others: int, swaps: int) -> int:
    """N-4b: number of index sets at a number of swaps, C(m, swaps) C(others, swaps); an exact integer."""
    m = domain.whole("m", m, 1)
    others = domain.whole("others", others, 1)
    swaps = domain.whole("swaps", swaps, 0)
    if swaps > min(m, others):
        return 0
    if swaps > _MOST_SWAPS:
        raise BadInput(f"The exact integer for {swaps} swaps has too many digits: give at most {_MOST_SWAPS}, or N-4a.")
    return math.comb(m, swaps) * math.comb(others, swaps)


@claim("N-4c")
def swap_mode(m: int, others: int, theta: float) -> int:
    """N-4c: most likely number of swaps."""
    return law_of(m, others, theta).mode


@claim("N-4d")
def swap_saddle(m: int, others: int, theta: float) -> dict[str, float]:
    """N-4d: closed-form approximation of mean and variance of the number of swaps; the mean is exact at theta = 0."""
    mean, variance = law_of(m, others, theta).saddle
    return {"mean": mean, "variance": variance}


@claim("N-4e")
def flip_probability(theta: float) -> float:
    """N-4e: flip probability 1/(1 + exp(theta)) of the randomised response whose law given m ones is the index law."""
    return float(special.expit(-domain.real("theta", theta, 0.0)))


@claim("N-6")
def swap_mean_derivative(m: int, others: int, theta: float) -> float:
    """N-6: derivative of the mean number of swaps in theta, -2 Var; any real theta."""
    return -2.0 * SwapLaw(m, others, theta).variance


@claim("N-12a")
def swap_ratio(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-12a: ratios P(i+1)/P(i) and P(i-1)/P(i) of neighbouring swap probabilities."""
    law = law_of(m, others, theta)
    i = np.asarray(float(domain.whole("swaps", swaps, 0, law.most)))
    with np.errstate(divide="ignore"):
        down = law.down(i) if i > 0 else 0.0
    return {"up": float(law.up(i)), "down": float(down)}


@claim("N-12b")
def truncation_delta(m: int, others: int, theta: float, low: int, high: int, swaps: int) -> float:
    """N-12b: DP delta to add where the swap count is cut to [low, high]: P(i > high - swaps) + P(i < low + swaps).

    A window that holds every possible count cuts nothing and costs nothing.
    """
    law = law_of(m, others, theta)
    low = domain.whole("low", low, 0)
    high = domain.whole("high", high, low)
    swaps = domain.whole("swaps", swaps, 0)
    if low == 0 and high >= min(m, others):
        return 0.0
    return min(law.at_least(high - swaps + 1) + law.at_most(low + swaps - 1), 1.0)


@claim("N-13")
def index_bits(d: int, m: int) -> float:
    """N-13: bits needed to send the index set, log2 of C(d, m)."""
    d = domain.whole("d", d, 2)
    return log_binomial(d, domain.whole("m", m, 0, d)) / math.log(2.0)


def kept_count(d: int, k: float) -> int:
    """k d as a whole number of kept coordinates, neither none nor all."""
    k = domain.probability("k", k, open_low=True, open_high=True)
    return domain.whole("k times d", count_of("k", k, d), 1, d - 1)


def count_of(name: str, fraction: float, total: int) -> int:
    """`fraction` of `total` as a whole number; the product must be whole up to rounding of the fraction."""
    exact = fraction * total
    nearest = round(exact)
    if abs(exact - nearest) > _ROUNDING * max(1.0, exact):  # tolerance
        low, high = math.floor(exact) / total, math.ceil(exact) / total
        raise BadInput(
            f"{name} times {total} must be a whole number, got {exact:.6g}: the nearest admissible values are "
            f"{low!r} and {high!r}."
        )
    return nearest
