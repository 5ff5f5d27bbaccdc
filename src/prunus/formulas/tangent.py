"""Widths at which a kernel is close to its limit, and the densities it takes."""

from __future__ import annotations

import math
from fractions import Fraction

from prunus.formulas import domain
from prunus.formulas.binding import claim


def decimal(value: float) -> Fraction:
    """The decimal as written: 0.1 is one tenth, not the binary fraction nearest to it."""
    return Fraction(repr(float(value)))


def kept(name: str, density: float) -> float:
    """A density: the probability of being kept, above 0."""
    return domain.probability(name, density, open_low=True)


@claim("K-18c")
def width_for_sigma(
    sigma: float, density: float, dense: float = 45.0, slope: float = 16.0, smallest_fan: float = 25.0
) -> int:
    """K-18c: smallest width with this standard deviation and an unbiased mean (density times width at least 25)."""
    sigma, density = domain.positive("sigma", sigma), kept("density", density)
    dense, slope, smallest_fan = fit_arguments(dense, slope, smallest_fan, third="smallest_fan")
    share = decimal(density)
    spread = (decimal(dense) + decimal(slope) * (1 - share) / share) / decimal(sigma) ** 2
    return max(1, math.ceil(max(spread, decimal(smallest_fan) / share)))


def fit_arguments(dense: float, slope: float, last: float, third: str = "curvature") -> tuple[float, float, float]:
    return domain.real("dense", dense, 0.0), domain.real("slope", slope, 0.0), domain.real(third, last, 0.0)
