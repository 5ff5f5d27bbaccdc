"""Matrices and balls into bins: reference cases, errata, orderings, and bad input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import BadInput
from prunus.theory import closeness as m

quick = settings(max_examples=30, deadline=None, derandomize=True)
sides = st.integers(1, 10**8)
spreads = st.floats(0.01, 100)
levels = st.floats(1e-9, 0.999)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: m.latala_bound([[1.0]], [[1.0, 2.0]]), "same shape"),
        (lambda: m.latala_bound([[-1.0]], [[1.0]]), "at least 0"),
        (lambda: m.latala_bound([[1.0]], [[-1.0]]), "at least 0"),
        (lambda: m.latala_bound([1.0], [1.0]), "2 dimensions"),
        (lambda: m.latala_bound([[1.0]], [[1.0]], 0.0), "latala"),
        (lambda: m.latala_iid_bound(2, 2, 1.0, 0.5), r"second\^2"),
        (lambda: m.latala_limit(0.99), "kurtosis .* at least 1"),
        (lambda: m.random_mask_terms(4, 0.5, 0.9), "kurtosis .* at least 1"),
        (lambda: m.binomial_tail_bound_printed(0, 0.1, 1.0), "n must be"),
        (lambda: m.binomial_tail_bound(5, 1.0, 1.0), "probability"),
        (lambda: m.chernoff_rate_printed(-0.1), "excess"),
        (lambda: m.poisson_tail_bound_printed(0.0, 1.0), "mean"),
        (lambda: m.poisson_tail_bound_printed(1.0, 0.0), "excess"),
        (lambda: m.max_load_failure(4, 5, 1.0), "factor .* above 1"),
        (lambda: m.max_load_failure_printed(1, 5), "bins"),
        (lambda: m.max_load_failure_printed(4, 0), "count"),
        (lambda: m.max_load_power_printed(1), "bins"),
        (lambda: m.load_failure_limit_printed(0.0), "log_bins"),
        (lambda: m.zero_count_probability(5, 2, 1), r"d .* \[1, 4\]"),
        (lambda: m.mask_event_bound(1, 2, 3), "rows"),
        (lambda: m.mask_event_bound(2, 1, 3), "columns"),
        (lambda: m.mask_event_bound_printed(1, 2, 3), "rows"),
        (lambda: m.mask_event_bound_printed(2, 1, 3), "columns"),
        (lambda: m.glorot_variance_printed(0, 1), "fan_in"),
        (lambda: m.glorot_variance_printed(1, 0), "fan_out"),
        (lambda: m.embedding_size(5, 3, 3), r"padding .* \[0, 2\]"),
        (lambda: m.average_pool_norm(2, 3, 1), "image .* at least 3"),
        (lambda: m.gram_bound([1.0, -1.0], 2), "singular_values"),
        (lambda: m.gram_bound([], 2), "at least one"),
        (lambda: m.gram_bound([1.0], 1001), r"iterations .* \[0, 1000\]"),
    ],
)
def test_domain_sentences(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


def test_printed_forms_differ_where_the_ledger_says_so() -> None:
    exact = m.binomial_tail_bound(1000, 0.1, 0.3)["exact"]
    assert m.binomial_tail_bound_printed(1000, 0.1, 0.3) < exact < m.binomial_tail_bound(1000, 0.1, 0.3)["bound"]
    for excess in (0.1, 1.0, 2.0, 2.16):
        assert m.chernoff_rate_printed(excess)["decay"] > m.chernoff_rate(excess)["decay"]
    assert m.chernoff_rate_printed(2.17)["decay"] < m.chernoff_rate(2.17)["decay"]
    assert m.poisson_tail_bound(88, 2.0)["log_exact"] < m.poisson_tail_bound_printed(88, 2.0)["log_bound"]
    assert m.poisson_tail_bound(89, 2.0)["log_exact"] > m.poisson_tail_bound_printed(89, 2.0)["log_bound"]
    assert m.max_load_power_printed(1024) < m.max_load_power(1024)
    assert m.max_load_failure(1024, 7098) < m.max_load_failure_printed(1024, 7098)
    assert m.load_failure_limit(125.0)["log_failure"] > m.load_failure_limit_printed(125.0)["log_failure"]
    assert m.zero_count_probability_printed(2, 2, 1)["both"] > m.zero_count_probability(2, 2, 1)["both"]
    assert m.mask_event_bound_printed(64, 64, 267) < m.mask_event_bound(64, 64, 267)
    assert m.mask_event_bound_printed(64, 4096, 10**6) == pytest.approx(0.75**2)
    assert m.glorot_variance_printed(30, 50) == pytest.approx(3 * m.glorot_variance(30, 50))
    kept = m.random_mask_terms(32, 0.3, 2.0, False, kept=True)
    assert m.random_mask_terms_printed(32, 0.3, 2.0, False) == kept
    assert m.random_mask_terms_printed(32, 0.3, 2.0, False, kept=False) == kept
    assert m.random_mask_terms(32, 0.3, 2.0, False) != kept


def test_defaults_are_those_of_the_ledger() -> None:
    assert m.uniform_norm_mean_bound(4, 9) == m.uniform_norm_mean_bound(4, 9, 1.0)
    assert m.uniform_norm_tail(4, 9, 0.3) == m.uniform_norm_tail(4, 9, 0.3, 1.0)
    assert m.uniform_norm_quantile(4, 9, 0.3) == m.uniform_norm_quantile(4, 9, 0.3, 1.0)
    assert m.uniform_norm_limit(4, 9) == m.uniform_norm_limit(4, 9, 1.0)
    assert m.convex_order_gap(0.4) == m.convex_order_gap(0.4, 1.0)
    assert m.latala_bound([[1.0]], [[1.0]]) == m.latala_bound([[1.0]], [[1.0]], 1.0)
    assert m.latala_iid_bound(2, 3, 1.0, 2.0) == m.latala_iid_bound(2, 3, 1.0, 2.0, 1.0)
    assert m.random_mask_terms(8, 0.5) == m.random_mask_terms(8, 0.5, 3.0, True, False)
    assert m.random_mask_terms_printed(8, 0.5) == m.random_mask_terms_printed(8, 0.5, 3.0, True)
    assert m.max_load_failure(8, 30) == m.max_load_failure(8, 30, 3.0)
    assert m.max_load_chernoff(8, 30) == m.max_load_chernoff(8, 30, 3.0)
    assert m.mask_event_bound(8, 9, 30) == m.mask_event_bound(8, 9, 30, 3.0, True)


@quick
@given(rows=sides, columns=sides, spread=spreads, delta=levels)
def test_uniform_norms_are_symmetric_homogeneous_and_ordered(
    rows: int, columns: int, spread: float, delta: float
) -> None:
    bound = m.uniform_norm_mean_bound(rows, columns, spread)
    assert bound == m.uniform_norm_mean_bound(columns, rows, spread)
    assert bound == pytest.approx(spread * m.uniform_norm_mean_bound(rows, columns))
    assert m.uniform_norm_limit(rows, columns, spread) < bound <= 1.2534 * spread
    quantile = m.uniform_norm_quantile(rows, columns, delta, spread)
    assert quantile > bound
    assert m.uniform_norm_quantile(rows, columns, delta / 2, spread) > quantile
    assert m.uniform_norm_tail(rows, columns, quantile - bound, spread) == pytest.approx(delta, rel=1e-3)
    normal = m.normal_norm_quantile(rows, columns, spread, delta)
    assert normal == m.normal_norm_quantile(columns, rows, spread, delta)
    assert normal > m.mean_component_norm(0.0, spread**2, rows, columns)["bulk_norm"]


@quick
@given(rows=sides, columns=sides, sigma=spreads, load=st.integers(1, 10**6), delta=levels)
def test_series_bounds_invert_each_other(rows: int, columns: int, sigma: float, load: int, delta: float) -> None:
    level = m.series_norm_quantile(rows, columns, sigma, load, delta)
    assert m.series_tail(rows, columns, sigma, load, level) == pytest.approx(delta, rel=1e-6)
    assert m.series_norm_mean(rows, columns, sigma, load) < level
    assert m.series_tail(rows, columns, sigma, load, 0.0) == 1.0
    assert m.series_norm_mean(rows, columns, sigma, 4 * load) == pytest.approx(
        2 * m.series_norm_mean(rows, columns, sigma, load)
    )


@quick
@given(excess=st.floats(1e-6, 50))
def test_rates_are_ordered(excess: float) -> None:
    rate = m.chernoff_rate(excess)
    assert 0 <= rate["weak_decay"] <= rate["decay"] * (1 + 1e-12)
    assert rate["decay"] <= excess**2 / 2 + 1e-12
    assert (m.chernoff_rate_printed(excess)["decay"] > rate["decay"]) == (0 < excess < m.chernoff_crossing())


@quick
@given(n=st.integers(1, 10**9), p=st.floats(1e-6, 0.999), excess=st.floats(1e-3, 5))
def test_binomial_tails_stay_below_chernoff(n: int, p: float, excess: float) -> None:
    tail = m.binomial_tail_bound(n, p, excess)
    assert 0 <= tail["exact"] <= tail["bound"] * (1 + 1e-9) + 1e-300
    assert tail["bound"] <= tail["weak_bound"] <= 1


@quick
@given(mean=st.floats(0.1, 1e6), excess=st.floats(0.01, 20))
def test_poisson_tails_stay_below_chernoff(mean: float, excess: float) -> None:
    tail = m.poisson_tail_bound(mean, excess)
    assert tail["log_exact"] <= tail["log_bound"] + 1e-9 * abs(tail["log_bound"])
    assert tail["printed_holds"] == (tail["log_exact"] <= m.poisson_tail_bound_printed(mean, excess)["log_bound"])


@pytest.mark.parametrize("mean, k", [(200.0, 1300), (1000.0, 3300), (0.5, 300)])
def test_poisson_tail_is_smooth_across_underflow(mean: float, k: int) -> None:
    """On both sides of the smallest float the same function: neighbouring tails differ by about one Poisson ratio."""
    from prunus.papers.closeness import _loads

    logs = [_loads._log_poisson_upper(mean, j) for j in range(k - 500 if k > 600 else 2, k)]
    steps = np.diff(logs)
    ratios = np.log(mean / np.arange(k - len(steps) - 1, k - 1))
    assert (np.diff(steps) < 0).all()
    assert np.abs(steps - ratios).max() < abs(math.log1p(-mean / (k - len(logs)))) + 0.5


@quick
@given(bins=st.integers(2, 10**8), times=st.floats(0.01, 30), factor=st.floats(1.05, 6))
def test_load_bounds_are_ordered(bins: int, times: float, factor: float) -> None:
    count = max(1, int(times * bins))
    union, chernoff = m.max_load_failure(bins, count, factor), m.max_load_chernoff(bins, count, factor)
    assert 0 <= union <= chernoff * (1 + 1e-9)
    assert chernoff <= 1
    assert m.max_load_failure(bins, count, factor + 1) <= union
    with_repeats = m.mask_event_bound(bins, bins, count, factor)
    without = m.mask_event_bound(bins, bins, count, factor, replacement=False)
    assert 0 <= without <= with_repeats <= 1


@pytest.mark.parametrize("bins", [2, 3, 17, 1000, 10**6, 10**8])
def test_lemma_6_repaired(bins: int) -> None:
    count = m.balls_needed(bins)
    assert count - 1 < bins * math.log(bins) <= count
    assert m.max_load_failure(bins, count) <= m.max_load_chernoff(bins, count) <= m.max_load_power(bins) * (1 + 1e-12)
    factor = m.load_factor(1 / 3)
    assert m.max_load_chernoff(bins, count, factor) <= m.max_load_power_printed(bins) * (1 + 1e-12)


def test_limit_of_many_bins_is_a_limit() -> None:
    for bins in (10**4, 10**6, 10**8):
        count = m.balls_needed(bins)
        finite = math.log(m.max_load_failure(bins, count))
        assert finite == pytest.approx(m.load_failure_limit(count / bins)["log_failure"], abs=0.3)
    assert m.load_failure_limit(1000.0)["log_failure"] > -1000 / 3
    assert m.load_failure_limit(5000.0)["log_failure"] == pytest.approx(-0.295837 * 5000, rel=0.01)


@pytest.mark.parametrize("d, count, limit", [(1, 5, 5), (1, 5, 4), (3, 9, 3), (4, 8, 2), (10, 99, 10), (10, 100, 10)])
def test_exact_loads_at_the_edges(d: int, count: int, limit: int) -> None:
    row = m.load_probability(d, count, limit)["row"]
    ways = _bounded_assignments(d, count, limit)
    assert row == pytest.approx(ways / d**count, rel=1e-9)


def _bounded_assignments(bins: int, count: int, limit: int) -> int:
    """How many of bins^count assignments load no bin above the limit, in whole numbers."""
    ways = [1] + [0] * count
    for _ in range(bins):
        ways = [sum(ways[n - k] * math.comb(n, k) for k in range(min(limit, n) + 1)) for n in range(count + 1)]
    return ways[count]


@pytest.mark.parametrize("d, count", [(3, 12), (7, 30), (20, 90), (200, 1000)])
def test_exact_loads_grow_with_the_limit(d: int, count: int) -> None:
    rows = [m.load_probability(d, count, limit)["row"] for limit in range(count // d + 8)]
    assert rows[-1] <= 1
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(rows))
    if count <= 90:
        exact = [_bounded_assignments(d, count, limit) / d**count for limit in range(len(rows))]
        assert rows == pytest.approx(exact, rel=1e-9)
    # One minus the union bound is a lower bound.
    for limit in range(count // d + 1, count // d + 8):
        union = m.max_load_failure(d, count, (limit + 0.5) * d / count)
        assert rows[limit] >= 1 - union - 1e-12


def test_large_exact_loads_agree_with_the_union_bound() -> None:
    d, count = 10**6, 13815511
    row = m.load_probability(d, count, 41)["row"]
    union = m.max_load_failure(d, count)
    assert row == pytest.approx(1 - union, abs=union**2)


def test_zero_counts_at_the_edges() -> None:
    assert m.zero_count_probability(3, 1, 0) == {"row": 0.0, "column": 0.0, "both": 0.0}
    assert m.zero_count_probability(1, 7, 1) == {"row": 1.0, "column": 1.0, "both": 1.0}
    many = m.zero_count_probability(4, 10**6, 3)
    assert many["both"] == pytest.approx(0.0, abs=1e-12)
    for d, count, limit in ((3, 5, 2), (4, 6, 2), (2, 3, 1)):
        zeros, loads = m.zero_count_probability(d, count, limit), m.load_probability(d, count, limit)
        assert loads["both"] <= zeros["both"] <= zeros["row"] == zeros["column"]
        assert zeros["both"] <= zeros["row"]


@quick
@given(
    values=st.lists(st.floats(0, 1e100), min_size=1, max_size=8),
    iterations=st.integers(0, 60),
)
def test_gram_bound_falls_to_the_norm(values: list[float], iterations: int) -> None:
    bound = m.gram_bound(values, iterations)
    assert max(values) <= bound <= max(values) * len(values) ** 0.25 * (1 + 1e-12)
    assert m.gram_bound(values, iterations + 1) <= bound * (1 + 1e-12)
    if iterations >= 50:
        assert bound == pytest.approx(max(values))


@quick
@given(x=st.floats(0, 20), half_width=st.floats(1e-3, 1e3))
def test_convex_order_gap_is_never_negative(x: float, half_width: float) -> None:
    gap = m.convex_order_gap(x * half_width, half_width)
    assert gap >= -1e-18 * half_width
    assert gap == pytest.approx(half_width * m.convex_order_gap(x), rel=1e-6, abs=1e-14 * half_width)
    if 0 < x < 1e-2:
        assert gap == pytest.approx(half_width * x * x * (1 / math.pi - 0.25), rel=1e-3)


@pytest.mark.parametrize("image, kernel, stride", [(1, 1, 1), (5, 5, 1), (5, 2, 3), (64, 3, 2), (2000, 3, 1)])
def test_pool_norm_stays_within_its_bound(image: int, kernel: int, stride: int) -> None:
    norm, bound = m.average_pool_norm(image, kernel, stride), m.average_pool_bound(kernel, stride)
    assert 1 / kernel - 1e-12 <= norm <= bound["bound"] + 1e-12
    assert bound["exact"] == (stride >= kernel)
    if bound["exact"]:
        assert norm == pytest.approx(1 / kernel)
    assert m.max_pool_lipschitz(kernel, stride) == pytest.approx(kernel * bound["bound"])


@pytest.mark.parametrize("image", [2, 3, 4, 9, 10])
def test_zero_padding_against_circular(image: int) -> None:
    pair = m.difference_operator_norms(image)
    assert (pair["zero"] > pair["circular"]) == (image % 2 == 1)
    if image >= 3:
        pair = m.laplacian_operator_norms(image)
        assert (pair["zero"] > pair["circular"]) == (image % 2 == 1)
    size = m.embedding_size(image, 3, 0)
    assert size == {"size": image + 2, "safe_size": image + 2}


@pytest.mark.parametrize("exponent", [0.0, 2.0])
def test_mask_terms_at_the_ends(exponent: float) -> None:
    drawn = 100 if exponent == 0.0 else 1
    plain = m.random_mask_terms(10, exponent, replacement=False)
    assert plain["fraction"] == drawn / 100
    assert plain["row_term"] == pytest.approx(math.sqrt(drawn) / 10)
    assert m.random_mask_terms(10, exponent)["fraction"] == pytest.approx(1 - 0.99**drawn)


def test_zero_moments_are_welcome() -> None:
    assert m.latala_iid_bound(2, 3, 0.0, 0.0)["bound"] == 0.0
    assert m.latala_bound([[0.0]], [[0.0]])["bound"] == 0.0
    assert m.mean_component_norm(0.0, 0.0, 1, 1) == {"mean_norm": 0.0, "bulk_norm": 0.0}
