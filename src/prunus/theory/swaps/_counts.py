"""Numbers of swaps as functions of plain numbers (N-1, N-4, N-6, N-12, N-13)."""

from __future__ import annotations

import decimal
import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from prunus.theory import _domain
from prunus.theory.swaps._law import SwapLaw, log_binomial


@lru_cache
def _cached_law(m: int, others: int, theta: float) -> SwapLaw:
    return SwapLaw(m, others, theta)


def law_of(m: int, others: int, theta: float) -> SwapLaw:
    """The swap law at theta >= 0, remembered: curves ask for the same law again and again."""
    m = _domain.whole("m", m, 1)
    others = _domain.whole("others", others, 1)
    return _cached_law(m, others, _domain.real("theta", theta, 0.0))


def index_sets(d: int, k: float) -> dict[str, int]:
    """N-1: sizes of the kept and the pruned index set, and the most swaps; the Hamming distance is twice the swaps."""
    d = _domain.whole("d", d, 2)
    m = kept_count(d, k)
    return {"m": m, "others": d - m, "most_swaps": min(m, d - m)}


def index_sets_printed(d: int, k: float) -> dict[str, int]:
    """N-1 as printed: (31) exchanges the two sizes, and the swaps run up to k d."""
    right = index_sets(d, k)
    return {"m": right["others"], "others": right["m"], "most_swaps": right["m"]}


def swap_law(m: int, others: int, theta: float) -> dict[str, float]:
    """N-4: mean and variance of the number of swaps, and log psi."""
    law = law_of(m, others, theta)
    return {"mean": law.mean, "variance": law.variance, "log_psi": law.log_psi}


def swap_probability(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-4a: probability of a number of swaps, and log probability of one index set at that distance."""
    law = law_of(m, others, theta)
    logarithm = law.log_probability(swaps)
    return {"probability": math.exp(logarithm), "log_set_probability": -2.0 * law.theta * int(swaps) - law.log_psi}


def swap_sets(m: int, others: int, swaps: int) -> int:
    """N-4b: number of index sets at a number of swaps, C(m, swaps) C(others, swaps); an exact integer."""
    m = _domain.whole("m", m, 1)
    others = _domain.whole("others", others, 1)
    swaps = _domain.whole("swaps", swaps, 0)
    return math.comb(m, swaps) * math.comb(others, swaps)


def swap_mode(m: int, others: int, theta: float) -> int:
    """N-4c: most likely number of swaps."""
    return law_of(m, others, theta).mode


def swap_saddle(m: int, others: int, theta: float) -> dict[str, float]:
    """N-4d: closed-form approximation of mean and variance of the number of swaps; the mean is exact at theta = 0."""
    mean, variance = law_of(m, others, theta).saddle
    return {"mean": mean, "variance": variance}


def flip_probability(theta: float) -> float:
    """N-4e: flip probability 1/(1 + exp(theta)) of the randomised response whose law given m ones is the index law."""
    return float(special.expit(-_domain.real("theta", theta, 0.0)))


def swap_mean_derivative(m: int, others: int, theta: float) -> float:
    """N-6: derivative of the mean number of swaps in theta, -2 Var; any real theta."""
    return -2.0 * SwapLaw(m, others, theta).variance


def swap_ratio(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-12a: ratios P(i+1)/P(i) and P(i-1)/P(i) of neighbouring swap probabilities."""
    law = law_of(m, others, theta)
    i = np.asarray(float(_domain.whole("swaps", swaps, 0, law.most)))
    with np.errstate(divide="ignore"):
        down = law.down(i) if i > 0 else 0.0
    return {"up": float(law.up(i)), "down": float(down)}


def truncation_delta(m: int, others: int, theta: float, low: int, high: int, swaps: int) -> float:
    """N-12b: DP delta to add where the swap count is cut to [low, high]: P(i > high - swaps) + P(i < low + swaps)."""
    law = law_of(m, others, theta)
    low = _domain.whole("low", low, 0)
    high = _domain.whole("high", high, low)
    swaps = _domain.whole("swaps", swaps, 0)
    return min(law.at_least(high - swaps + 1) + law.at_most(low + swaps - 1), 1.0)


def published_theta(theta: float, bits: int) -> dict[str, Any]:
    """N-12c: integer odds exp(-2 theta) 2^bits rounded up, and the theta they stand for; never less private."""
    theta = _domain.real("theta", theta, 0.0)
    bits = _domain.whole("bits", bits, 1, 1 << 16)
    with decimal.localcontext() as context:
        context.prec = bits // 3 + 40  # accuracy only
        context.Emin = decimal.MIN_EMIN
        scaled = (-2 * decimal.Decimal(theta)).exp() * (1 << bits)
        integer = max(int(scaled.to_integral_value(decimal.ROUND_CEILING)), 1)
        used = (bits * decimal.Decimal(2).ln() - decimal.Decimal(integer).ln()) / 2
    return {"integer": integer, "theta": min(max(float(used), 0.0), theta)}


def index_bits(d: int, m: int) -> float:
    """N-13: bits needed to send the index set, log2 of C(d, m)."""
    d = _domain.whole("d", d, 2)
    return log_binomial(d, _domain.whole("m", m, 0, d)) / math.log(2.0)


def kept_count(d: int, k: float) -> int:
    """k d as a whole number of kept coordinates, neither none nor all."""
    k = _domain.probability("k", k, open_low=True, open_high=True)
    return _domain.whole("k times d", _domain.count_of("k", k, d), 1, d - 1)
