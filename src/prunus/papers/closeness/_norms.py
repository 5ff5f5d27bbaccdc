"""Norms of random matrices: uniform, normal, and masked ones (Qian & Klabjan, lemmas 2, 3 and 4, Tables 1 to 3).

`spread` is the K of entries uniform on [-K/sqrt(n), K/sqrt(n)] with n the larger dimension; `delta` is a failure
probability; `load` is the largest number of pruned entries in a row or column. Norms are spectral.
"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from prunus.errors import BadInput
from prunus.formulas.binding import claim, printed
from prunus.formulas.domain import array, positive, real, whole
from prunus.formulas.norms import CONVEX, larger_side, log_inverse, sides
from prunus.formulas.numbers import elementwise
from prunus.papers.closeness._numbers import floor_near, fourth_moment


@claim("P-7a")
@elementwise
def uniform_variance_proxy(half_width: float) -> float:
    """Sub-Gaussian variance proxy of U[-half_width, half_width], equal to its variance (Lemma 2, P-7a)."""
    return positive("half_width", half_width) ** 2 / 3.0


@claim("P-7b")
@elementwise
def lemma3_norm_bound(n: int, spread: float, constant: float, concentration: float) -> dict[str, float]:
    """Lemma 3 as printed, with its unspecified constants (P-7b): 2K(constant+1)/sqrt 3 fails with 2exp(-4 rate n)."""
    n = whole("n", n, 1)
    spread, constant = positive("spread", spread), positive("constant", constant)
    return {
        "norm_bound": 2.0 * spread * (constant + 1.0) / math.sqrt(3.0),
        "failure": 2.0 * math.exp(-4.0 * positive("concentration", concentration) * n),
    }


@claim("P-7d")
@elementwise
def uniform_norm_tail(rows: int, columns: int, excess: float, spread: float = 1.0) -> float:
    """P(norm > mean norm + excess) of a uniform matrix is at most this (Lemma 3', P-7d)."""
    n = larger_side(rows, columns)
    return math.exp(-n * real("excess", excess, 0.0) ** 2 / (8.0 * positive("spread", spread) ** 2))


@claim("P-7f")
@elementwise
def convex_order_gap(x: float, half_width: float = 1.0) -> float:
    """E(N-x)_+ - E(U-x)_+ >= 0 for the uniform U and the normal N that dominates it in convex order (P-7f).

    For x <= b the leading terms b/4 cancel exactly; what remains is written without them.
    """
    x = real("x", x, 0.0)
    half_width = positive("half_width", half_width)
    sigma = half_width * CONVEX
    z = x / sigma
    if x <= half_width:
        centre = half_width / 4.0 * math.expm1(-z * z / 2.0)
        return centre + x / 2.0 * math.erf(z / math.sqrt(2.0)) - x * x / (4.0 * half_width)
    density = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
    return sigma * density - x / 2.0 * math.erfc(z / math.sqrt(2.0))


@claim("P-8a")
@elementwise
def concentration_from_quantile(n: int, confidence: float) -> float:
    """The rate delta_0 = log(2/(1-q))/(4n) that taking the q-quantile as norm bound implies (Table 2, P-8a)."""
    n = whole("n", n, 1)
    confidence = real("confidence", confidence, -1.0, 1.0, open_low=True, open_high=True)
    return math.log(2.0 / (1.0 - confidence)) / (4.0 * n)


@claim("P-8c")
@elementwise
def uniform_norm_limit(rows: int, columns: int, spread: float = 1.0) -> float:
    """Limit of the mean norm of a large uniform matrix, approached from below (P-8c)."""
    return positive("spread", spread) * sides(rows, columns) / math.sqrt(3.0)


@claim("P-9a")
def latala_bound(second: ArrayLike, fourth: ArrayLike, latala: float = 1.0) -> dict[str, float]:
    """Lemma 4: C times (largest row term + largest column term + fourth-moment term) bounds the mean norm (P-9a).

    `second` and `fourth` are matrices of entrywise moments, shape (rows, columns); entries must be independent.
    """
    m2, m4 = array("second", second, 2), array("fourth", fourth, 2)
    if m2.shape != m4.shape:
        raise BadInput(f"second and fourth must have the same shape, got {m2.shape} and {m4.shape}.")
    if m2.min() < 0.0 or m4.min() < 0.0:
        raise BadInput("second and fourth must hold moments of at least 0, got a negative one.")
    row = math.sqrt(m2.sum(axis=1).max())
    column = math.sqrt(m2.sum(axis=0).max())
    return _latala(row, column, float(m4.sum()) ** 0.25, latala)


@claim("P-9b")
@elementwise
def latala_iid_bound(rows: int, columns: int, second: float, fourth: float, latala: float = 1.0) -> dict[str, float]:
    """Lemma 4 for identically distributed entries with the given moments (P-9b)."""
    rows, columns = whole("rows", rows, 1), whole("columns", columns, 1)
    second, fourth = real("second", second, 0.0), real("fourth", fourth, 0.0)
    if second > 0.0:
        second, fourth = fourth_moment(second, fourth)
    row, column = math.sqrt(columns * second), math.sqrt(rows * second)
    return _latala(row, column, (rows * columns * fourth) ** 0.25, latala)


@claim("P-9c")
@elementwise
def rademacher_row_ratio(n: int) -> float:
    """Norm over Lemma 4's three terms for one row of n random signs: no universal constant is smaller (P-9c)."""
    root = math.sqrt(whole("n", n, 1))
    return root / (root + 1.0 + math.sqrt(root))


@claim("P-9d")
@elementwise
def latala_limit(kurtosis: float) -> float:
    """Norm over Lemma 4's three terms for a large square matrix with independent, equal entries (P-9d)."""
    return float(2.0 / (2.0 + real("kurtosis", kurtosis, 1.0) ** 0.25))


@claim("P-9e")
@elementwise
def random_mask_terms(
    d: int, exponent: float, kurtosis: float = 3.0, replacement: bool = True, kept: bool = False
) -> dict[str, float]:
    """Lemma 4's terms for a d x d matrix of variance 1/d under a random mask of floor(d^(2-exponent)) draws (P-9e).

    Equation (19) needs the pruned entries; Table 3 was computed for the kept ones (`kept=True`).
    """
    d = whole("d", d, 2)
    exponent = real("exponent", exponent, 0.0, 2.0)
    kurtosis = real("kurtosis", kurtosis, 1.0)
    draws = floor_near(d ** (2.0 - exponent))
    log_kept = draws * math.log1p(-1.0 / d**2) if replacement else 0.0
    if replacement:
        fraction = math.exp(log_kept) if kept else -math.expm1(log_kept)
    else:
        fraction = (d**2 - draws if kept else draws) / d**2
    return {
        "fraction": fraction,
        "row_term": math.sqrt(fraction),
        "fourth_term": (kurtosis * fraction) ** 0.25,
    }


@printed("P-9e")
@elementwise
def random_mask_terms_printed(
    d: int, exponent: float, kurtosis: float = 3.0, replacement: bool = True, kept: bool = False
) -> dict[str, float]:
    """The terms behind Table 3: those of the unpruned entries, whatever `kept` says."""
    del kept
    return random_mask_terms(d, exponent, kurtosis, replacement, kept=True)


@claim("P-9f")
@elementwise
def series_tail(rows: int, columns: int, sigma: float, load: int, excess: float) -> float:
    """P(norm >= excess) of a masked sub-Gaussian matrix, from the matrix series bound (P-9f)."""
    variance = _series_variance(sigma, load)
    dimension = _dimension(rows, columns)
    return min(1.0, dimension * math.exp(-(real("excess", excess, 0.0) ** 2) / (2.0 * variance)))


@claim("P-9g")
@elementwise
def series_norm_mean(rows: int, columns: int, sigma: float, load: int) -> float:
    """Mean norm of a masked Gaussian matrix, from the matrix series bound (P-9g)."""
    return math.sqrt(2.0 * _series_variance(sigma, load) * math.log(_dimension(rows, columns)))


@claim("P-9h")
@elementwise
def series_norm_quantile(rows: int, columns: int, sigma: float, load: int, delta: float) -> float:
    """Norm of a masked sub-Gaussian matrix that is exceeded with probability at most delta (P-9h)."""
    log_union = math.log(_dimension(rows, columns)) + log_inverse(delta)
    return math.sqrt(2.0 * _series_variance(sigma, load) * log_union)


@claim("P-9i")
@elementwise
def schur_bound(largest: float, row_load: int, column_load: int) -> float:
    """Deterministic norm bound from the largest magnitude and the counts per row and column (Schur, P-9i)."""
    row_load, column_load = whole("row_load", row_load, 0), whole("column_load", column_load, 0)
    return real("largest", largest, 0.0) * math.sqrt(row_load * column_load)


@printed("P-24b")
@elementwise
def glorot_variance_printed(fan_in: int, fan_out: int) -> float:
    """What App. D.1 calls the Glorot variance: the squared half-width of the uniform law, three times too large."""
    return 6.0 / (whole("fan_in", fan_in, 1) + whole("fan_out", fan_out, 1))


def _dimension(rows: int, columns: int) -> int:
    return whole("rows", rows, 1) + whole("columns", columns, 1)


def _series_variance(sigma: float, load: int) -> float:
    return positive("sigma", sigma) ** 2 * whole("load", load, 1)


def _latala(row: float, column: float, fourth: float, latala: float) -> dict[str, float]:
    bound = positive("latala", latala) * (row + column + fourth)
    return {"bound": bound, "row_term": row, "column_term": column, "fourth_term": fourth}


@claim("P-36")
@elementwise
def subgaussian_norm_tail(rows: int, columns: int, deviation: float, proxy: float = 1.0) -> dict[str, float]:
    """Norm of a matrix of independent sub-Gaussian entries: Lemma 2 with its two constants as numbers (P-36).

    Nets of mesh 1/4 on both spheres (9^rows and 9^columns points) give |A| <= 2 max x.A y, each sub-Gaussian: the norm
    exceeds proxy (2 sqrt(2 ln 9 (rows + columns)) + deviation) with probability at most exp(-deviation^2 / 8).
    """
    sides = whole("rows", rows, 1) + whole("columns", columns, 1)
    deviation, proxy = real("deviation", deviation, 0.0), positive("proxy", proxy)
    threshold = proxy * (2.0 * math.sqrt(2.0 * math.log(9.0) * sides) + deviation)
    return {"threshold": threshold, "failure": math.exp(-(deviation**2) / 8.0)}
