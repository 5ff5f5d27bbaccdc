"""Integer weights of the laws that are drawn from: swaps, the two-level rule, discrete Gaussian and Laplace noise."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from functools import lru_cache

from prunus.formulas.swap_counts import published_theta
from prunus.formulas.swap_law import SwapLaw
from prunus.formulas.two_level import two_level_rule
from prunus.private.exact_sampling import BITS, REACH, Ratio, Side, Table

_PRECISION = 448  # bits of the ratios of the noise laws
# The two-level rule gives up this relative part of exp(epsilon) to cover the rounding of the weights.
_SLACK_BITS = 64


@lru_cache(maxsize=64)
def used_odds(theta: float) -> tuple[int, int, float]:
    """(Q, W, theta'): exp(-2 theta) rounded up to Q / 2^W, and the theta' <= theta that this stands for (N-12c)."""
    bits = BITS + math.ceil(2.0 * theta / math.log(2.0))
    used = published_theta(theta, bits)
    return used["integer"], bits, used["theta"]


def _swap_ratios(m: int, others: int, odds: int, bits: int) -> tuple[Ratio, Ratio]:
    def down(i: int) -> tuple[int, int]:
        return (i * i) << bits, (m - i + 1) * (others - i + 1) * odds

    def up(i: int) -> tuple[int, int]:
        return (m - i) * (others - i) * odds, ((i + 1) * (i + 1)) << bits

    return down, up


@lru_cache(maxsize=32)
def swap_table(m: int, others: int, theta: float) -> Table:
    """The swap law (N-4).

    Weights below the mode are rounded down and those above up: with f(i) the weight of one index set, f(i) / f(i+1)
    never exceeds 2^W / Q, so one swap costs at most 2 theta'. (At theta = 0 itself rounding leaves 2^-100.)
    """
    odds, bits, _ = used_odds(theta)
    mode = SwapLaw(m, others, theta).mode
    below, above = _swap_ratios(m, others, odds, bits)
    start = 1 << BITS
    down = Side(mode, start, -1, below)
    up = Side(mode, start, 1, above, upward=True)
    return Table(mode, down, up, 1 << (BITS - REACH))


@lru_cache(maxsize=32)
def two_level_table(m: int, others: int, epsilon: float) -> Table:
    """Swaps under the two-level rule (N-9b): a random index set, exp(epsilon) times likelier from an overlap on."""
    last = m - two_level_rule(m + others, m, epsilon)["level"]
    with decimal.localcontext() as context:
        extra = math.ceil(epsilon / math.log(2.0)) + 1
        context.prec = (BITS + extra) // 3 + 40
        raised = decimal.Decimal(epsilon).exp() * (1 - decimal.Decimal(2) ** -_SLACK_BITS)
        high = max(int((raised * (1 << BITS)).to_integral_value(decimal.ROUND_FLOOR)), 1 << BITS)

    def multiplier(i: int) -> int:
        return high if i <= last else 1 << BITS

    mode = SwapLaw(m, others, 0.0).mode
    below, above = _swap_ratios(m, others, 1, 0)
    start = 1 << (BITS + extra)
    down = Side(mode, start, -1, below, multiplier=multiplier, top=high)
    up = Side(mode, start, 1, above, multiplier=multiplier, top=multiplier(mode))
    return Table(mode, down, up, 1 << (2 * BITS + extra - REACH))


@lru_cache(maxsize=32)
def gaussian_table(sigma: Fraction) -> Table:
    """Discrete Gaussian on the integers, weight exp(-x^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020)."""
    first = _exponential(-1 / (2 * sigma * sigma))
    factor = _exponential(-1 / (sigma * sigma))
    known = [first]

    def ratio(x: int) -> tuple[int, int]:
        x = abs(x)
        while len(known) <= x:
            known.append(known[-1] * factor >> _PRECISION)
        return known[x], 1 << _PRECISION

    return _symmetric(ratio)


@lru_cache(maxsize=32)
def laplace_table(scale: Fraction) -> Table:
    """Discrete Laplace on the integers, weight exp(-|x| / scale)."""
    factor = _exponential(-1 / scale)
    return _symmetric(lambda x: (factor, 1 << _PRECISION))


def _symmetric(ratio: Ratio) -> Table:
    start = 1 << BITS
    return Table(0, Side(0, start, -1, ratio), Side(0, start, 1, ratio), 1 << (BITS - REACH))


def _exponential(exponent: Fraction) -> int:
    """exp(exponent) 2^_PRECISION, rounded up: tails slightly heavier, never lighter."""
    with decimal.localcontext() as context:
        context.prec = _PRECISION // 3 + 60
        value = (decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)).exp()
        return int((value * (1 << _PRECISION)).to_integral_value(decimal.ROUND_CEILING))
