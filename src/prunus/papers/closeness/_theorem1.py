"""Theorem 1 (magnitude pruning of uniform weights), its repaired proof, and Theorem 1' with explicit constants.

Qian & Klabjan, Theorem 1 (P-8b, P-15, P-16, P-25a). Symbols: `spread` K of weights uniform on [-K/sqrt n, K/sqrt n],
`norm_bound` c_0, `latala` the constant C of Lemma 4, `concentration` the rate delta_0 of Lemma 3, `layers` l weight
layers of which the first and last stay unpruned, `lipschitz` one constant for every activation.
"""

from __future__ import annotations

import math

from prunus.formulas.binding import claim, printed
from prunus.formulas.closeness import theorem1_prime_difference, threshold_quantile
from prunus.formulas.domain import delta_in, positive, probability, real, whole
from prunus.formulas.norms import uniform_norm_mean_bound, uniform_norm_quantile
from prunus.formulas.numbers import elementwise
from prunus.papers.closeness._norms import uniform_norm_limit
from prunus.papers.closeness._numbers import WHOLE, floor_near, power
from prunus.papers.closeness._recursion import equal_norm_error
from prunus.papers.closeness._thresholds import pruned_threshold_mean

PRINTED = 2.0 * math.sqrt(2.0) + 24.0**0.25  # 5.0418: every entry bounded by the r-th order statistic

REPAIRED = 2.0 / math.sqrt(3.0) + 5.0**-0.25  # 1.8234: entries uniform below the threshold, given the threshold


@claim("P-8b")
@elementwise
def calibrated_condition(layers: int, confidence: float, delta: float) -> dict[str, float | bool]:
    """Condition (35) when delta_0 is read off the q-quantile at the same width: 1-q <= 2 delta/(l^2-2) (P-8b)."""
    layers = whole("layers", layers, 3)
    confidence = probability("confidence", confidence, open_low=True, open_high=True)
    largest = 2.0 * delta_in(delta) / (layers**2 - 2)
    return {"largest_failure": largest, "holds": 1.0 - confidence <= largest * (1.0 + WHOLE)}


@claim("P-15a")
@elementwise
def theorem1_constants(
    layers: int, spread: float, norm_bound: float, latala: float, concentration: float, lipschitz: float = 1.0
) -> dict[str, float]:
    """Constants c_2 and C_1 to C_5 of Theorem 1 (P-15a); they depend on K too, not only on l and L."""
    layers = whole("layers", layers, 3)
    c0 = positive("norm_bound", norm_bound)
    slope = positive("lipschitz", lipschitz)
    difference = _difference_constant(spread, latala)
    inverse = 1.0 / (4.0 * positive("concentration", concentration))
    return {
        "difference_constant": difference,
        "constant1": 1.0 / c0,
        "constant2": (power(2.0, layers - 2) - 1.0) * power(slope * c0, layers - 1),
        "constant3": (layers**2 - 2) * difference,
        "constant4": math.log(layers**2 - 2) * inverse,
        "constant5": inverse,
    }


@claim("P-15b")
@elementwise
def theorem1_probability(
    layers: int, d: int, exponent: float, spread: float, latala: float, concentration: float
) -> float:
    """Success probability p_0 of Theorem 1 as its proof counts it; negative means vacuous (P-15b)."""
    layers, difference, eta = _failures(layers, d, exponent, spread, latala, concentration)
    return (1.0 - 2.0 * eta) * (1.0 - (layers - 2) * difference - (layers + 1) * (layers - 2) * eta)


@claim("P-15c")
@elementwise
def theorem1_union_probability(
    layers: int, d: int, exponent: float, spread: float, latala: float, concentration: float
) -> float:
    """Success probability of Theorem 1 when every event is counted once (P-15c)."""
    layers, difference, eta = _failures(layers, d, exponent, spread, latala, concentration)
    return 1.0 - 2.0 * layers * eta - (layers - 2) * difference


@claim("P-15d")
@elementwise
def difference_mean_latala(rows: int, columns: int, exponent: float, spread: float, latala: float) -> float:
    """Mean norm of the pruned part by Lemma 4, after conditioning on threshold and index set (P-15d)."""
    rows, columns = whole("rows", rows, 1), whole("columns", columns, 1)
    exponent = _exponent(exponent)
    r = floor_near(float(rows * columns) ** (1.0 - exponent))
    scale = positive("latala", latala) * positive("spread", spread)
    return float(scale * REPAIRED * (r + 1) / (rows * columns + 1))


@printed("P-15d")
@elementwise
def difference_mean_latala_printed(rows: int, columns: int, exponent: float, spread: float, latala: float) -> float:
    """c_2 d^(-2 exponent) of the proof of Theorem 1, with Lemma 4 applied to dependent entries."""
    d = min(whole("rows", rows, 1), whole("columns", columns, 1))
    return float(_difference_constant(spread, latala) * d ** (-2.0 * _exponent(exponent)))


@claim("P-15e")
@elementwise
def difference_mean_explicit(rows: int, columns: int, r: int, spread: float = 1.0) -> float:
    """Mean norm of the r pruned entries with the explicit constant of Lemma 3' (P-15e)."""
    mean = uniform_norm_mean_bound(rows, columns, spread)
    return mean * pruned_threshold_mean(rows * columns, r)


