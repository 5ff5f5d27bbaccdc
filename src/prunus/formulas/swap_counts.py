"""The law of the number of swaps as plain numbers, and the published odds of one swap."""

from __future__ import annotations

import decimal
from functools import lru_cache
from typing import Any

from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.swap_law import SwapLaw


@lru_cache
def _cached_law(m: int, others: int, theta: float) -> SwapLaw:
    return SwapLaw(m, others, theta)


def law_of(m: int, others: int, theta: float) -> SwapLaw:
    """The swap law at theta >= 0, remembered: curves ask for the same law again and again."""
    m = domain.whole("m", m, 1)
    others = domain.whole("others", others, 1)
    return _cached_law(m, others, domain.real("theta", theta, 0.0))


@claim("N-4")
def swap_law(m: int, others: int, theta: float) -> dict[str, float]:
    """N-4: mean and variance of the number of swaps, and log psi."""
    law = law_of(m, others, theta)
    return {"mean": law.mean, "variance": law.variance, "log_psi": law.log_psi}


@claim("N-12c")
def published_theta(theta: float, bits: int) -> dict[str, Any]:
    """N-12c: integer odds exp(-2 theta) 2^bits rounded up, and the theta they stand for; never less private."""
    theta = domain.real("theta", theta, 0.0)
    bits = domain.whole("bits", bits, 1, 1 << 16)
    with decimal.localcontext() as context:
        context.prec = bits // 3 + 40  # tolerance
        context.Emin = decimal.MIN_EMIN
        scaled = (-2 * decimal.Decimal(theta)).exp() * (1 << bits)
        integer = max(int(scaled.to_integral_value(decimal.ROUND_CEILING)), 1)
        used = (bits * decimal.Decimal(2).ln() - decimal.Decimal(integer).ln()) / 2
    return {"integer": integer, "theta": min(max(float(used), 0.0), theta)}
