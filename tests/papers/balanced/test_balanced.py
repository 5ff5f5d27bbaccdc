from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special, stats

from prunus.errors import BadInput
from prunus.papers.balanced import bank_cost, bank_energy, limit_energy
from prunus.theory import balanced as b
from prunus.theory import claims
from support.theory import cases, checks_of, unchecked, verify

LAWS = st.sampled_from(["normal", "uniform", "laplace"])
few = settings(max_examples=40, deadline=None, derandomize=True)
MATRIX = [[0.9, -0.1, 0.4, -0.3, 0.05, 1.1, -0.7, 0.2], [0.15, -0.25, 0.35, 0.45, -2.0, 1.5, 0.6, -0.55]]


@pytest.mark.parametrize("claim, case", cases("balanced"))
def test_case(claim, case):
    verify(claim, case)


@pytest.mark.parametrize("check", checks_of("balanced"))
def test_check(check):
    assert check.run()


def test_every_claim_has_a_check():
    assert not unchecked("balanced")


# Relative excess in percent for banks of 4, 8, ..., 1024 (ledger B-6).
CURVES = {
    0.25: (261.516, 126.979, 61.659, 30.222, 14.937, 7.422, 3.699, 1.846, 0.922),
    0.5: (85.693, 44.838, 22.863, 11.532, 5.790, 2.901, 1.452, 0.726, 0.363),
    0.75: (38.371, 21.336, 11.252, 5.775, 2.925, 1.472, 0.738, 0.370, 0.185),
    0.875: (None, 14.099, 7.770, 4.082, 2.091, 1.058, 0.532, 0.267, 0.134),
    0.9375: (None, None, 5.977, 3.273, 1.714, 0.877, 0.444, 0.223, 0.112),
}


@pytest.mark.parametrize("sparsity", CURVES)
def test_design_curve(sparsity):
    for exponent, percent in enumerate(CURVES[sparsity], start=2):
        if percent is not None:
            assert b.excess_curve(sparsity, 2**exponent)["percent"] == pytest.approx(percent, abs=0.002)


@pytest.mark.parametrize(
    "sparsity, rules, exact",
    [
        (0.5, (36.2, 73.4, 371.0), (38, 76, 372)),
        (0.75, (18.0, 36.9, 188.5), (20, 40, 192)),
        (0.875, (12.7, 26.4, 136.1), (16, 32, 136)),
        (0.9375, (10.5, 22.0, 113.8), (16, 32, 112)),
    ],
)
def test_smallest_banks_of_the_ledger(sparsity, rules, exact):
    for allowance, rule, bank in zip((0.1, 0.05, 0.01), rules, exact):
        assert b.smallest_bank_rule(sparsity, allowance) == pytest.approx(rule, abs=0.06)
        assert b.smallest_bank(sparsity, allowance)["bank"] == bank


def test_smallest_bank_honours_its_step():
    assert b.smallest_bank(0.5, 0.1, step=16)["bank"] == 48
    assert b.smallest_bank(0.5, 0.1, step=3)["bank"] == 42
    assert b.smallest_bank(0.5, 5.0)["bank"] == 2
    assert b.smallest_bank(2 / 3, 0.1)["bank"] % 3 == 0
    assert b.smallest_bank(0.5, 0.1, law="laplace")["bank"] > 38
    exactly = bank_cost(40, 20)["relative"]
    assert b.smallest_bank(0.5, exactly)["bank"] == 40
    assert b.smallest_bank(0.5, exactly * (1 - 1e-9))["bank"] == 42
    large = b.smallest_bank(1023 / 1024, 1e-5)
    assert (
        large["relative"] <= 1e-5 < bank_cost(large["bank"] - 1024, (large["bank"] - 1024) // 1024 * 1023)["relative"]
    )


@few
@given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 8), st.integers(2, 12), LAWS, st.data())
def test_balancing_never_pays_in_energy(rows, banks, factor, bank, law, data):
    r = data.draw(st.integers(1, bank))
    values = b.energy_order(rows, banks * factor * bank, banks * factor, r, law)
    assert values["ordered"]
    assert values["balanced"] == bank_energy(bank, r, law)
    merged = b.energy_order(rows, banks * factor * bank, banks, r * factor, law)
    assert merged["balanced"] <= values["balanced"] * (1 + 1e-12)
    assert merged["unstructured"] == values["unstructured"]
    assert values["limit"] == limit_energy(r / bank, law)["energy"]


