"""Balls into bins: tails, largest loads, and the event that no line of a random mask is overloaded.

Qian & Klabjan, lemmas 5 and 6 and the events A_r, A_c of Theorem 2 (P-10 to P-12). A random mask of `count` draws
throws `count` balls into the rows and into the columns.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast

import numpy as np
from scipy import optimize, special

from prunus.errors import BadInput
from prunus.formulas.binding import claim, printed
from prunus.formulas.domain import positive, probability, real, whole
from prunus.formulas.numbers import elementwise
from prunus.papers.closeness._numbers import ceil_near, floor_near, rate, stirling

# Below this logarithm a probability is no ordinary float64.
LOG_TINY = -690.0  # tolerance

_CLOSE = {"xtol": 1e-15, "rtol": 1e-15}  # tolerance

_SLACK = 1e-9  # tolerance

_MOST_TERMS = 1 << 23  # of a Fourier transform: about a second


@claim("P-10a")
@elementwise
def chernoff_rate(excess: float) -> dict[str, float]:
    """Rate (1+x)log(1+x)-x of the upper binomial tail, and the weaker x^2/(2+x) (Lemma 5 corrected, P-10a)."""
    x = real("excess", excess, 0.0)
    return {"decay": rate(x), "weak_decay": x * x / (2.0 + x)}


@printed("P-10a")
@elementwise
def chernoff_rate_printed(excess: float) -> dict[str, float]:
    """x^2/(1+x), the exponent of Lemma 5 as printed: too large below x = 2.16258."""
    return {"decay": _printed_rate(real("excess", excess, 0.0))}


@claim("P-10b")
@elementwise
def binomial_tail_bound(n: int, probability: float, excess: float) -> dict[str, float]:
    """P(X >= (1+x)np) exactly and by Chernoff (Lemma 5 corrected, P-10b)."""
    n, probability, x = _binomial(n, probability, excess)
    mean = n * probability
    return {
        "exact": _binomial_upper(n, probability, ceil_near((1.0 + x) * mean)),
        "bound": math.exp(-mean * rate(x)),
        "weak_bound": math.exp(-mean * x * x / (2.0 + x)),
    }


@printed("P-10b")
@elementwise
def binomial_tail_bound_printed(n: int, probability: float, excess: float) -> float:
    """exp(-np x^2/(1+x)), Lemma 5 as printed: below the exact tail for instance at n=1000, p=0.1, x=0.3."""
    n, probability, x = _binomial(n, probability, excess)
    return math.exp(-n * probability * _printed_rate(x))


@claim("P-10c")
@lru_cache(maxsize=1)
def chernoff_crossing() -> float:
    """Excess above which the printed exponent of Lemma 5 follows from Chernoff (P-10c)."""
    return float(optimize.brentq(lambda x: rate(x) - _printed_rate(x), 1.0, 4.0, **_CLOSE))


@claim("P-10d")
@elementwise
def poisson_tail_bound(mean: float, excess: float) -> dict[str, float | bool]:
    """log P(X >= (1+x) mean) of a Poisson X, the Chernoff bound, and whether Lemma 5 as printed holds (P-10d)."""
    mean, x = positive("mean", mean), positive("excess", excess)
    log_exact = _log_poisson_upper(mean, ceil_near((1.0 + x) * mean))
    return {
        "log_exact": log_exact,
        "log_bound": -mean * rate(x),
        "printed_holds": log_exact <= -mean * _printed_rate(x),
    }


@printed("P-10d")
@elementwise
def poisson_tail_bound_printed(mean: float, excess: float) -> dict[str, float]:
    """-mean x^2/(1+x), the logarithm of Lemma 5's bound as printed."""
    return {"log_bound": -positive("mean", mean) * _printed_rate(positive("excess", excess))}


@claim("P-11a")
@elementwise
def max_load_failure(bins: int, count: int, factor: float = 3.0) -> float:
    """Union bound, from exact binomial tails, on P(some bin holds more than factor times the mean) (Lemma 6, P-11a)."""
    bins, count, factor = _balls(bins, count, factor)
    return load_union(bins, count, floor_near(factor * count / bins))


@printed("P-11a")
@elementwise
def max_load_failure_printed(bins: int, count: int, factor: float = 3.0) -> float:
    """n^(-1/3), Lemma 6 as printed (for factor 3 and at least n log n balls)."""
    bins, _, _ = _balls(bins, count, factor)
    return float(bins ** (-1.0 / 3.0))


@claim("P-11b")
@elementwise
def max_load_chernoff(bins: int, count: int, factor: float = 3.0) -> float:
    """Chernoff union bound of Lemma 6, n exp(-rate N/n), with the right rate (P-11b)."""
    bins, count, factor = _balls(bins, count, factor)
    return min(1.0, bins * math.exp(-rate(factor - 1.0) * count / bins))


