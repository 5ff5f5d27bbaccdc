"""Small numerical tools of this paper's formulas: exact counts, the Chernoff rate, ratios of Gamma functions, moments.

Everything here avoids the difference of two large numbers: log Gamma(1e9) is about 2e10, so a plain difference of two
of them would leave five digits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.numbers import reals

_ROUNDING = 1e-9  # tolerance

# Terms of the series of the Chernoff rate: the first left out is below 1e-18 of the sum.
_TERMS = 13  # tolerance

# A value this close (relatively) to a whole number is that number, spoiled by rounding.
WHOLE = 1e-12  # tolerance


def floor_near(x: float) -> int:
    """Floor of x, where x within a relative 1e-12 of a whole number counts as that number."""
    nearest = round(x)
    return nearest if abs(nearest - x) <= WHOLE * abs(nearest) else math.floor(x)


def ceil_near(x: float) -> int:
    """Ceiling of x, where x within a relative 1e-12 of a whole number counts as that number."""
    nearest = round(x)
    return nearest if abs(nearest - x) <= WHOLE * abs(nearest) else math.ceil(x)


def power(base: float, exponent: float) -> float:
    """base^exponent for base >= 0, infinite where it passes every float."""
    try:
        result: float = float(base) ** exponent
        return result
    except OverflowError:
        return math.inf


def excess_power(x: float, exponent: float) -> float:
    """(1+x)^exponent - 1 for x >= 0 without cancellation, infinite where it passes every float."""
    try:
        return math.expm1(exponent * math.log1p(x))
    except OverflowError:
        return math.inf


def grown(base: float, steps: int, x: float, layers: int) -> float:
    """base^steps ((1+x)^layers - 1) for base > 0 and x > 0; by logarithms where a factor alone passes every float."""
    falling, rising = power(base, steps), power(2.0, layers) - 1.0 if x == 1.0 else excess_power(x, layers)
    if falling > 0.0 and math.isfinite(falling) and math.isfinite(rising):
        return falling * rising
    growth = layers * math.log1p(x)
    return power(math.e, steps * math.log(base) + growth + math.log(-math.expm1(-growth)))


def rate(x: float) -> float:
    """(1+x)log(1+x)-x for x >= -1, to full relative precision near 0 too (the Chernoff rate)."""
    if x == -1.0:
        return 1.0
    if abs(x) > 0.02:  # tolerance
        return (1.0 + x) * math.log1p(x) - x
    term, total = x * x, 0.0
    for k in range(2, _TERMS):  # x^k (-1)^k / (k(k-1))
        total += term / (k * (k - 1))
        term *= -x
    return total


def stirling(z: float) -> float:
    """log Gamma(z+1) minus Stirling's (z+1/2)log z - z + log(2 pi)/2."""
    if z < 16.0:  # tolerance
        return math.lgamma(z + 1.0) - ((z + 0.5) * math.log(z) - z + 0.5 * math.log(2.0 * math.pi))
    w = 1.0 / (z * z)
    return (1.0 / 12.0 - w * (1.0 / 360.0 - w * (1.0 / 1260.0 - w / 1680.0))) / z


def log_gamma_ratio(z: float, shift: float) -> float:
    """log Gamma(z+shift) - log Gamma(z) for z > 0, z+shift > 0, without cancellation for large z."""
    if z < 16.0:  # tolerance
        return math.lgamma(z + shift) - math.lgamma(z)
    # Gamma(z) = Gamma(z+1)/z turns both into Stirling's form; the leading terms combine to shift log z + z rate.
    return shift * math.log(z) + z * rate(shift / z) - 0.5 * math.log1p(shift / z) + stirling(z + shift) - stirling(z)


def wholes(name: str, value: ArrayLike, low: int, *, length: int | None = None) -> NDArray[np.float64]:
    """A list of whole numbers, each at least `low`."""
    numbers = reals(name, value, low, length=length)
    if (numbers != np.floor(numbers)).any():
        raise BadInput(f"{name} must hold whole numbers of at least {low}, got {numbers[numbers % 1 != 0][0]:g}.")
    return numbers


def fourth_moment(second: float, fourth: float) -> tuple[float, float]:
    """Second and fourth moment constants, checked against Jensen's fourth >= second^2 (up to rounding)."""
    second = domain.positive("second", second)
    fourth = domain.positive("fourth", fourth)
    if fourth < second * second * (1.0 - _ROUNDING):
        raise BadInput(f"fourth must be a finite number of at least second^2 = {second * second:.10g}, got {fourth!r}.")
    return second, fourth
