"""Tail bounds used in the proofs of the pruned kernel's limit, beside the exact probabilities (K-11 to K-16).

Bounds on probabilities are not capped at 1, so that they can be compared with the paper's.
"""

from __future__ import annotations

import math

from scipy import special

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.tangent import decimal

_ROUNDING = 1e-9  # tolerance

_TERMS = 14  # tolerance


@claim("K-11a")
def chernoff_bound(probability: float, count: int, deviation: float) -> float:
    """K-11a (Theorem 9.1, repaired): P(|X - pm| >= eps pm) <= 2 exp(-min(eps^2, eps) pm / 3), X binomial."""
    return 2 * math.exp(-_printed_exponent(probability, count, deviation) / 3)


@printed("K-11a")
def chernoff_bound_printed(probability: float, count: int, deviation: float) -> float:
    """K-11a as printed, without the factor 1/3: violated for small p."""
    return 2 * math.exp(-_printed_exponent(probability, count, deviation))


@claim("K-11b")
def binomial_deviation_tail(probability: float, count: int, deviation: float) -> float:
    """K-11b: P(|X - pm| >= eps pm) exactly, thresholds found in rational arithmetic on the decimals as written."""
    p, m, eps = _binomial_arguments(probability, count, deviation)
    return deviation_tail(p, m, eps)


@claim("K-11c")
def hoeffding_deviation_bound(probability: float, count: int, deviation: float) -> float:
    """K-11c: Hoeffding's 2 exp(-2 p^2 eps^2 m) for the same event; implies the paper's where p >= 1/2 and eps <= 1."""
    p, m, eps = _binomial_arguments(probability, count, deviation)
    return 2 * math.exp(-2 * (p * eps) ** 2 * m)


@claim("K-11d")
def poisson_exponent(deviation: float) -> float:
    """K-11d: (1 + eps) ln(1 + eps) - eps, about eps^2 / 2, free of cancellation for small eps."""
    eps = domain.real("deviation", deviation, 0.0)
    if eps > 0.05:  # tolerance
        return (1 + eps) * math.log1p(eps) - eps
    # sum over k >= 2 of (-eps)^k / (k (k - 1)); twelve terms leave less than 1e-17 of the first.
    return sum((-eps) ** k / (k * (k - 1)) for k in range(_TERMS, 1, -1))


@claim("K-12")
def subgamma_exponent(sigma: float, scale: float, deviation: float) -> dict[str, float]:
    """K-12 (Theorem 9.3, repaired): t^2 / (2 (sigma^2 + c t)) and its simple lower bound."""
    sigma, scale, t = _subgamma_arguments(sigma, scale, deviation)
    simple = min(t * t / (4 * sigma * sigma), t / (4 * scale) if scale else math.inf)
    return {"tail_exponent": t * t / (2 * (sigma * sigma + scale * t)), "simple": simple}


@printed("K-12")
def subgamma_exponent_printed(sigma: float, scale: float, deviation: float) -> float:
    """K-12 as printed: min(t^2 / (2 sigma^2), t / c), too strong by a constant."""
    sigma, scale, t = _subgamma_arguments(sigma, scale, deviation)
    return min(t * t / (2 * sigma * sigma), t / scale if scale else math.inf)


@claim("K-13a")
def chaos_deviation(frobenius: float, spectral: float, t: float) -> dict[str, float]:
    """K-13a (Lemma 9.4, first form): the chaos xi' A xi leaves its mean by this with chance 2 exp(-t) at most."""
    f, a = _chaos_norms(frobenius, spectral)
    t = domain.real("t", t, 0.0)
    return {"deviation": 2 * f * math.sqrt(t) + 2 * a * t, "bound": 2 * math.exp(-t)}


@claim("K-13b")
def chaos_bound(frobenius: float, spectral: float, deviation: float) -> float:
    """K-13b (Lemma 9.4, second form, repaired): 2 exp(-s^2 / (4 F^2 + 4 A s))."""
    f, a = _chaos_norms(frobenius, spectral)
    s = domain.real("deviation", deviation, 0.0)
    return 2 * math.exp(-s * s / (4 * f * f + 4 * a * s))


@printed("K-13b")
def chaos_bound_printed(frobenius: float, spectral: float, deviation: float) -> float:
    """K-13b as printed, A s for 4 A s: violated by the identity matrix."""
    f, a = _chaos_norms(frobenius, spectral)
    s = domain.real("deviation", deviation, 0.0)
    return 2 * math.exp(-s * s / (4 * f * f + a * s))