@claim("P-15f")
@elementwise
def difference_mean_jensen(n: int, r: int, norm_mean: float) -> float:
    """Mean norm of the pruned part from that of the layer: masking is a conditional expectation (P-15f)."""
    n = whole("n", n, 1)
    r = whole("r", r, 0, n)
    return real("norm_mean", norm_mean, 0.0) * (r + 1) / (n + 1)


@claim("P-15g")
@elementwise
def difference_norm_heuristic(rows: int, columns: int, r: int, spread: float = 1.0) -> float:
    """Estimate (not a bound) of the pruned part's norm; good when r is ten times the larger dimension (P-15g)."""
    limit = uniform_norm_limit(rows, columns, spread)
    n = rows * columns
    return float(limit * (whole("r", r, 0, n - 1) / n) ** 1.5)


@claim("P-16c")
@elementwise
def theorem1_prime_error(
    d: int, layers: int, pruned: int, delta: float, spread: float = 1.0, lipschitz: float = 1.0
) -> dict[str, float]:
    """Error bound of Theorem 1' for square layers with `pruned` weights removed from each inner one (P-16c).

    delta is split: half over the l norms, a quarter over the thresholds, a quarter over the concentration.
    """
    d, layers = whole("d", d, 2), whole("layers", layers, 3)
    pruned = whole("pruned", pruned, 0, d * d - 1)
    part = delta_in(delta) / (4.0 * (layers - 2))
    norm_bound = uniform_norm_quantile(d, d, delta / (2.0 * layers), spread)
    threshold = threshold_quantile(d * d, pruned, part, spread / math.sqrt(d))
    difference = theorem1_prime_difference(d, d, threshold, part)
    return {
        "norm_bound": norm_bound,
        "threshold": threshold,
        "difference": difference,
        "error": equal_norm_error(norm_bound, difference, layers, lipschitz),
    }


@claim("P-16d")
@elementwise
def theorem1_prime_pruned(
    d: int, layers: int, error: float, delta: float, spread: float = 1.0, lipschitz: float = 1.0
) -> dict[str, float]:
    """Largest number of weights per inner layer whose removal Theorem 1' allows, 0 if none (P-16d)."""
    d, error = whole("d", d, 2), positive("error", error)

    def allowed(pruned: int) -> bool:
        return theorem1_prime_error(d, layers, pruned, delta, spread, lipschitz)["error"] <= error

    low, high = 0, d * d - 1  # the error grows with the number pruned
    if allowed(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return {"pruned": low, "sparsity": low / d**2}


@claim("P-16f")
@elementwise
def theorem1_pruned(
    d: int,
    layers: int,
    error: float,
    delta: float,
    spread: float,
    norm_bound: float,
    latala: float,
    concentration: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """Number of weights per inner layer that Theorem 1 allows to prune at width d (P-16f)."""
    d = whole("d", d, 2)
    need, norm_width = _theorem1_needs(layers, error, delta, spread, norm_bound, latala, concentration, lipschitz)
    exponent = max(0.0, math.log(max(need)) / math.log(d))
    admissible = exponent < 1.0 and d >= norm_width
    return {"exponent": exponent, "pruned": floor_near(float(d) ** (2.0 - 2.0 * exponent)) if admissible else 0}


@claim("P-25a")
@elementwise
def theorem1_width(
    layers: int,
    exponent: float,
    error: float,
    delta: float,
    spread: float,
    norm_bound: float,
    latala: float,
    concentration: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """Width that Theorem 1 requires at a given exponent (P-25a)."""
    exponent = _exponent(exponent)
    need, norm_width = _theorem1_needs(layers, error, delta, spread, norm_bound, latala, concentration, lipschitz)
    first, by_error, by_failure = (power(value, 1.0 / exponent) for value in need)
    return {
        "width": max(first, by_error, by_failure, norm_width),
        "error_width": by_error,
        "failure_width": by_failure,
        "norm_width": norm_width,
    }


def _theorem1_needs(
    layers: int,
    error: float,
    delta: float,
    spread: float,
    norm_bound: float,
    latala: float,
    concentration: float,
    lipschitz: float,
) -> tuple[tuple[float, float, float], float]:
    """What d^exponent must reach (C_1, C_2/error, C_3/delta), and the width of the norm bounds."""
    c = theorem1_constants(layers, spread, norm_bound, latala, concentration, lipschitz)
    delta = delta_in(delta)
    need = (c["constant1"], c["constant2"] / positive("error", error), c["constant3"] / delta)
    return need, c["constant4"] - c["constant5"] * math.log(delta)


def _failures(
    layers: int, d: int, exponent: float, spread: float, latala: float, concentration: float
) -> tuple[int, float, float]:
    """Layers, failure of one difference bound (Markov), failure of one norm bound over two."""
    layers, d = whole("layers", layers, 3), whole("d", d, 1)
    difference = _difference_constant(spread, latala) * d ** -_exponent(exponent)
    return layers, difference, math.exp(-4.0 * positive("concentration", concentration) * d)


def _difference_constant(spread: float, latala: float) -> float:
    return float(positive("latala", latala) * positive("spread", spread) * PRINTED)


def _exponent(exponent: float) -> float:
    return probability("exponent", exponent, open_low=True, open_high=True)
