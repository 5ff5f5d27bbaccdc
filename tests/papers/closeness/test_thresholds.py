"""Moments of order statistics: reference cases, errata, orderings, large sizes, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import BadInput
from prunus.theory import closeness as o

LAWS = ("normal", "laplace", "uniform")
SIZES = [(1, 1), (5, 2), (1000, 1), (1000, 999), (10**6, 10**5), (10**9, 3), (10**9, 5 * 10**8)]
quick = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: o.squared_order_moment(10, 11), r"r must be a whole number in \[1, 10\]"),
        (lambda: o.squared_order_moment(10, 4, -2.0), r"power must be a finite number above -2"),
        (lambda: o.magnitude_order_moment(10, 4, -4.0), r"power must be a finite number in \(-4, 10000\]"),
        (lambda: o.magnitude_order_moment(10, 4, law="cauchy"), "laplace, normal, uniform"),
        (lambda: o.pruned_entry_moments(10, 11), r"r .* \[0, 10\]"),
        (lambda: o.pruned_entry_moments_printed(10, 11), r"r .* \[0, 10\]"),
        (lambda: o.pruned_entry_moments_printed(10, 1, 0.0), "half_width"),
        (lambda: o.pruned_threshold_mean(10, 10), r"r .* \[0, 9\]"),
        (lambda: o.pruned_entry_correlation(10, 0), r"r .* \[1, 10\]"),
        (lambda: o.threshold_quantile(10, 10, 0.1), r"r .* \[0, 9\]"),
        (lambda: o.magnitude_order_cdf_printed(10, 0, 1.0), r"r .* \[1, 10\]"),
        (lambda: o.correlated_order_moment(10, 3, 1.0), r"correlation .* \[0, 1\)"),
        (lambda: o.correlated_order_moment(10, 3, -0.1), r"correlation .* \[0, 1\)"),
        (lambda: o.correlated_order_moment(10, 3, 0.5, 0.0), r"power .* \(0, 10000\]"),
    ],
)
def test_domain_sentences(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


def test_published_forms_differ_from_the_corrected_ones() -> None:
    exact, printed = o.pruned_entry_moments(100, 10), o.pruned_entry_moments_printed(100, 10)
    assert printed["second"] > 20 * exact["second"]
    assert printed["fourth"] > 20 * exact["fourth"]
    assert o.pruned_entry_moments_printed(7, 0) == {"second": 0.0, "fourth": 0.0}
    assert o.pruned_entry_moments_printed(7, 7)["second"] > o.pruned_entry_moments(7, 7)["second"]
    for x in (0.0375, 0.0396, 0.042):
        assert (
            o.magnitude_order_cdf_printed(10000, 316, x) > 0.99999 > o.magnitude_order_cdf(10000, 316, x)["probability"]
        )
    assert o.pruned_entry_correlation(100, 10) != 0.0


def test_defaults_are_those_of_the_ledger() -> None:
    assert o.squared_order_moment(9, 2) == o.squared_order_moment(9, 2, 1.0, 1.0)
    assert o.pruned_entry_moments(9, 2) == o.pruned_entry_moments(9, 2, 1.0)
    assert o.pruned_entry_moments_printed(9, 2) == o.pruned_entry_moments_printed(9, 2, 1.0)
    assert o.pruned_threshold_mean(9, 2) == 0.3
    assert o.threshold_quantile(9, 2, 0.1) == o.threshold_quantile(9, 2, 0.1, 1.0)
    assert o.magnitude_order_moment(9, 2) == o.magnitude_order_moment(9, 2, 1.0, 1.0, "normal")
    assert o.magnitude_order_cdf(9, 2, 0.3) == o.magnitude_order_cdf(9, 2, 0.3, 1.0)
    assert o.magnitude_order_cdf_printed(9, 2, 0.3) == o.magnitude_order_cdf_printed(9, 2, 0.3, 1.0)
    assert o.small_order_mean(9, 2) == o.small_order_mean(9, 2, 1.0)
    assert o.correlated_order_moment(9, 2, 0.3) == o.correlated_order_moment(9, 2, 0.3, 1.0, 1.0)


@quick
@given(
    n=st.integers(1, 10**9),
    share=st.floats(0, 1),
    power=st.floats(0.1, 4),
    law=st.sampled_from(LAWS),
)
def test_moments_grow_with_rank_and_scale(n: int, share: float, power: float, law: str) -> None:
    r = 1 + int(share * (n - 1))
    moment = o.magnitude_order_moment(n, r, power, 1.0, law)
    assert o.magnitude_order_moment(n, r, power, 2.0, law) == pytest.approx(2**power * moment, rel=1e-9)
    if r < n:
        assert o.magnitude_order_moment(n, r + 1, power, 1.0, law) >= moment * (1 - 1e-9)
        assert o.magnitude_order_moment(n + 1, r, power, 1.0, law) <= moment * (1 + 1e-9)
    # Lyapunov: the power mean grows with the power.
    assert o.magnitude_order_moment(n, r, 2 * power, 1.0, law) >= moment**2 * (1 - 1e-8)


@pytest.mark.parametrize("n, r", SIZES)
def test_sums_over_ranks_and_closed_forms(n: int, r: int) -> None:
    uniform = o.magnitude_order_moment(n, r, 1.0, 1 / math.sqrt(3), "uniform")
    assert uniform == pytest.approx(r / (n + 1), rel=1e-12)
    if n < 10**7:  # harmonic sums, where they can be added up
        harmonic = float((1.0 / np.arange(n - r + 1, n + 1)).sum())
        assert o.magnitude_order_moment(n, r, 1.0, math.sqrt(2), "laplace") == pytest.approx(harmonic, rel=1e-10)


def test_average_over_ranks_is_the_plain_moment() -> None:
    n = 6
    for power, plain in ((1.0, math.sqrt(2 / math.pi)), (2.0, 1.0), (4.0, 3.0)):
        mean = sum(o.magnitude_order_moment(n, r, power) for r in range(1, n + 1)) / n
        assert mean == pytest.approx(plain, rel=1e-10)
        mean = sum(o.correlated_order_moment(n, r, 0.6, power) for r in range(1, n + 1)) / n
        assert mean == pytest.approx(plain, rel=1e-8)
    entry = [o.pruned_entry_moments(n, n, 2.0)[name] for name in ("second", "fourth")]
    assert entry == pytest.approx([4 / 3, 16 / 5], rel=1e-14)


def test_negative_and_extreme_powers() -> None:
    # E 1/|W|_(1) of one weight diverges at power -1; nearby it behaves like the density at zero over the distance.
    peak = math.sqrt(2 / math.pi)
    for gap in (1e-2, 1e-4, 1e-6):
        assert o.magnitude_order_moment(1, 1, gap - 1.0) * gap == pytest.approx(peak, rel=3 * gap)
    half = 2**0.25 * math.gamma(0.75) / math.sqrt(math.pi)  # E |W|^(1/2)
    assert o.magnitude_order_moment(1, 1, 0.5) == pytest.approx(half, rel=1e-10)
    assert o.magnitude_order_moment(1, 1, 20.0) == pytest.approx(math.prod(range(1, 20, 2)), rel=1e-9)
    assert o.magnitude_order_moment(5, 5, 0.0) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("correlation", [1e-6, 0.3, 0.9, 0.999, 0.999999])
def test_correlation_moves_between_two_limits(correlation: float) -> None:
    # Full correlation: one common weight, whatever the rank. The rank's moment lies between for the median's sides.
    single = 1.0
    low, high = o.correlated_order_moment(8, 1, correlation, 2.0), o.correlated_order_moment(8, 8, correlation, 2.0)
    assert o.magnitude_order_moment(8, 1, 2.0) * (1 - 1e-9) <= low <= single <= high
    assert high <= o.magnitude_order_moment(8, 8, 2.0) * (1 + 1e-9)
    if correlation > 0.99999:
        assert low == pytest.approx(single, abs=5e-3)
        assert high == pytest.approx(single, abs=5e-3)


@pytest.mark.parametrize("n", [2, 3, 50, 10**6, 10**9])
def test_correlation_of_entries_stays_small_and_exact(n: int) -> None:
    assert o.pruned_entry_correlation(n, n) == 0.0
    value = o.pruned_entry_correlation(n, max(1, n // 10))
    assert -1.0 < value < 1.0
    if n >= 10**6:
        # To first order in 1/n, with share s pruned: (1-s)/(3(1/5-s/9)n), which plain floats would lose to rounding.
        assert value * n == pytest.approx(0.9 / (3 * (0.2 - 0.1 / 9)), rel=1e-4)


@quick
@given(n=st.integers(2, 10**7), share=st.floats(0, 0.999), delta=st.floats(1e-6, 0.999))
def test_threshold_quantile_is_a_quantile(n: int, share: float, delta: float) -> None:
    r = int(share * (n - 1))
    level = o.threshold_quantile(n, r, delta)
    assert 0 < level <= 1
    assert o.threshold_quantile(n, r, delta / 2) >= level
    assert o.threshold_quantile(n, r, delta, 3.0) == pytest.approx(3 * level)


@quick
@given(n=st.integers(1, 10**6), share=st.floats(0, 1), x=st.floats(0, 5))
def test_distribution_is_monotone(n: int, share: float, x: float) -> None:
    r = 1 + int(share * (n - 1))
    value = o.magnitude_order_cdf(n, r, x)["probability"]
    assert 0 <= value <= 1
    assert o.magnitude_order_cdf(n, r, x + 0.1)["probability"] >= value
    assert o.magnitude_order_cdf(n, r, 3 * x, 3.0)["probability"] == pytest.approx(value, rel=1e-6, abs=1e-12)
    assert o.magnitude_order_cdf(n, r, 0.0)["probability"] == 0.0


def test_first_order_means() -> None:
    assert o.small_order_mean(99, 2, 3.0) == pytest.approx(3 * math.sqrt(math.pi / 2) * 0.02)
    assert o.small_order_mean_general(100, 2, 4.0) == 0.005


@pytest.mark.parametrize(
    ("sparsity", "quantile"),  # the quantiles with forty digits by mpmath, rounded
    [
        (1e-18, 1.2533141373155003e-18),
        (0.3, 0.3853204664075676),
        (0.7, 1.0364333894937894),
        (1.0 - 1e-12, 7.130509892879273),
    ],
)
def test_a_global_threshold_keeps_its_digits_in_both_tails(sparsity: float, quantile: float) -> None:
    """One layer of standard normal weights: the threshold is a quantile."""
    assert o.global_threshold([1000], [1.0], sparsity)["threshold"] == pytest.approx(quantile, rel=1e-9, abs=0.0)