@claim("K-13c")
def inverted_chaos_bound(frobenius: float, spectral: float, deviation: float) -> dict[str, float]:
    """K-13c: the first form solved for its exponent, (sqrt(F^2 + 2 A s) - F)^2 / (4 A^2), free of cancellation."""
    f, a = _chaos_norms(frobenius, spectral)
    s = domain.real("deviation", deviation, 0.0)
    exponent = (s / (math.sqrt(f * f + 2 * a * s) + f)) ** 2
    return {"tail_exponent": exponent, "bound": 2 * math.exp(-exponent)}


@claim("K-13d")
def identity_chaos_tail(n: int, deviation: float) -> float:
    """K-13d: P(|chi-squared with n degrees - n| > deviation), the chaos of the identity matrix."""
    n, s = domain.whole("n", n, 1), domain.real("deviation", deviation, 0.0)
    return float(special.chdtrc(n, n + s) + special.chdtr(n, max(n - s, 0.0)))


@claim("K-14b")
def unbalanced_row_probability(width: int, density: float, deviation: float, rows: int) -> dict[str, float]:
    """K-14b: exact chance that one mask row, or at least one of all rows, misses its share by `deviation`."""
    width, rows = domain.whole("width", width, 1), domain.whole("rows", rows, 1)
    density = domain.probability("density", density, open_low=True)
    row = deviation_tail(density, width, domain.positive("deviation", deviation))
    some = -math.expm1(rows * math.log1p(-row)) if row < 1 else 1.0
    return {"row": row, "probability": some}


@claim("K-15")
def gaussian_output_bound(delta: float, norm_squared: float = 2.0) -> dict[str, float]:
    """K-15 (Lemma 9.16, repaired): a centred Gaussian of this variance exceeds `bound` with chance delta at most."""
    delta = domain.probability("delta", delta, open_low=True, open_high=True)
    variance = domain.positive("norm_squared", norm_squared)
    bound = math.sqrt(2 * variance * math.log(2 / delta))
    return {"bound": bound, "failure": math.erfc(bound / math.sqrt(2 * variance))}


@printed("K-15")
def gaussian_output_bound_printed(delta: float, norm_squared: float = 2.0) -> dict[str, float]:
    """K-15 as printed: the bound for variance 1, with its true failure at the given variance."""
    variance = domain.positive("norm_squared", norm_squared)
    bound = gaussian_output_bound(delta, 1.0)["bound"]
    return {"bound": bound, "failure": math.erfc(bound / math.sqrt(2 * variance))}


@claim("K-16")
def half_space_moments(norm: float) -> dict[str, float]:
    """K-16 (Proposition 5.5): moments of (w'x)^2 1(w'y > 0); the indicator is a fair coin independent of (w'x)^2."""
    square = domain.real("norm", norm, 0.0) ** 2
    return {"mean": square / 2, "second_moment": 3 * square**2 / 2, "zero_probability": 0.5}


def deviation_tail(p: float, m: int, eps: float) -> float:
    """P(|X - pm| >= eps pm) for X binomial(m, p), 0 < p <= 1."""
    if eps == 0:
        return 1.0
    mean, share = decimal(p) * m, decimal(eps)
    low, high = math.floor((1 - share) * mean), math.ceil((1 + share) * mean)
    below = float(special.betainc(m - low, low + 1, 1 - p)) if low >= 0 else 0.0
    above = float(special.betainc(high, m - high + 1, p)) if high <= m else 0.0
    return below + above


def _binomial_arguments(probability: float, count: int, deviation: float) -> tuple[float, int, float]:
    p = domain.probability("probability", probability, open_low=True, open_high=True)
    return p, domain.whole("count", count, 1), domain.real("deviation", deviation, 0.0)


def _printed_exponent(probability: float, count: int, deviation: float) -> float:
    p, m, eps = _binomial_arguments(probability, count, deviation)
    return min(eps * eps, eps) * p * m


def _subgamma_arguments(sigma: float, scale: float, deviation: float) -> tuple[float, float, float]:
    return (
        domain.positive("sigma", sigma),
        domain.real("scale", scale, 0.0),
        domain.real("deviation", deviation, 0.0),
    )


def _chaos_norms(frobenius: float, spectral: float) -> tuple[float, float]:
    f, a = domain.positive("frobenius", frobenius), domain.positive("spectral", spectral)
    if a > f * (1 + _ROUNDING):
        raise BadInput(f"spectral must lie in (0, frobenius], got {a!r} above {f!r}.")
    return f, a