@few
@given(
    hnp.arrays(np.float64, (3, 12), elements=st.floats(-4, 4).map(lambda x: round(x, 1))),
    st.sampled_from([2, 3, 4, 6]),
    st.data(),
)
def test_tensors(weights, bank, data):
    r = data.draw(st.integers(0, bank))
    result = b.tensor_energy(weights, bank, r)
    keep = result["keep"]
    assert keep.shape == weights.shape
    assert (keep.reshape(-1, bank).sum(axis=1) == bank - r).all()
    assert 0.0 <= result["unstructured"] <= result["random_layout"] + 1e-12 <= 1.0 + 2e-12
    assert result["unstructured"] <= result["balanced"] + 1e-12
    total = np.square(weights).sum()
    if total > 0:
        assert result["balanced"] == pytest.approx(np.square(weights)[keep == 0].sum() / total, abs=1e-12)
        doubled = b.tensor_energy(-2.5 * weights, bank, r)
        assert doubled["balanced"] == pytest.approx(result["balanced"], abs=1e-12)
        assert (doubled["keep"] == keep).all()
    merged = b.tensor_energy(weights, 12, r * 12 // bank)
    assert merged["balanced"] <= result["balanced"] + 1e-12


def test_ties_go_by_position():
    assert b.tensor_energy([[1.0, -1.0, 1.0, -1.0]], 4, 2)["keep"] == [[0, 0, 1, 1]]
    assert b.tensor_energy([[0.0, 1.0, 0.0, 0.0]], 4, 2)["keep"] == [[0, 1, 0, 1]]
    assert b.tensor_energy([[1.0] * 6], 3, 1)["keep"] == [[0, 1, 1, 0, 1, 1]]


def test_all_zero_and_extreme_tensors():
    zeros = b.tensor_energy(np.zeros((2, 4)), 2, 1)
    assert (zeros["balanced"], zeros["unstructured"], zeros["random_layout"]) == (0.0, 0.0, 0.0)
    assert b.pruned_mean_square([0.0, 0.0], 1) == {"mean_square": 0.0, "energy": 0.0}
    assert b.random_layout_energy(np.zeros(4), 2, 2) == 0.0
    for scale in (1e-200, 1e200):
        small = b.tensor_energy(np.array(MATRIX) * scale, 4, 2)
        assert small["balanced"] == pytest.approx(0.08781450419338925, rel=1e-12)
    assert b.pruned_mean_square([3.0, 4.0], 2)["mean_square"] == 12.5
    assert isinstance(b.tensor_energy(np.array(MATRIX), 4, 2)["keep"], np.ndarray)


@pytest.mark.parametrize("bank, r", [(2, 1), (4, 1), (4, 3), (8, 7), (16, 5), (64, 63), (64, 1), (32, 30)])
def test_random_layout_against_the_hypergeometric_sum(bank, r):
    weights = np.random.default_rng(3).laplace(size=64)
    squares = np.sort(np.square(weights))
    chances = stats.hypergeom.cdf(r - 1, 63, np.arange(64), bank - 1)
    expected = float((squares * chances).sum() / squares.sum())
    assert b.random_layout_energy(weights, bank, r) == pytest.approx(expected, rel=1e-11)
    assert b.random_layout_energy(weights.reshape(8, 8), bank, r) == pytest.approx(expected, rel=1e-11)


def test_random_layout_of_equal_weights_is_the_sparsity():
    ones = np.ones(1 << 22)
    for bank, r in ((4, 1), (1 << 10, 1000), (1 << 20, 1 << 19)):
        assert b.random_layout_energy(ones, bank, r) == pytest.approx(r / bank, rel=1e-12)


def test_random_layout_approaches_the_law_of_the_weights():
    weights = stats.norm.ppf((np.arange(1 << 18) + 0.5) / (1 << 18))
    assert b.random_layout_energy(weights, 16, 12) == pytest.approx(bank_energy(16, 12), rel=1e-4)


@few
@given(st.floats(0.05, 0.95), st.integers(4, 2000), LAWS)
def test_first_order(sparsity, bank, law):
    first = b.first_order_energy(sparsity, bank, law)
    assert first["energy"] == pytest.approx(limit_energy(sparsity, law)["energy"] + first["excess"], rel=1e-14)
    assert first["relative"] == pytest.approx(first["excess"] / limit_energy(sparsity, law)["energy"], rel=1e-12)
    assert b.smallest_bank_rule(sparsity, first["relative"], law) == pytest.approx(bank, rel=1e-9)


def test_first_order_is_good_from_sixteen_on():
    for sparsity, bank in itertools.product((0.5, 0.75, 0.9375), (16, 32, 64)):
        assert b.first_order_energy(sparsity, bank)["energy"] == pytest.approx(
            bank_energy(bank, round(sparsity * bank)), rel=0.01
        )


def test_row_errors_scale():
    one = b.row_error(64, 16, 12)
    other = b.row_error(128, 16, 12, 3.0, 0.5)
    assert other["squared_error"] == pytest.approx(2 * 2.25 * one["squared_error"], rel=1e-14)
    assert other["relative"] == one["relative"] == bank_energy(16, 12)
    assert b.row_error(64, 16, 0)["decibels"] == math.inf
    assert math.copysign(1.0, b.row_error(64, 16, 16)["decibels"]) == 1.0
    assert b.row_error(64, 16, 0)["squared_error"] == 0.0
    assert b.row_error(16, 16, 12)["squared_error"] == pytest.approx(16 * one["relative"], rel=1e-14)


def test_correlated_rows_come_as_matrices_too():
    moments = np.full((8, 8), 0.5) + 0.5 * np.eye(8)
    mask = np.array(b.tensor_energy(MATRIX, 4, 2)["keep"])
    removed = np.array(MATRIX) * (1 - mask)
    result = b.correlated_row_error(removed, moments)
    assert result["squared_error"] == pytest.approx([0.0825, 0.375], rel=1e-12)
    assert result["diagonal"] == pytest.approx([0.1425, 0.7475], rel=1e-12)
    white = b.correlated_row_error(removed[0], 2.0 * np.eye(8))
    assert white["squared_error"] == white["diagonal"] == pytest.approx(2.0 * np.square(removed[0]).sum(), rel=1e-14)
    assert b.correlated_row_error([1.0], [[0.0]])["squared_error"] == 0.0


def test_spread_of_rows():
    assert b.row_energy_spread(0.75)["spread"] == pytest.approx(0.12606, abs=1e-5)
    values = [b.row_energy_spread(sparsity)["spread"] for sparsity in (0.1, 0.3, 0.6, 0.9, 1.0)]
    assert values == sorted(values)


def test_product_moments_hang_together():
    moments = b.pruned_product_moments(0.5, 2.0, 0.2, 0.3)
    assert moments["variance"] == pytest.approx(4 * 0.3 + 0.25 * (0.3 - 0.04), rel=1e-14)
    assert b.pruned_product_moments(2.0, 0.0, -0.1, 0.01)["variance"] >= 0.0
    limit, bank = b.product_moments(0.75, 1.7, 0.3), b.bank_product_moments(32_000, 24_000, 1.7, 0.3)
    assert bank["variance"] == pytest.approx(limit["variance"], rel=1e-3)
    assert bank["fourth"] == pytest.approx(limit["fourth"], rel=1e-3)
    variance = b.pruned_variance(8, 64, 2, 24, 1.7, 0.3)["balanced"]
    assert variance == pytest.approx(b.bank_product_moments(32, 24, 1.7, 0.3)["variance"], rel=1e-13)
    for r in (1, 15, 31):
        energy = bank_energy(32, r)
        assert b.bank_product_moments(32, r)["fourth"] > 3 * (energy * 32 / r) ** 2


@few
@given(st.floats(-30, 30), st.integers(2, 200), st.data())
def test_characteristic_functions(t, n, data):
    r = data.draw(st.integers(1, n - 1))
    sigma = data.draw(st.floats(0.1, 3.0))
    bank, limit = b.bank_characteristic(t, n, r, sigma), b.limit_characteristic(t, r / n, sigma)
    mixture = b.mixture_characteristic(t, n, r, sigma)
    for value in (bank, limit, mixture):
        assert 0.0 < value <= 1.0 + 1e-12
    assert bank == b.bank_characteristic(-t, n, r, sigma)
    assert mixture == b.mixture_characteristic(-t, n, r, sigma)
    assert bank == pytest.approx(b.bank_characteristic(t * sigma, n, r), rel=1e-10)
    assert bank == pytest.approx(b.bank_characteristic(t, n, r, 1.0, sigma), rel=1e-12)
    assert limit == pytest.approx(b.limit_characteristic(t, r / n, 1.0, sigma), rel=1e-12)
    assert mixture == pytest.approx(b.mixture_characteristic(t, n, r, 1.0, sigma), rel=1e-12)
    # Weights that escape pruning complete the full law, whose value is known.
    assert bank * r / n < 1 / math.hypot(1.0, t * sigma) + 1e-12


def test_characteristic_function_far_out():
    for t in (0.0, 50.0, 1e4):
        assert b.bank_characteristic(t, 10**6, 750_000) == pytest.approx(b.limit_characteristic(t, 0.75), rel=1e-4)
    # Far out only weights near 0 count, and these are always pruned.
    assert b.bank_characteristic(1e6, 32, 24) == pytest.approx(32 / 24 / 1e6, rel=1e-6)
    assert b.bank_characteristic(3.0, 7, 7, 2.0, 0.5) == pytest.approx(1 / math.sqrt(10.0), rel=1e-14)
    assert b.limit_characteristic(2.0, 1.0) == pytest.approx(1 / math.sqrt(5.0), rel=1e-14)


def test_the_density_of_products():
    for x in (1e-200, 1e-3, 0.4, 2.0):
        assert b.product_density(x, 1.0) == pytest.approx(float(special.k0(x)) / math.pi, rel=1e-11)
        assert b.product_density(-x, 0.6, 1.3) == b.product_density(x, 0.6, 1.3)
        assert b.product_density(2 * x, 0.6, 2.0) == pytest.approx(b.product_density(x, 0.6) / 2, rel=1e-12)
        assert b.product_density_printed(2 * x, 0.6, 2.0) == pytest.approx(b.product_density_printed(x, 0.6), rel=1e-12)
    assert b.product_density(1e4, 0.5) == 0.0
    assert b.product_density(30.0, 0.75) > 0.0


@pytest.mark.parametrize("rows, columns, banks, r", [(32, 64, 4, 8), (64, 128, 8, 12), (512, 1024, 16, 58)])
def test_printed_variances_are_tiny_and_reversed(rows, columns, banks, r):
    right = b.pruned_variance(rows, columns, banks, r)
    printed = b.pruned_variance_printed(rows, columns, banks, r)
    assert right["ordered"] is True
    assert printed["ordered"] is False
    for name in ("unstructured", "balanced"):
        assert printed[name] < 0.02 * right[name]
    scaled = b.pruned_variance_printed(rows, columns, banks, r, 1.7, 0.5)
    assert scaled["balanced"] == pytest.approx(1.7 * 0.25 * printed["balanced"], rel=1e-13)
    assert scaled["unstructured"] == pytest.approx(1.7 * 0.25 * printed["unstructured"], rel=1e-13)


def test_a_matrix_of_one_bank_is_unstructured():
    for variance in (b.pruned_variance, b.pruned_variance_printed):
        only = variance(1, 8, 1, 3)
        assert only["unstructured"] == pytest.approx(only["balanced"], rel=1e-14)
        assert only["ordered"] is True


def test_printed_characteristic_function_is_not_one_at_zero():
    assert b.bank_characteristic_printed(0.0, 64, 32) < 0.1
    assert b.bank_characteristic_printed(2.0, 64, 32, 1.7, 0.5) == pytest.approx(
        1.7 * 0.25 * b.bank_characteristic_printed(0.0, 64, 32) / math.sqrt(5.0), rel=1e-13
    )
    assert b.product_density_printed(0.5, 0.75) != pytest.approx(b.product_density(0.5, 0.75), rel=0.04)
    for identifier in ("B-8a", "B-8d", "B-9b"):
        assert claims[identifier].printed_function is not None
    for identifier in ("B-1a", "B-4", "B-9a", "B-8b"):
        assert claims[identifier].printed_function is None


def test_mixture_scales():
    assert b.mixture_variance(16, 8, 1.7, 0.5) == pytest.approx(0.7225 * b.mixture_variance(16, 8), rel=1e-13)
    assert b.mixture_variance(16, 8) < bank_energy(16, 8) * 2


def test_prune_count_rounds_half_to_even():
    assert [b.prune_count(0.5, bank)["r"] for bank in (1, 3, 5, 7)] == [0, 2, 2, 4]
    assert b.prune_count(0.9, 64) == {"r": 58, "realised": 0.90625}
    assert b.excess_curve(0.7, 25)["r"] == 18


PAIR = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: b.ideal_time(0.0, 0.0, 0.5), "dense must be a finite number above 0"),
        (lambda: b.ideal_time(1.0, 2.0, 0.5), r"overhead must be a finite number in \[0, 1\], got 2"),
        (lambda: b.ideal_time(1.0, -0.1, 0.5), r"overhead .* \[0, 1\]"),
        (lambda: b.ideal_time(1.0, 0.1, 1.5), r"sparsity .* \[0, 1\]"),
        (lambda: b.prune_count(1.2, 8), r"sparsity .* \[0, 1\]"),
        (lambda: b.prune_count(0.5, 0), "bank must be a whole number of at least 1"),
        (lambda: b.energy_order(0, 4, 2, 1), "rows must be a whole number of at least 1"),
        (lambda: b.energy_order(1, 0, 1, 1), "columns must be a whole number of at least 1"),
        (lambda: b.energy_order(1, 4, 5, 1), r"banks must be a whole number in \[1, 4\]"),
        (lambda: b.energy_order(1, 4, 3, 1), "columns must be a multiple of banks, got 4 columns in 3 banks"),
        (lambda: b.energy_order(1, 4, 2, 3), r"r must be a whole number in \[1, 2\], got 3"),
        (lambda: b.energy_order(1, 4, 2, 0), r"r must be a whole number in \[1, 2\], got 0"),
        (lambda: b.first_order_energy(0.0, 4), r"sparsity .* \(0, 1\)"),
        (lambda: b.first_order_energy(1.0, 4), r"sparsity .* \(0, 1\)"),
        (lambda: b.first_order_energy(0.5, 0), "bank must be a whole number of at least 1"),
        (lambda: b.smallest_bank_rule(0.5, 0.0), "relative must be a finite number above 0"),
        (lambda: b.smallest_bank(0.0, 0.1), r"sparsity must be a finite number in \(0, 1\), got 0.0"),
        (lambda: b.smallest_bank(1.0, 0.1), r"sparsity must be a finite number in \(0, 1\), got 1.0"),
        (lambda: b.smallest_bank(0.5, 0.0), "relative must be a finite number above 0"),
        (lambda: b.smallest_bank(0.5, 0.1, 0), "step must be a whole number of at least 1"),
        (lambda: b.smallest_bank(0.1234567, 0.1), "sparsity must be a fraction with a denominator of at most 1024"),
        (lambda: b.smallest_bank(1e-9, 0.1), "sparsity must be a fraction with a denominator of at most 1024"),
        (lambda: b.smallest_bank(0.5, 1e-10), "No bank of up to 1000000000 weights .* allow at least"),
        (lambda: b.excess_curve(0.1, 4), "a bank of 4 loses nothing: the bank must hold at least 6 weights"),
        (lambda: b.excess_curve(0.9, 4), "a bank of 4 loses everything: the bank must hold at least 6 weights"),
        (lambda: b.excess_curve(0.5, 1), r"bank must be a whole number in \[2, "),
        (lambda: b.excess_curve(0.0, 4), r"sparsity .* \(0, 1\)"),
        (lambda: b.excess_curve(1.0, 4), r"sparsity .* \(0, 1\)"),
        (lambda: b.pruned_product_moments(0.0, -1.0, 0.0, 1.0), "sigma_input .* at least 0"),
        (lambda: b.pruned_product_moments(0.0, 1.0, 1.0, 0.9), "square_pruned .* at least"),
        (lambda: b.pruned_product_moments(math.nan, 1.0, 1.0, 2.0), "mean_input must be a finite number"),
        (lambda: b.pruned_product_moments(0.0, 1.0, math.inf, 2.0), "mean_pruned must be a finite number"),
        (lambda: b.row_error(10, 4, 2), "columns must be a multiple of bank, got 10 columns with banks of 4"),
        (lambda: b.row_error(0, 4, 2), "columns must be a whole number of at least 1"),
        (lambda: b.row_error(4, 0, 0), r"bank must be a whole number in \[1, 4\]"),
        (lambda: b.row_error(8, 4, 5), r"r must be a whole number in \[0, 4\]"),
        (lambda: b.row_error(8, 4, 2, 0.0), "sigma_input .* above 0"),
        (lambda: b.row_error(8, 4, 2, 1.0, -1.0), "sigma_weight .* above 0"),
        (lambda: b.correlated_row_error([1.0], PAIR), "moments must be a 1 x 1 matrix"),
        (lambda: b.correlated_row_error([[[1.0, 1.0]]], PAIR), "removed must be one row or a matrix of rows, got 3"),
        (lambda: b.correlated_row_error(1.0, [[1.0]]), "removed must be one row or a matrix of rows, got 0"),
        (lambda: b.correlated_row_error([1.0, 1.0], [[1.0, 0.5], [0.4, 1.0]]), "moments must be symmetric"),
        (lambda: b.correlated_row_error([1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]]), "an entry passes the root"),
        (lambda: b.correlated_row_error([1.0, 1.0], [[-1.0, 0.0], [0.0, 1.0]]), "an entry passes the root"),
        (lambda: b.correlated_row_error([1.0] * 3, 1.7 * np.eye(3) - 0.7), "negative squared error"),
        (lambda: b.correlated_row_error([1e-9] * 3, 1.7 * np.eye(3) - 0.7), "negative squared error"),
        (lambda: b.row_energy_spread(1.5), r"sparsity .* \[0, 1\]"),
        (lambda: b.pruned_variance(1, 4, 2, 1, 0.0), "sigma_input .* above 0"),
        (lambda: b.pruned_variance(1, 4, 2, 1, 1.0, 0.0), "sigma_weight .* above 0"),
        (lambda: b.pruned_variance_printed(1, 4, 2, 2), r"r must be a whole number in \[1, 1\], got 2"),
        (lambda: b.pruned_variance_printed(1, 4, 2, 1, 0.0), "sigma_input .* above 0"),
        (lambda: b.mixture_variance(1, 1), "n must be a whole number of at least 2"),
        (lambda: b.mixture_variance(4, 4), r"r must be a whole number in \[1, 3\]"),
        (lambda: b.mixture_variance(4, 0), r"r must be a whole number in \[1, 3\]"),
        (lambda: b.mixture_variance(4, 2, 0.0), "sigma_input .* above 0"),
        (lambda: b.limit_characteristic(math.inf, 0.5), "t must be a finite number"),
        (lambda: b.limit_characteristic(1.0, 0.0), r"sparsity .* \(0, 1\]"),
        (lambda: b.bank_characteristic(1.0, 0, 0), "n must be a whole number of at least 1"),
        (lambda: b.bank_characteristic(1.0, 4, 0), r"r must be a whole number in \[1, 4\]"),
        (lambda: b.bank_characteristic(1.0, 4, 2, 0.0), "sigma_input .* above 0"),
        (lambda: b.bank_characteristic_printed(1.0, 4, 4), r"r must be a whole number in \[1, 3\]"),
        (lambda: b.bank_characteristic_printed(1.0, 4, 0), r"r must be a whole number in \[1, 3\]"),
        (lambda: b.bank_characteristic_printed(1.0, 1, 1), "n must be a whole number of at least 2"),
        (lambda: b.mixture_characteristic(1.0, 4, 4), r"r must be a whole number in \[1, 3\]"),
        (lambda: b.product_moments(0.0), r"sparsity .* \(0, 1\]"),
        (lambda: b.bank_product_moments(4, 0), r"r must be a whole number in \[1, 4\]"),
        (lambda: b.bank_product_moments(0, 1), "n must be a whole number of at least 1"),
        (lambda: b.product_density(0.0, 0.5), "x must not be 0"),
        (lambda: b.product_density(1.0, 0.0), r"sparsity .* \(0, 1\]"),
        (lambda: b.product_density_printed(1.0, 0.5, 0.0), "sigma_input .* above 0"),
        (lambda: b.pruned_mean_square([1.0, 2.0], 3), r"r must be a whole number in \[1, 2\]"),
        (lambda: b.pruned_mean_square([1.0, 2.0], 0), r"r must be a whole number in \[1, 2\]"),
        (lambda: b.pruned_mean_square([1.0, math.nan], 1), "weights must hold finite numbers only"),
        (lambda: b.tensor_energy([1.0, 2.0], 2, 1), "weights must have 2 dimensions"),
        (lambda: b.tensor_energy(MATRIX, 3, 1), "bank must divide the row length, got banks of 3 in rows of 8"),
        (lambda: b.tensor_energy(MATRIX, 16, 1), r"bank must be a whole number in \[1, 8\]"),
        (lambda: b.tensor_energy(MATRIX, 4, 5), r"r must be a whole number in \[0, 4\]"),
        (
            lambda: b.random_layout_energy([1.0] * 6, 4, 1),
            "bank must divide the number of weights, got banks of 4 for 6",
        ),
        (lambda: b.random_layout_energy([1.0] * 6, 0, 0), r"bank must be a whole number in \[1, 6\]"),
        (lambda: b.random_layout_energy([1.0] * 6, 3, 4), r"r must be a whole number in \[0, 3\]"),
        (lambda: b.random_layout_energy([1.0] * 6, 3, -1), r"r must be a whole number in \[0, 3\]"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()


@pytest.mark.parametrize("sparsity", [1e-15, 1 - 1e-15])
def test_a_sparsity_next_to_an_end_is_no_fraction(sparsity):
    with pytest.raises(BadInput, match="denominator of at most 1024"):
        b.smallest_bank(sparsity, 0.05)
