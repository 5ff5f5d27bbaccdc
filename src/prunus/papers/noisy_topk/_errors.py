"""Squared errors of top-k and noisy top-k gradients (N-2, N-3, N-5, N-10f, N-11).

A coordinate is normal with standard deviation sigma unless a gradient is given. "Limit" functions use large-dimension
constants, the others are exact for any dimension (B-3).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from prunus.formulas import domain, laws
from prunus.formulas.binding import claim, printed
from prunus.formulas.swap_counts import law_of
from prunus.formulas.swap_errors import error_after_swaps
from prunus.papers.noisy_topk._counts import kept_count

_NORMAL = laws.NORMAL


@claim("N-2a")
def topk_error_limit(d: int, k: float, sigma: float = 1.0) -> dict[str, float]:
    """N-2a: mean squared error of exact top-k for a long normal gradient, d sigma^2 e(1-k); slope in k."""
    d = domain.whole("d", d, 2)
    k = domain.probability("k", k, open_low=True)
    scale = d * domain.positive("sigma", sigma) ** 2
    threshold = threshold_for_kept(k)
    relative = float(_NORMAL.energy(threshold))
    return {
        "threshold": threshold,
        "squared_error": scale * relative,
        "relative": relative,
        "slope": -scale * threshold**2,
    }


@printed("N-2a")
def topk_error_limit_printed(d: int, k: float, sigma: float = 1.0) -> dict[str, float]:
    """N-2a as printed: (30) counts the factor 1-k twice."""
    right = topk_error_limit(d, k, sigma)
    return {name: (1.0 - k) * right[name] for name in ("squared_error", "relative")}


@claim("N-2c")
def topk_error_given(gradient: ArrayLike, m: int) -> float:
    """N-2c: squared error of exact top-k for a given gradient, the sum of the d-m smallest squares."""
    values = domain.array("gradient", gradient).ravel()
    return _split_energy(values, domain.whole("m", m, 0, values.size))[1]


@claim("N-3a")
def swap_slope_limit(k: float) -> float:
    """N-3a: error added by one swap of a long normal gradient over sigma^2, 2 a phi(a)/(k(1-k))."""
    k = domain.probability("k", k, open_low=True, open_high=True)
    threshold = threshold_for_kept(k)
    return threshold * float(_NORMAL.density(threshold)) / (k * (1.0 - k))


@printed("N-3a")
def swap_slope_limit_printed(k: float) -> float:
    """N-3a as printed: 1 + 2 a phi(a)/k, the error of (30) carried on."""
    return 1.0 + swap_slope_limit(k) * (1.0 - k)


@claim("N-3c")
def swap_slope_given(gradient: ArrayLike, m: int) -> dict[str, float]:
    """N-3c: error added by one random swap for a given gradient, no law assumed."""
    values = domain.array("gradient", gradient).ravel()
    if values.size < 2:
        domain.whole("length of gradient", values.size, 2)
    m = domain.whole("m", m, 1, values.size - 1)
    kept, pruned = _split_energy(values, m)
    return {"kept_energy": kept, "pruned_energy": pruned, "slope": kept / m - pruned / (values.size - m)}


@claim("N-5a")
def expected_error(d: int, m: int, theta: float, sigma: float = 1.0) -> dict[str, float]:
    """N-5a: expected squared error of noisy top-k, exact for any dimension."""
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    squared = error_after_swaps(d, m, law_of(m, d - m, theta).mean, sigma)
    return {"squared_error": squared, "relative": squared / (d * sigma**2)}


@claim("N-5b")
def expected_error_limit(d: int, k: float, theta: float, sigma: float = 1.0) -> dict[str, float]:
    """N-5b: expected squared error of noisy top-k with large-dimension constants (Theorem 3, corrected)."""
    return _limit_error(d, k, theta, sigma, topk_error_limit(d, k, sigma)["relative"], swap_slope_limit(k))


@printed("N-5b")
def expected_error_limit_printed(d: int, k: float, theta: float, sigma: float = 1.0) -> dict[str, float]:
    """N-5b as printed: the same with the printed constants of (30) and (34)."""
    constant = topk_error_limit_printed(d, k, sigma)["relative"]
    return _limit_error(d, k, theta, sigma, constant, swap_slope_limit_printed(k))


@claim("N-10f")
def total_error(d: int, m: int, theta: float, variance: float, sigma: float = 1.0) -> float:
    """N-10f: expected squared error with noisy indices and noisy values, expected_error + m variance."""
    variance = domain.real("variance", variance, 0.0)
    return expected_error(d, m, theta, sigma)["squared_error"] + m * variance


@claim("N-11f")
def error_at_local_epsilon(d: int, m: int, epsilon: float, sigma: float = 1.0) -> dict[str, float]:
    """N-11f: expected error at a fixed pure local privacy, large-dimension constants; not monotone in m: scan."""
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    theta = domain.real("epsilon", epsilon, 0.0) / (2.0 * min(m, d - m))
    return {"theta": theta} | expected_error_limit(d, m / d, theta, sigma)


@claim("N-11e")
def feasible_budget(d: int, k: float, sigma: float = 1.0) -> dict[str, float]:
    """N-11e: errors noisy top-k can reach: above that of exact top-k, up to that of a random index set."""
    k = domain.probability("k", k, open_low=True, open_high=True)
    return {
        "lowest": topk_error_limit(d, k, sigma)["squared_error"],
        "highest": int(d) * float(sigma) ** 2 * (1.0 - k),
    }


@claim("N-11d")
def best_k(variance: float, sigma: float = 1.0) -> dict[str, float]:
    """N-11d: kept fraction with the smallest error when kept values receive noise: keep what exceeds its noise."""
    variance = domain.real("variance", variance, 0.0)
    sigma = domain.positive("sigma", sigma)
    threshold = math.sqrt(variance) / sigma
    k = float(_NORMAL.tail(threshold))
    return {"k": k, "squared_error": sigma**2 * float(_NORMAL.energy(threshold)) + k * variance}


def threshold_for_kept(k: float) -> float:
    """Magnitude passed by a share k of normal coordinates, from the shorter side."""
    shorter = k <= 0.5  # tolerance
    return float(_NORMAL.tail_quantile(k) if shorter else _NORMAL.quantile(1.0 - k))


def _limit_error(d: int, k: float, theta: float, sigma: float, constant: float, slope: float) -> dict[str, float]:
    m = kept_count(d, k)
    relative = constant + slope * law_of(m, d - m, theta).mean / d
    return {"squared_error": d * sigma**2 * relative, "relative": relative}


def _split_energy(values: np.ndarray, m: int) -> tuple[float, float]:
    """Energy inside and outside the top set of m."""
    squares = np.square(values)
    if m in (0, values.size):
        return (0.0, float(squares.sum())) if m == 0 else (float(squares.sum()), 0.0)
    ordered = np.partition(squares, values.size - m)
    return float(ordered[values.size - m :].sum()), float(ordered[: values.size - m].sum())
