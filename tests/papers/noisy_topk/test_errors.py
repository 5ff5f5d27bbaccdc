"""Errors and inverse problems of noisy top-k: the files `_errors` and `_inverse` of prunus.theory.swaps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import BadInput
from prunus.papers.balanced import bank_energy, limit_energy
from prunus.theory import noisy_topk as s

few = settings(max_examples=50, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    "k, threshold, slope, slope_printed, error, error_printed",
    [
        (0.001, 3.2905267315, 11.7074921792, 12.6957846870, 0.987304215313, 0.986316911098),
        (0.01, 2.5758293035, 7.5244100627, 8.4491659621, 0.915508340379, 0.906353256975),
        (0.05, 1.9599639845, 4.8231676586, 5.5820092757, 0.720899536216, 0.684854559406),
        (0.25, 1.1503493804, 2.5259037961, 2.8944278470, 0.276393038238, 0.207294778678),
        (0.5, 0.6744897502, 1.7146963290, 1.8573481645, 0.071325917744, 0.035662958872),
    ],
)
def test_constants_of_the_ledger(k, threshold, slope, slope_printed, error, error_printed):
    limit = s.topk_error_limit(100, k)
    assert limit["threshold"] == pytest.approx(threshold, abs=1e-10)
    assert s.swap_slope_limit(k) == pytest.approx(slope, abs=1e-9)
    assert s.swap_slope_limit_printed(k) == pytest.approx(slope_printed, abs=1e-9)
    assert limit["relative"] == pytest.approx(error, abs=1e-11)
    assert s.topk_error_limit_printed(100, k)["relative"] == pytest.approx(error_printed, abs=1e-11)
    # Both pairs of constants conserve the total energy: at theta = 0 they cannot be told apart.
    both = [s.expected_error_limit(1000, k, 0.0), s.expected_error_limit_printed(1000, k, 0.0)]
    assert both[0]["relative"] == pytest.approx(1 - k, rel=1e-12)
    assert both[1]["relative"] == pytest.approx(1 - k, rel=1e-12)
    sharp = [s.expected_error_limit(1000, k, 9.0), s.expected_error_limit_printed(1000, k, 9.0)]
    assert sharp[1]["relative"] < sharp[0]["relative"] * (1 - 0.9 * k)


@few
@given(st.floats(1e-7, 1 - 1e-7), st.floats(0.1, 9.0))
def test_limits_of_topk(k, sigma):
    limit = s.topk_error_limit(50, k, sigma)
    assert limit["relative"] == pytest.approx(limit_energy(1 - k)["energy"], rel=1e-6)
    assert limit["squared_error"] == pytest.approx(50 * sigma**2 * limit["relative"], rel=1e-14)
    assert limit["slope"] == pytest.approx(-50 * (sigma * limit["threshold"]) ** 2, rel=1e-14)
    kept, pruned = (1 - limit["relative"]) / k, limit["relative"] / (1 - k)
    assert s.swap_slope_limit(k) == pytest.approx(kept - pruned, rel=1e-6)
    assert s.swap_slope_limit_printed(k) == pytest.approx(1 + s.swap_slope_limit(k) * (1 - k), rel=1e-14)


@few
@given(st.integers(2, 300), st.data())
def test_exact_errors(d, data):
    m = data.draw(st.integers(1, d - 1))
    theta, sigma = data.draw(st.floats(0.0, 5.0)), data.draw(st.floats(0.1, 5.0))
    exact = s.expected_error(d, m, theta, sigma)
    lowest, highest = s.topk_error(d, m, sigma)["squared_error"], (d - m) * sigma**2
    assert lowest * (1 - 1e-12) <= exact["squared_error"] <= highest * (1 + 1e-12)
    assert exact["relative"] == pytest.approx(exact["squared_error"] / (d * sigma**2), rel=1e-14)
    assert s.expected_error(d, m, theta + 0.2, sigma)["squared_error"] < exact["squared_error"]
    assert s.swap_slope(d, m) == pytest.approx(
        (1 - bank_energy(d, d - m)) * d / m - bank_energy(d, d - m) * d / (d - m), rel=1e-9
    )
    assert s.error_after_swaps(d, m, m * (d - m) / d, sigma) == pytest.approx(highest, rel=1e-12)
    assert s.error_after_swaps(d, m, 0, sigma) == pytest.approx(lowest, rel=1e-14)
    noise = data.draw(st.floats(0.0, 2.0))
    assert s.total_error(d, m, theta, noise, sigma) == pytest.approx(exact["squared_error"] + m * noise, rel=1e-14)


def test_default_standard_deviation_is_one():
    assert s.topk_error(10, 3) == s.topk_error(10, 3, 1.0)
    assert s.topk_error_limit(10, 0.3) == s.topk_error_limit(10, 0.3, 1.0)
    assert s.expected_error(10, 3, 0.4) == s.expected_error(10, 3, 0.4, 1.0)
    assert s.expected_error_limit(10, 0.3, 0.4) == s.expected_error_limit(10, 0.3, 0.4, 1.0)
    assert s.expected_error_limit_printed(10, 0.3, 0.4) == s.expected_error_limit_printed(10, 0.3, 0.4, 1.0)
    assert s.error_after_swaps(10, 3, 1) == s.error_after_swaps(10, 3, 1, 1.0)
    assert s.error_at_local_epsilon(10, 3, 2.0) == s.error_at_local_epsilon(10, 3, 2.0, 1.0)
    assert s.feasible_budget(10, 0.3) == s.feasible_budget(10, 0.3, 1.0)
    assert s.best_k(0.3) == s.best_k(0.3, 1.0)
    assert s.total_error(10, 3, 0.4, 0.1) == s.total_error(10, 3, 0.4, 0.1, 1.0)
    scaled = s.error_at_local_epsilon(10, 3, 2.0, 0.5)
    assert scaled["squared_error"] == pytest.approx(
        s.error_at_local_epsilon(10, 3, 2.0)["squared_error"] / 4, rel=1e-14
    )
    assert s.topk_error_limit_printed(10, 0.3, 2.0)["squared_error"] == pytest.approx(
        4 * s.topk_error_limit_printed(10, 0.3)["squared_error"], rel=1e-14
    )


@few
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=12), st.data())
def test_given_gradients(gradient, data):
    m = data.draw(st.integers(1, len(gradient) - 1))
    ordered = sorted(x * x for x in gradient)
    cut = len(gradient) - m
    result = s.swap_slope_given(gradient, m)
    assert result["pruned_energy"] == pytest.approx(sum(ordered[:cut]), rel=1e-12, abs=1e-300)
    assert result["kept_energy"] == pytest.approx(sum(ordered[cut:]), rel=1e-12, abs=1e-300)
    assert result["slope"] >= -1e-12
    assert s.topk_error_given(gradient, m) == result["pruned_energy"]
    assert s.topk_error_given(np.array(gradient), 0) == pytest.approx(sum(ordered), rel=1e-12, abs=1e-300)
    assert s.topk_error_given(gradient, len(gradient)) == 0.0


def test_error_falls_with_the_kept_fraction_at_fixed_theta():
    for theta in (0.2, 1.0, 2.65):
        errors = [s.expected_error_limit(2000, m / 2000, theta)["relative"] for m in range(10, 1990, 45)]
        assert all(b < a for a, b in itertools.pairwise(errors))


def test_error_at_fixed_local_privacy_is_not_monotone():
    errors = [s.error_at_local_epsilon(20_000, m, 1000.0)["relative"] for m in (100, 130, 140, 200)]
    assert errors[1] < errors[0]
    assert errors[1] < errors[2] < errors[3]


@few
@given(st.floats(0.0, 30.0), st.floats(0.2, 4.0))
def test_best_fraction(variance, sigma):
    best = s.best_k(variance, sigma)
    assert 0.0 <= best["k"] <= 1.0
    assert best["squared_error"] <= min(sigma**2, variance) + 1e-12
    for k in (0.5 * best["k"], min(1.5 * best["k"], 1.0)):
        if k > 0:
            other = s.topk_error_limit(2, k, sigma)["squared_error"] / 2 + k * variance
            assert other >= best["squared_error"] - 1e-12


@few
@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(1e-12, 1.0, exclude_max=True))
def test_theta_for_swaps(m, others, share):
    wanted = share * m * others / (m + others)
    found = s.theta_for_swaps(m, others, wanted)
    assert found["theta"] >= 0.0
    assert s.swap_law(m, others, found["theta"])["mean"] == pytest.approx(wanted, rel=1e-11)
    if share < 0.999:
        start = -0.5 * math.log(wanted**2 / ((m - wanted) * (others - wanted)))
        assert found["start"] == pytest.approx(start, rel=1e-9, abs=1e-12)


def test_theta_for_hardly_any_swaps_and_for_nearly_all():
    assert s.theta_for_swaps(1, 1, 1e-300)["theta"] == pytest.approx(150 * math.log(10), rel=1e-12)
    assert s.theta_for_swaps(1, 1, 0.5) == {"theta": 0.0, "start": 0.0}
    # E = q/(1+q) for one against one.
    assert s.theta_for_swaps(1, 1, 0.2)["theta"] == pytest.approx(0.5 * math.log(4.0), rel=1e-13)
    near = s.theta_for_swaps(1, 1, 0.5 * (1 - 1e-9))["theta"]
    assert near == pytest.approx(0.5 * math.log((0.5 + 5e-10) / (0.5 - 5e-10)), rel=1e-6)
    assert s.theta_for_swaps(50_000_000, 50_000_000, 1.0)["theta"] == pytest.approx(17.4711875, rel=1e-8)


def test_theta_for_kept_at_its_ends():
    assert s.theta_for_kept(1000, 100, 0.1)["theta"] == 0.0
    assert s.theta_for_kept(7, 3, 3 / 7)["epsilon_local"] == 0.0
    found = s.theta_for_kept(1000, 700, 0.99)
    assert found["epsilon_local"] == pytest.approx(600 * found["theta"], rel=1e-14)
    assert found["epsilon_swap"] == 2 * found["theta"]


def test_budgets():
    limits = s.feasible_budget(1000, 0.1, 2.0)
    assert limits["highest"] == pytest.approx(3600.0, rel=1e-14)
    assert s.theta_for_error(1000, 0.1, limits["highest"], 2.0)["theta"] == 0.0
    found = s.theta_for_error(1000, 0.1, 3000.0, 2.0)
    assert s.error_after_swaps(1000, 100, found["swaps"], 2.0) == pytest.approx(3000.0, rel=2e-3)
    assert s.smallest_k(limits["lowest"] / 4000.0) == pytest.approx(0.1, rel=1e-10)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: s.index_sets(1, 0.5), "d must be a whole number of at least 2"),
        (lambda: s.index_sets(10, 0.25), "k times 10 must be a whole number, got 2.5: .* 0.2 and 0.3"),
        (lambda: s.index_sets(10, 0.0), r"k must be a finite number in \(0, 1\), got 0.0"),
        (lambda: s.index_sets(10, 1.0), r"k must be a finite number in \(0, 1\), got 1.0"),
        (lambda: s.index_sets(10, 1e-12), r"k times d must be a whole number in \[1, 9\], got 0"),
        (lambda: s.index_sets_printed(10, 0.25), "k times 10"),
        (lambda: s.topk_error_limit(1, 0.5), "d must be a whole number of at least 2"),
        (lambda: s.topk_error_limit(10, 0.0), r"k .* \(0, 1\]"),
        (lambda: s.topk_error_limit(10, 0.5, 0.0), "sigma must be a finite number above 0"),
        (lambda: s.topk_error(1, 1), "d must be a whole number of at least 2"),
        (lambda: s.topk_error(5, 6), r"m must be a whole number in \[0, 5\]"),
        (lambda: s.topk_error(5, -1), r"m must be a whole number in \[0, 5\]"),
        (lambda: s.topk_error(5, 2, -1.0), "sigma .* above 0"),
        (lambda: s.topk_error_given([1.0, 2.0], 3), r"m must be a whole number in \[0, 2\]"),
        (lambda: s.topk_error_given([1.0, math.nan], 1), "gradient must hold finite numbers only"),
        (lambda: s.swap_slope_limit(1.0), r"k .* \(0, 1\)"),
        (lambda: s.swap_slope_limit(0.0), r"k .* \(0, 1\)"),
        (lambda: s.swap_slope(5, 5), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.swap_slope(5, 0), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.swap_slope(1, 1), "d must be a whole number of at least 2"),
        (lambda: s.swap_slope_given([1.0], 1), "length of gradient must be a whole number of at least 2"),
        (lambda: s.swap_slope_given([1.0, 2.0], 2), r"m must be a whole number in \[1, 1\]"),
        (lambda: s.swap_slope_given([1.0, 2.0], 0), r"m must be a whole number in \[1, 1\]"),
        (lambda: s.error_after_swaps(10, 4, 5), r"swaps must be a finite number in \[0, 4\]"),
        (lambda: s.error_after_swaps(10, 7, 3.5), r"swaps must be a finite number in \[0, 3\]"),
        (lambda: s.error_after_swaps(10, 4, -0.1), r"swaps must be a finite number in \[0, 4\]"),
        (lambda: s.error_after_swaps(10, 0, 0), r"m must be a whole number in \[1, 9\]"),
        (lambda: s.expected_error(10, 4, -0.1), "theta must be a finite number of at least 0"),
        (lambda: s.expected_error(10, 10, 0.1), r"m must be a whole number in \[1, 9\]"),
        (lambda: s.expected_error(1, 1, 0.1), "d must be a whole number of at least 2"),
        (lambda: s.expected_error_limit(10, 0.25, 1.0), "k times 10 must be a whole number"),
        (lambda: s.expected_error_limit(10, 0.3, math.nan), "theta must be a finite number"),
        (lambda: s.total_error(10, 4, 0.1, -1.0), "variance must be a finite number of at least 0"),
        (lambda: s.error_at_local_epsilon(10, 4, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.error_at_local_epsilon(10, 0, 1.0), r"m must be a whole number in \[1, 9\]"),
        (lambda: s.feasible_budget(10, 1.0), r"k .* \(0, 1\)"),
        (lambda: s.best_k(-1.0), "variance must be a finite number of at least 0"),
        (lambda: s.best_k(1.0, 0.0), "sigma .* above 0"),
        (lambda: s.theta_for_swaps(0, 5, 1.0), "m must be a whole number of at least 1"),
        (lambda: s.theta_for_swaps(5, 0, 1.0), "others must be a whole number of at least 1"),
        (lambda: s.theta_for_swaps(10, 90, 9.1), r"swaps must be a finite number in \(0, 9\], got 9.1"),
        (lambda: s.theta_for_swaps(10, 90, 0.0), r"swaps must be a finite number in \(0, 9\]"),
        (lambda: s.theta_for_error(1000, 0.1, 500.0), r"exact top-k already costs 560.714: keep k > 0.124\d*, or"),
        (lambda: s.theta_for_error(1000, 0.1, 560.0), r"allow a budget in \(560.714, 900\]"),
        (lambda: s.theta_for_error(1000, 0.1, 901.0), r"above 900, the error of a random index set"),
        (lambda: s.theta_for_error(1000, 0.1, -1.0), "budget must be a finite number above 0"),
        (lambda: s.theta_for_error(1000, 0.12345, 700.0), "k times 1000 must be a whole number"),
        (lambda: s.smallest_k(0.0), r"budget .* \(0, 1\)"),
        (lambda: s.smallest_k(1.0), r"budget .* \(0, 1\)"),
        (lambda: s.theta_for_kept(1000, 100, 0.05), r"kept must be a finite number in \[0.1\d*, 1\)|kept must be"),
        (lambda: s.theta_for_kept(1000, 100, 1.0), "kept must be a finite number"),
        (lambda: s.theta_for_kept(1000, 0, 0.5), r"m must be a whole number in \[1, 999\]"),
        (lambda: s.theta_for_kept(1, 1, 0.5), "d must be a whole number of at least 2"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