@claim("P-11c")
@elementwise
def max_load_power(bins: int) -> float:
    """Provable failure n^(-(3 log 3 - 3)) of Lemma 6, for at least n log n balls (P-11c)."""
    return float(whole("bins", bins, 2) ** -(3.0 * math.log(3.0) - 3.0))


@printed("P-11c")
@elementwise
def max_load_power_printed(bins: int) -> float:
    """n^(-1/3), the failure that Lemma 6 states."""
    return float(whole("bins", bins, 2) ** (-1.0 / 3.0))


@claim("P-11d")
@elementwise
def load_factor(power: float) -> float:
    """Load factor that makes the failure n^(-power) provable for at least n log n balls (P-11d).

    y log y - y = power has the solution exp(1 + W(power/e)) with Lambert's W.
    """
    power = real("power", power, 0.0)
    return math.exp(1.0 + float(special.lambertw(power / math.e).real))


@claim("P-11e")
@elementwise
def balls_needed(bins: int) -> int:
    """ceil(n log n), the number of balls Lemma 6 asks for (P-11e)."""
    bins = whole("bins", bins, 2)
    return math.ceil(bins * math.log(bins))


@claim("P-11f")
@elementwise
def load_failure_limit(log_bins: float) -> dict[str, float | bool]:
    """log of Lemma 6's union bound for n -> infinity with n log n balls and factor 3: Poisson loads (P-11f)."""
    mean = positive("log_bins", log_bins)
    log_failure = mean + _log_poisson_upper(mean, floor_near(3.0 * mean) + 1)
    return {"log_failure": log_failure, "printed_holds": log_failure <= -mean / 3.0}


@printed("P-11f")
@elementwise
def load_failure_limit_printed(log_bins: float) -> dict[str, float]:
    """-log(n)/3, the logarithm of the failure that Lemma 6 states."""
    return {"log_failure": -positive("log_bins", log_bins) / 3.0}


@claim("P-12a")
@elementwise
def load_probability(d: int, count: int, limit: int) -> dict[str, float]:
    """Exact probability that no row (column) of a d x d mask is drawn more than `limit` times (P-12a).

    Loads count repeated draws; those of the rows are independent of those of the columns.
    """
    d, count, limit = whole("d", d, 1), whole("count", count, 0), whole("limit", limit, 0)
    row = _loads_below(d, count, limit)
    return {"row": row, "column": row, "both": row * row}


@claim("P-12b")
@elementwise
def zero_count_probability(d: int, count: int, limit: int) -> dict[str, float]:
    """Exact probability that no line of a d x d mask holds more than `limit` distinct zeros, d <= 4 (P-12b).

    Sums over all sets of cells; given how many distinct cells were drawn, every set of that size is equally likely.
    """
    d, count, limit = whole("d", d, 1, 4), whole("count", count, 1), whole("limit", limit, 0)
    cells = d * d
    step = np.diag(np.arange(cells + 1) / cells) + np.diag(1.0 - np.arange(cells) / cells, 1)
    distinct = np.linalg.matrix_power(step, count)[0]
    sets = special.comb(cells, np.arange(cells + 1))
    row, both = (float(distinct @ (good / sets)) for good in _good_sets(d, limit))
    return {"row": row, "column": row, "both": both}


@printed("P-12b")
@elementwise
def zero_count_probability_printed(d: int, count: int, limit: int) -> dict[str, float]:
    """row*column, as if the zero counts of rows and columns were independent: too large."""
    exact = zero_count_probability(d, count, limit)
    return {"both": exact["row"] * exact["column"]}


@claim("P-12c")
@elementwise
def mask_event_bound(rows: int, columns: int, count: int, factor: float = 3.0, replacement: bool = True) -> float:
    """Lower bound on the probability that no line holds more than `factor` times its mean load (P-12c)."""
    u_rows = max_load_failure(whole("rows", rows, 2), count, factor)
    u_columns = max_load_failure(whole("columns", columns, 2), count, factor)
    if replacement:
        return (1.0 - u_rows) * (1.0 - u_columns)
    return max(0.0, 1.0 - u_rows - u_columns)


@printed("P-12c")
@elementwise
def mask_event_bound_printed(
    rows: int, columns: int, count: int, factor: float = 3.0, replacement: bool = True
) -> float:
    """(1-d^(-1/3))^2 with d the smaller dimension, from Lemma 6 as printed."""
    del replacement
    smaller = min(whole("rows", rows, 2), whole("columns", columns, 2))
    return (1.0 - max_load_failure_printed(smaller, count, factor)) ** 2


def load_union(bins: int, count: int, load: int) -> float:
    """min(1, n P(Bin(N,1/n) > load)): some bin holds more than `load` balls with at most this probability."""
    return min(1.0, bins * _binomial_upper(count, 1.0 / bins, load + 1))


def _printed_rate(x: float) -> float:
    return x * x / (1.0 + x)


