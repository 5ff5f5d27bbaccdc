"""Theorem 2 (random pruning of weights with bounded moments) and Theorem 2' with explicit constants.

Qian & Klabjan, Theorem 2 (P-17, P-18, P-24c, P-25b-d). Symbols: `second` K_1 and `fourth` K_2, the largest n E w^2 and
n^2 E w^4; `latala` the constant C of Lemma 4; `norm_bound` N_k; `layers` l weight layers, first and last unpruned.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from prunus.errors import BadInput
from prunus.formulas.binding import claim
from prunus.formulas.domain import choice, delta_in, positive, probability, real, whole
from prunus.formulas.norms import uniform_norm_quantile
from prunus.formulas.numbers import elementwise, per_layer, reals
from prunus.papers.closeness._counts import theorem2_exponent_cap
from prunus.papers.closeness._loads import load_union
from prunus.papers.closeness._norms import series_norm_quantile
from prunus.papers.closeness._numbers import fourth_moment, grown, power
from prunus.papers.closeness._recursion import equal_norm_error

_ROUNDING = 1e-15  # tolerance


@claim("P-17a")
def theorem2_constants(
    layers: int,
    norms: float | ArrayLike,
    second: float,
    fourth: float,
    latala: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """Constants c_2 and C_1 to C_4 of Theorem 2 (P-17a); they depend on K_1, K_2 too.

    The closed form doubles the error in every pruned layer, which needs N_k >= 1 there (layers 2 to l-1): below, the
    recursion itself (P-14a) is larger. C_1 is about the same layers: it makes the difference at most their norm bound.
    """
    layers = whole("layers", layers, 3)
    bounds = per_layer("norms", norms, layers, open_low=True)
    inner = bounds[1:-1]
    if inner.min() < 1.0:
        raise BadInput(
            f"norms must be at least 1 in the pruned layers 2 to {layers - 1}, where Theorem 2 doubles the error, got "
            f"{inner.min():g}: raise the bound to 1, or use the recursion (P-14a)."
        )
    slope = positive("lipschitz", lipschitz)
    with np.errstate(over="ignore"):
        constant2 = (power(2.0, layers - 2) - 1.0) * power(slope, layers - 1) * float(np.prod(bounds))
    if not 0.0 < constant2 < math.inf:  # a factor passed every float, the product may not
        mean = math.exp(float(np.log(bounds).mean()))
        constant2 = grown(slope * mean, layers - 1, 1.0, layers - 2) * mean
    difference = _moment_constant(second, fourth, latala, 3.0)
    return {
        "difference_constant": difference,
        "constant1": 1.0 / float(inner.min()),
        "constant2": constant2,
        "constant3": 3 * (layers - 2),
        "constant4": 3.0 * difference * (layers - 2),
    }


@claim("P-17b")
def theorem2_slack(delta: float, norm_failures: ArrayLike) -> dict[str, float | bool]:
    """Failure probability left for the random part of Theorem 2; it must be positive, not just non-negative (P-17b)."""
    failures = _failures(norm_failures)
    slack = delta_in(delta) - _weighted(failures)
    return {"slack": slack, "admissible": slack > _ROUNDING}


@claim("P-17c")
def theorem2_probability(
    layers: int,
    d: int,
    exponent: float,
    second: float,
    fourth: float,
    latala: float,
    norm_failures: ArrayLike | None = None,
    load_failure: float | None = None,
) -> float:
    """Success probability p_0 of Theorem 2 without the misprinted extra term; may be negative (P-17c).

    `load_failure` is the failure of one family of lines: d^(-1/3) as in Lemma 6, or the exact one of P-11a.
    """
    layers, d = whole("layers", layers, 3), whole("d", d, 2)
    exponent = probability("exponent", exponent, open_low=True, open_high=True)
    failures = np.zeros(layers) if norm_failures is None else _failures(norm_failures, layers)
    load = d ** (-1.0 / 3.0) if load_failure is None else probability("load_failure", load_failure)
    differences = (layers - 2) * _moment_constant(second, fourth, latala, 3.0) * d ** (-exponent / 4.0)
    earlier = _weighted(failures) - float(failures[-1])
    return float((1.0 - load) ** (2 * (layers - 2)) * (1.0 - float(failures[-1])) * (1.0 - differences - earlier))


@claim("P-17d")
@elementwise
def norm_failure(norm_bound: float, second: float, fourth: float, latala: float) -> float:
    """Failure of a norm bound by Lemma 4 and Markov, assumption (iv) from (iii); above 1 it is vacuous (P-17d)."""
    return _moment_constant(second, fourth, latala, 1.0) / positive("norm_bound", norm_bound)


@claim("P-17e")
@elementwise
def moment_constants(spread: float = 1.0, law: str = "normal") -> dict[str, float]:
    """K_1 and K_2 of common initializations (P-17e); Xavier is spread sqrt 3 uniform, or spread 1 normal."""
    square = positive("spread", spread) ** 2
    if choice("law", law, ("normal", "uniform")) == "uniform":
        return {"second": square / 3.0, "fourth": square**2 / 5.0}
    return {"second": square, "fourth": 3.0 * square**2}


@claim("P-18a")
@elementwise
def theorem2_prime_difference(rows: int, columns: int, load: int, delta: float, spread: float = 1.0) -> float:
    """Norm of the randomly pruned part with probability 1-delta, from the largest line load (Theorem 2', P-18a).

    The smaller of Schur's deterministic bound and the matrix series bound for uniform weights.
    """
    rows, columns, load = whole("rows", rows, 1), whole("columns", columns, 1), whole("load", load, 0)
    half_width = positive("spread", spread) / math.sqrt(max(rows, columns))
    delta = delta_in(delta)
    if load == 0:
        return 0.0
    return min(half_width * load, series_norm_quantile(rows, columns, half_width / math.sqrt(3.0), load, delta))


@claim("P-18b")
@elementwise
def theorem2_prime_pruned(
    d: int, layers: int, error: float, delta: float, spread: float = 1.0, lipschitz: float = 1.0
) -> dict[str, int]:
    """Largest number of random draws per inner layer that Theorem 2' allows for square layers (P-18b)."""
    d, layers, error = whole("d", d, 2), whole("layers", layers, 3), positive("error", error)
    slope = positive("lipschitz", lipschitz)
    part = delta_in(delta) / (4.0 * (layers - 2))
    norm_bound = uniform_norm_quantile(d, d, delta / (2.0 * layers), spread)

    def load_fits(load: int) -> bool:
        difference = theorem2_prime_difference(d, d, load, part, spread)
        return equal_norm_error(norm_bound, difference, layers, slope) <= error

    def count_fits(count: int) -> bool:
        return load_union(d, count, load) <= part / 2.0

    load = _largest(load_fits)
    return {"count": _largest(count_fits) if load else 0, "load": load}


@claim("P-18c")
@elementwise
def random_difference_heuristic(d: int, sparsity: float, sigma: float) -> float:
    """Estimate (not a bound) 2 sqrt(sparsity) sigma sqrt(d) of the randomly pruned part's norm (P-18c)."""
    share = probability("sparsity", sparsity)
    return 2.0 * math.sqrt(share * whole("d", d, 1)) * positive("sigma", sigma)


@claim("P-25b")
@elementwise
def theorem2_width(
    exponent: float,
    layers: int,
    error: float,
    delta: float,
    norm_bound: float,
    second: float,
    fourth: float,
    latala: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """Width that Theorem 2 requires at a given exponent, as a logarithm: it passes every float soon (P-25b)."""
    exponent = probability("exponent", exponent, open_low=True, open_high=True)
    c = theorem2_constants(layers, real("norm_bound", norm_bound, 1.0), second, fourth, latala, lipschitz)
    delta = delta_in(delta)
    by_error = 4.0 / exponent * math.log10(c["constant2"] / positive("error", error))
    by_failure = 4.0 / exponent * math.log10(c["constant4"] / delta)
    load_width = (c["constant3"] / delta) ** 3
    first = 4.0 / exponent * math.log10(c["constant1"])
    return {
        "log10_width": max(first, by_error, by_failure, math.log10(load_width)),
        "log10_error_width": by_error,
        "log10_failure_width": by_failure,
        "load_width": load_width,
    }


@claim("P-25c")
@elementwise
def theorem2_width_floor(
    layers: int,
    error: float,
    delta: float,
    norm_bound: float,
    second: float,
    fourth: float,
    latala: float,
    lipschitz: float = 1.0,
) -> float:
    """log10 of a width below every one that Theorem 2 can require: exponent 1/2, which no cap reaches (P-25c)."""
    return theorem2_width(0.5, layers, error, delta, norm_bound, second, fourth, latala, lipschitz)["log10_width"]


@claim("P-25d")
@elementwise
def theorem2_best_claim(
    d: int, layers: int, norm_bound: float, second: float, fourth: float, latala: float, lipschitz: float = 1.0
) -> dict[str, float]:
    """Best statement Theorem 2 can make for square layers of width d: the exponent at its cap (P-25d).

    With norm_bound >= 1 the difference d^(-exponent/4) is below it, as the closed form needs.
    """
    d = whole("d", d, 3)
    exponent = theorem2_exponent_cap(d, d)["cap"]
    c = theorem2_constants(layers, real("norm_bound", norm_bound, 1.0), second, fourth, latala, lipschitz)
    shrink = d ** (-exponent / 4.0)
    inner = max(0.0, 1.0 - (layers - 2) * c["difference_constant"] * shrink)
    return {
        "exponent": exponent,
        "error": c["constant2"] * shrink,
        "probability": (1.0 - d ** (-1.0 / 3.0)) ** (2 * (layers - 2)) * inner,
        "sparsity": d ** (-2.0 * exponent),
    }


def _moment_constant(second: float, fourth: float, latala: float, load: float) -> float:
    """C (2 sqrt(load K_1) + K_2^(1/4)): Lemma 4 for a matrix whose lines hold `load` times their mean."""
    second, fourth = fourth_moment(second, fourth)
    return float(positive("latala", latala) * (2.0 * math.sqrt(load * second) + fourth**0.25))


def _failures(norm_failures: ArrayLike, layers: int | None = None) -> np.ndarray:
    failures = reals("norm_failures", norm_failures, 0.0, length=layers)
    if failures.max() > 1.0:
        raise BadInput(f"norm_failures must hold numbers in [0, 1], got {failures.max():g}.")
    return failures


def _weighted(failures: np.ndarray) -> float:
    """delta_l + sum over i < l of (l-i) delta_i: how often the proof counts each norm event."""
    count = len(failures)
    times = np.append(np.arange(count - 1.0, 0.0, -1.0), 1.0)
    return math.fsum(times * failures)


def _largest(fits, limit: int = 2**62) -> int:  # type: ignore[no-untyped-def]
    """Largest whole number that fits, 0 if not even 1 does; `fits` holds up to it and fails beyond."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < limit and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
