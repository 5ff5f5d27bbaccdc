"""How wide a pruned network must be for its kernel to be near the limit, and its spectrum (K-10 to K-24a).

The width orders carry an unknown constant: they are orders of magnitude, never guarantees. For sizing a network use
the fluctuation model of `kernel_variance` and `width_for_sigma`, refitted by two pilot runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.tangent import decimal, fit_arguments, kept


@claim("K-10a")
def width_order(depth: int, density: float, error: float) -> dict[str, Any]:
    """K-10a (Theorem 3.5): depth^6 / (density error^4) or depth^2 / (density error)^2, the larger; constant 1."""
    depth, density, error = _order_arguments(depth, density, error)
    terms = [depth**6 / (density * error**4), depth**2 / (density * error) ** 2]
    return {"width": max(terms), "terms": terms}


@claim("K-10b")
def layer_width_order(
    layer: int, widths: Sequence[int], density: float, error: float, delta: float, constant: float = 1.0
) -> dict[str, Any]:
    """K-10b (Theorem 9.8): the same with its logarithms, for one hidden layer of widths d_1 .. d_depth, 1."""
    sizes = _widths(widths)
    depth = len(sizes) - 1
    layer, constant = domain.whole("layer", layer, 1, depth), domain.positive("constant", constant)
    _, density, error = _order_arguments(depth, density, error)
    rows = depth * sizes[layer] / domain.probability("delta", delta, open_low=True, open_high=True)
    hidden = max(1, sum(sizes[: depth - 1]))
    before = max(1, sum(sizes[: layer - 1]))
    terms = [
        constant * depth**6 / (density * error**4) * math.log(rows),
        constant * depth**2 / (density * error) ** 2 * math.log(rows * hidden),
        constant * depth**4 / (density * error**2) * math.log(2 * rows * before),
    ]
    return {"width": max(terms), "terms": terms}


@claim("K-10c")
def linear_density(depth: int, error: float) -> float:
    """K-10c: the term linear in 1/density leads the width order exactly at or above this density."""
    return domain.positive("error", error) ** 2 / domain.whole("depth", depth, 1) ** 4


@claim("K-10d")
def layer_error(depth: int, error: float) -> float:
    """K-10d: error at which Theorem 9.10 must be used layer by layer to give Theorem 9.8."""
    return domain.positive("error", error) / (3 * domain.whole("depth", depth, 1) + 1)


@claim("K-10e")
def third_term_ratio(depth: int, error: float) -> dict[str, Any]:
    """K-10e: third term of Theorem 9.8 over its first, without logarithms, and whether it may be dropped."""
    depth, error = domain.whole("depth", depth, 1), domain.positive("error", error)
    return {"ratio": (error / depth) ** 2, "negligible": error <= depth}


@claim("K-14a")
def balanced_row_width(density: float, deviation: float, delta: float, depth: int, rows: int) -> int:
    """K-14a (Lemma 9.9, repaired): width at which all rows of all masks keep their share, with constant 3.

    The exponent is min(deviation^2, deviation) / 3: beyond 1 a binomial tail falls exponentially in the deviation only.
    """
    return math.ceil(3 * _row_width(density, deviation, delta, depth, rows) * max(1.0, deviation))


@printed("K-14a")
def balanced_row_width_printed(density: float, deviation: float, delta: float, depth: int, rows: int) -> int:
    """K-14a with the constant 1 of the printed exponent: fails badly at low density."""
    return math.ceil(_row_width(density, deviation, delta, depth, rows))


@claim("K-18b")
def kernel_variance(
    width: int, density: float, dense: float = 45.0, slope: float = 16.0, curvature: float = 0.0
) -> dict[str, float]:
    """K-18b: width times variance is dense + slope z + curvature z^2 / width, z = (1 - density) / density.

    A fit, not a theorem: the defaults hold for depth 3 and angle pi/3.
    """
    width, density = domain.whole("width", width, 1), kept("density", density)
    dense, slope, curvature = fit_arguments(dense, slope, curvature)
    z = (1 - density) / density
    variance = (dense + slope * z + curvature * z * z / width) / width
    return {"mask_variance": z, "variance": variance, "sigma": math.sqrt(variance)}


@claim("K-19")
def scaled_widths(width: int, density: float) -> dict[str, int]:
    """K-19 (Figure 2): width / density and width / density^2 to the nearest whole number, halves to even."""
    width, share = domain.whole("width", width, 1), decimal(kept("density", density))
    return {"linear": round(width / share), "quadratic": round(width / share**2)}


@claim("K-21a")
def largest_stable_step(largest: float) -> float:
    """K-21a: 2 / largest eigenvalue, for full-batch gradient descent on half the squared error."""
    return 2 / domain.positive("largest", largest)


@claim("K-21b")
def steps_to_tolerance(smallest: float, largest: float, tolerance: float) -> dict[str, float]:
    """K-21b: condition number, and the estimate condition ln(1 / tolerance) of the number of steps."""
    smallest = domain.positive("smallest", smallest)
    largest = domain.real("largest", largest, smallest)
    condition = largest / smallest
    tolerance = domain.probability("tolerance", tolerance, open_low=True)
    return {"condition": condition, "steps": condition * math.log(1 / tolerance)}


@claim("K-21c")
def effective_width(width: int, density: float) -> float:
    """K-21c: density times width; below about 25 the kernel's mean is biased, near 6 the kernel becomes singular."""
    return kept("density", density) * domain.whole("width", width, 1)


@claim("K-24a")
def forward_width_order(
    depth: int, density: float, error: float, delta: float, next_width: int, constant: float = 1.0
) -> float:
    """K-24a (Theorem 5.1 / 9.11): width order for the forward covariances alone to be within `error` of Sigma.

    constant depth^2 / (density error^2) ln(18 next_width depth / delta): without the backward pass the error enters
    squared only. An order with unknown constant, as in `width_order`.
    """
    depth, density, error = _order_arguments(depth, density, error)
    delta = domain.probability("delta", delta, open_low=True, open_high=True)
    next_width, constant = domain.whole("next_width", next_width, 1), domain.positive("constant", constant)
    return constant * depth**2 / (density * error**2) * math.log(18 * next_width * depth / delta)


def _order_arguments(depth: int, density: float, error: float) -> tuple[int, float, float]:
    return domain.whole("depth", depth, 1), kept("density", density), domain.positive("error", error)


def _widths(widths: Sequence[int]) -> list[int]:
    try:
        sizes = [domain.whole("each of widths", width, 1) for width in widths]
    except TypeError:
        raise BadInput(f"widths must be a list of whole numbers, got {domain.shown(widths)}.") from None
    if len(sizes) < 2 or sizes[-1] != 1:
        raise BadInput(f"widths must list at least one hidden layer and end with the output's 1, got {sizes}.")
    return sizes


def _row_width(density: float, deviation: float, delta: float, depth: int, rows: int) -> float:
    density, deviation = kept("density", density), domain.positive("deviation", deviation)
    delta = domain.probability("delta", delta, open_low=True, open_high=True)
    all_rows = domain.whole("depth", depth, 1) * domain.whole("rows", rows, 1)
    return math.log(2 * all_rows / delta) / (density * deviation * deviation)