def _binomial(n: int, chance: float, excess: float) -> tuple[int, float, float]:
    n = whole("n", n, 1)
    return n, probability("probability", chance, open_low=True, open_high=True), positive("excess", excess)


def _balls(bins: int, count: int, factor: float) -> tuple[int, int, float]:
    factor = real("factor", factor, 1.0, open_low=True)
    return whole("bins", bins, 2), whole("count", count, 1), factor


def _binomial_upper(n: int, chance: float, k: int) -> float:
    """P(Bin(n, chance) >= k)."""
    if k <= 0:
        return 1.0
    return float(special.betainc(k, n - k + 1, chance)) if k <= n else 0.0


def _log_poisson_upper(mean: float, k: int) -> float:
    """log P(Poisson(mean) >= k) for k > mean, also where the probability itself underflows."""
    tail = float(special.gammainc(k, mean))
    if tail > math.exp(LOG_TINY):
        return math.log(tail)
    log_first = -mean * rate(k / mean - 1.0) - 0.5 * math.log(2.0 * math.pi * k) - stirling(k)
    # The terms fall at least as fast as (mean/k)^j.
    terms = 2 + int(45.0 / math.log(k / mean))  # tolerance
    return log_first + math.log1p(float(np.exp(np.cumsum(np.log(mean / (k + np.arange(1.0, terms))))).sum()))


def _log_poisson_below(mean: float, limit: int) -> float:
    """log P(Poisson(mean) <= limit), precise near 0 and where the probability underflows."""
    above = float(special.gammainc(limit + 1.0, mean))
    if above < 0.5:  # tolerance
        return math.log1p(-above)
    loads = np.arange(limit + 1.0)
    return float(special.logsumexp(loads * math.log(mean) - special.gammaln(loads + 1.0))) - mean


def _loads_below(bins: int, count: int, limit: int) -> float:
    """P(no bin holds more than `limit` of `count` balls), by conditioning independent Poisson loads on their sum.

    The Poisson mean is tilted so that loads cut off at `limit` sum to `count` on average: the wanted coefficient is
    then at the peak of the sum's law, and a discrete Fourier transform finds it without cancellation.
    """
    if count <= limit:
        return 1.0
    if limit * bins < count:
        return 0.0
    if limit * bins == count:  # every bin exactly full
        log_p = math.lgamma(count + 1.0) - bins * math.lgamma(limit + 1.0) - count * math.log(bins)
        return math.exp(log_p)
    _check_terms(64.0 * limit, bins, count, limit)
    loads = np.arange(limit + 1.0)
    target = count / bins

    def law(log_mean: float) -> np.ndarray:
        weights = loads * log_mean - special.gammaln(loads + 1.0)
        weights = np.exp(weights - weights.max())
        return cast("np.ndarray", weights / weights.sum())

    low = math.log(target)
    high = low + 1.0
    while law(high) @ loads < target:
        high += 1.0
    log_mean = float(optimize.brentq(lambda x: law(x) @ loads - target, low - _SLACK, high))
    pmf, mean = law(log_mean), math.exp(log_mean)
    spread = math.sqrt(bins * float(pmf @ (loads - target) ** 2))
    enough = max(64.0 * spread, 64.0 * limit, 4096.0)  # tolerance
    size = int(min(limit * bins + 1, enough))
    _check_terms(size, bins, count, limit)
    phase = np.exp(-2j * np.pi * ((count * np.arange(size)) % size) / size)
    spectrum = np.fft.fft(pmf, size)
    peak = float((spectrum**bins * phase.conj()).real.mean())
    log_inside = _log_poisson_below(mean, limit)
    whole_mean = bins * mean
    log_sum = whole_mean * rate(count / whole_mean - 1.0) + 0.5 * math.log(2.0 * math.pi * count) + stirling(count)
    return min(1.0, math.exp(bins * log_inside + math.log(peak) + log_sum))


def _check_terms(size: float, bins: int, count: int, limit: int) -> None:
    if size > _MOST_TERMS:
        raise BadInput(
            f"P-12a sums at most {_MOST_TERMS:.2g} terms, and {count:.3g} draws on {bins:.3g} lines with at most "
            f"{limit:.3g} each need {size:.3g}: take smaller ones, or the bound of P-12c."
        )


@lru_cache(maxsize=64)
def _good_sets(d: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """For every size, how many sets of cells keep all rows, and all lines, at or below the limit."""
    cells = d * d
    members = (np.arange(2**cells)[:, None] >> np.arange(cells)) & 1
    grid = members.reshape(-1, d, d)
    rows = (grid.sum(axis=2) <= limit).all(axis=1)
    columns = (grid.sum(axis=1) <= limit).all(axis=1)
    sizes = members.sum(axis=1)
    return tuple(np.bincount(sizes[good], minlength=cells + 1) for good in (rows, rows & columns))  # type: ignore[return-value]
