"""Norms of random matrices: the quantiles that certificates use."""

from __future__ import annotations

import math

from prunus.formulas.binding import claim
from prunus.formulas.domain import positive, probability, real, whole
from prunus.formulas.numbers import elementwise

# U[-b,b] lies below a normal with this many b as standard deviation in convex order (equal mean excess at 0).
CONVEX = math.sqrt(2.0 * math.pi) / 4.0


@claim("P-7c")
@elementwise
def uniform_norm_mean_bound(rows: int, columns: int, spread: float = 1.0) -> float:
    """Explicit bound on the mean norm of a uniform matrix, 8.5 % above the limit when square (Lemma 3', P-7c)."""
    return CONVEX * positive("spread", spread) * sides(rows, columns)


@claim("P-7e")
@elementwise
def uniform_norm_quantile(rows: int, columns: int, delta: float, spread: float = 1.0) -> float:
    """Norm bound of a uniform matrix that fails with probability at most delta (Lemma 3', P-7e)."""
    mean = uniform_norm_mean_bound(rows, columns, spread)
    return mean + spread * math.sqrt(8.0 * log_inverse(delta) / larger_side(rows, columns))


@claim("P-16e")
@elementwise
def normal_norm_quantile(rows: int, columns: int, sigma: float, delta: float) -> float:
    """Norm bound of a normal matrix that fails with probability at most delta (Gordon, P-16e)."""
    sides = math.sqrt(whole("rows", rows, 1)) + math.sqrt(whole("columns", columns, 1))
    return positive("sigma", sigma) * (sides + math.sqrt(2.0 * log_inverse(delta)))


@claim("P-24a")
@elementwise
def mean_component_norm(mean: float, variance: float, rows: int, columns: int) -> dict[str, float]:
    """Norm of the rank-one part that a non-zero mean adds, beside the norm of the bulk (Table 1, P-24a)."""
    rows, columns = whole("rows", rows, 1), whole("columns", columns, 1)
    deviation = math.sqrt(real("variance", variance, 0.0))
    return {
        "mean_norm": abs(real("mean", mean)) * math.sqrt(rows * columns),
        "bulk_norm": deviation * (math.sqrt(rows) + math.sqrt(columns)),
    }


@claim("P-24b")
@elementwise
def glorot_variance(fan_in: int, fan_out: int) -> float:
    """Variance of Glorot initialization, 2/(fan_in+fan_out) (App. D.1 corrected, P-24b)."""
    return 2.0 / (whole("fan_in", fan_in, 1) + whole("fan_out", fan_out, 1))


def larger_side(rows: int, columns: int) -> int:
    return max(whole("rows", rows, 1), whole("columns", columns, 1))


def sides(rows: int, columns: int) -> float:
    """(sqrt rows + sqrt columns)/sqrt(larger): 2 for a square matrix."""
    larger = larger_side(rows, columns)
    return (math.sqrt(rows) + math.sqrt(columns)) / math.sqrt(larger)


def log_inverse(delta: float) -> float:
    return -math.log(probability("delta", delta, open_low=True, open_high=True))
