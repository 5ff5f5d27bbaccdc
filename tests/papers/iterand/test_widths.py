from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.papers.iterand._best_pair import _tanh_sinh
from prunus.papers.iterand._windows import _binomial
from prunus.theory import iterand
from support.theory import agree, assert_published_differs, assert_published_forms_are_recorded, cases, verify

quick = settings(max_examples=40, deadline=None, derandomize=True)
errors = st.floats(0.01, 1.0)
deltas = st.floats(1e-6, 0.9)
resamplings = st.integers(1, 2000)


@pytest.mark.parametrize("claim, case", cases("iterand"))
def test_reference_value(claim, case):
    verify(claim, case)


# --- where the published formula is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identifier, arguments",
    [
        ("I-4c", {"samples": 45000, "batch": 128}),
        ("I-8c", {"error": 0.2}),
        ("I-9a", {"error": 0.5, "delta": 0.01, "resamples": 10}),
        ("I-9b", {"error": 0.5, "half": 1, "resamples": 19}),
        ("I-9d", {"error": 0.5, "delta": 0.01}),
        ("I-10a", {"window": 0.05, "resamples": 30, "half": 2, "outputs": 3}),
        ("I-10b", {"outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 10}),
        ("I-11", {"inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 100}),
        ("I-12a", {"layers": 2, "inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 551}),
        ("I-12b", {"layers": 2, "inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1}),
        ("I-12e", {"inputs": 4, "error": 0.5}),
        ("I-12f", {"widths": [4, 3, 3], "error": 0.5, "delta": 0.1, "resamples": 100}),
    ],
)
def test_the_published_formula_differs(identifier, arguments):
    assert_published_differs(identifier, arguments)


def test_published_forms_are_recorded():
    assert_published_forms_are_recorded("iterand")


@quick
@given(errors, st.integers(0, 50), resamplings)
def test_printed_failure_is_a_lower_bound(error, half, resamples):
    true, printed = (
        iterand.resampled_failure(error, half, resamples),
        iterand.resampled_failure_printed(error, half, resamples),
    )
    assert printed["half_failure"] <= true["half_failure"] * (1 + 1e-9)
    if resamples == 1:
        assert agree(printed["half_failure"], true["half_failure"], 1e-9)


def test_the_statement_itself_is_false_for_small_failures():
    for delta, holds in ((0.01, True), (1e-4, False), (1e-8, False)):
        printed = iterand.sufficient_resamples_printed(0.1, delta)["resamples"]
        assert (iterand.best_pair_failure(0.1, printed)["failure"] <= delta) == holds


# --- properties ------------------------------------------------------------------------------------------------------


@quick
@given(errors, deltas, resamplings)
def test_widths_suffice_and_fall_with_resampling(error, delta, resamples):
    width = iterand.resampled_width(error, delta, resamples)
    assert width % 2 == 0
    assert iterand.resampled_failure(error, width // 2, resamples)["failure"] <= delta
    assert iterand.resampled_width(error, delta, resamples + 1) <= width
    assert width <= iterand.simple_width(error, delta, resamples)["width"]
    assert iterand.resampled_width(error, delta, 1) <= iterand.fixed_width(error, delta)


@quick
@given(errors, deltas, st.integers(1, 30))
def test_minimal_resamples_is_minimal(error, delta, half):
    result = iterand.minimal_resamples(error, delta, half)
    assert result["failure"] <= delta
    assert result["failure"] == iterand.resampled_failure(error, half, result["resamples"])["failure"]
    if result["resamples"] > 1:
        assert iterand.resampled_failure(error, half, result["resamples"] - 1)["failure"] > delta
    assert (
        iterand.minimal_resamples(error, delta)["resamples"] <= iterand.sufficient_resamples(error, delta)["resamples"]
    )


@quick
@given(st.floats(1e-6, 0.99), resamplings, st.integers(0, 40), st.integers(1, 12))
def test_coordinate_success_is_a_probability_and_grows_with_neurons(window, resamples, half, outputs):
    success = iterand.coordinate_success(window, resamples, half, outputs)
    assert 0 <= success <= 1 + 1e-12
    assert success <= iterand.coordinate_success(window, resamples, half + 1, outputs) + 1e-12
    assert iterand.coordinate_success(window, resamples, half, outputs + 1) <= success + 1e-12


@quick
@given(st.floats(-1, 1), errors, st.integers(0, 60))
def test_uniform_miss_is_symmetric_and_worst_at_the_ends(target, error, n):
    miss = iterand.uniform_miss(n, error, target)
    assert agree(miss, iterand.uniform_miss(n, error, -target), 1e-9, 1e-300)
    assert 0 <= miss <= iterand.uniform_miss(n, error) * (1 + 1e-12)


def test_uniform_miss_when_every_draw_hits():
    assert iterand.uniform_miss(3, 1.0, 0.0) == 0.0
    assert iterand.uniform_miss(0, 1.0, 0.0) == 1.0


@quick
@given(st.floats(0, 1), resamplings)
def test_hits_lie_between_their_bounds(window, resamples):
    result = iterand.hit_probability(window, resamples)
    assert result["lower"] <= result["hit"] * (1 + 1e-12) <= min(1.0, window * resamples) * (1 + 1e-9)


def test_narrow_and_certain_windows_keep_their_digits():
    # s = 1e-9: width ln(2/delta) / s^2
    width = iterand.resampled_width(4e-9, 0.5, 1)
    assert agree(float(width), 2 * math.log(4) * 1e18, 1e-9)
    # s near 1: one neuron misses with chance 2 (3/4)^R
    failure = iterand.resampled_failure(1.0, 1, 400)["half_failure"]
    assert agree(failure, 2 * 0.75**400, 1e-9)
    assert iterand.resampled_failure(1.0, 1, 10**6)["failure"] == 0.0
    assert iterand.resampled_width(1.0, 1e-300, 10**6) == 2


@pytest.mark.parametrize("half, resamples", [(4095, 3), (4097, 3), (50_000, 1), (10**7, 1)])
def test_large_binomial_sums_agree_with_the_closed_form_of_two_outputs(half, resamples):
    window = 0.001
    s = 1 - (1 - window) ** resamples
    one, two = (1 - s**2) ** half, (1 - s + s * (1 - s) ** 2) ** half
    assert agree(iterand.coordinate_success(window, resamples, half, 2), 1 - 2 * one + two, 1e-9, 1e-10)
    assert agree(iterand.coordinate_success(window, resamples, half, 1), 1 - one, 1e-9, 1e-10)


def test_coordinate_success_with_certain_hits():
    assert iterand.coordinate_success(0.5, 5000, 1, 7) == pytest.approx(1.0)
    assert iterand.coordinate_success(0.5, 5000, 0, 7) == 0.0
    assert iterand.coordinate_success(1e-300, 1, 5, 1) == pytest.approx(0.0, abs=1e-290)


def test_layer_success_keeps_small_and_large_values():
    assert 0 < iterand.layer_success(2, 4, 3, 0.5, 1, 8)["success"] < 1e-50
    sure = iterand.layer_success(1, 3, 2, 1.0, 5000, 12)
    assert 1 - 1e-12 < sure["success"] <= sure["coordinate"] <= 1
    assert iterand.layer_success(1, 3, 2, 1.0, 5, 0) == {"coordinate": 0.0, "success": 0.0}


@quick
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.floats(0.3, 1),
    st.floats(0.001, 0.5),
    st.integers(20, 400),
)
def test_smallest_layer_width_is_smallest(layers, inputs, outputs, error, delta, resamples):
    width = iterand.smallest_layer_width(layers, inputs, outputs, error, delta, resamples)
    success = [
        iterand.layer_success(layers, inputs, outputs, error, resamples, w)["success"]
        for w in (width, width - 2 * inputs)
    ]
    assert success[0] >= 1 - delta / layers - 1e-12
    assert success[1] < 1 - delta / layers + 1e-12
    assert width <= iterand.layer_width(layers, inputs, outputs, error, delta, resamples)["width"]


def test_whole_floats_are_welcome_and_give_whole_numbers():
    plan = iterand.layer_width(2.0, 4.0, 3.0, 0.5, 0.1, 100.0)
    assert plan["width"] == 352
    assert isinstance(plan["width"], int)
    assert isinstance(iterand.smallest_layer_width(2.0, 4.0, 3.0, 0.5, 0.1, 100.0), int)
    assert iterand.matrix_width_printed(4.0, 3.0, 0.5, 0.1, 100) == 16


@quick
@given(errors, st.integers(1, 400))
def test_best_pair_failure_is_a_probability_and_sharing_draws_helps(error, resamples):
    result = iterand.best_pair_failure(error, resamples)
    assert 0 <= result["failure"] <= result["independent"] * (1 + 1e-9) <= 1 + 1e-9
    assert iterand.best_pair_failure(error, resamples + 1)["failure"] <= result["failure"] * (1 + 1e-9)


def test_best_pair_failure_of_one_draw_in_closed_form():
    for error in (0.1, 0.5, 0.9):
        c = 1 - error
        one = (1 - c + c * math.log(c)) / 4
        assert agree(iterand.best_pair_failure(error, 1)["failure"], 1 - 2 * one**2, 1e-12)
        assert agree(iterand.best_pair_failure(error, 1)["independent"], (1 - one**2) ** 2, 1e-12)


@quick
@given(st.integers(1, 10**6), st.floats(0, 1))
def test_pruned_counts_differ_by_one_at_most(n, sparsity):
    exact, published, hidden = (iterand.pruned_count(n, sparsity, rule) for rule in ("exact", "iterand", "hidden"))
    assert abs(exact - sparsity * n) <= 0.5 + 1e-6
    assert exact - 1 <= hidden <= exact
    assert exact - 2 <= published <= exact
    assert iterand.pruned_count(n, sparsity) == exact


def test_pruned_counts_take_decimals_as_written():
    assert iterand.pruned_count(100, 0.29, "hidden") == 29  # 0.29 * 100 is 28.999... in binary
    assert iterand.pruned_count(5, 0.5) == 2
    assert iterand.pruned_count(7, 0.5) == 4
    assert iterand.open_lth_removed(100, 0.07) == {"asked": 7, "removed": 8}
    assert iterand.open_lth_removed(2, 0.9) == {"asked": 2, "removed": 2}


@quick
@given(st.floats(0, 0.99), st.integers(1, 30))
def test_equal_fractions_reach_the_sparsity(sparsity, rounds):
    fraction = iterand.equal_fraction(sparsity, rounds)
    assert agree(iterand.imp_density(rounds, fraction)["sparsity"], sparsity, 1e-10, 1e-15)


def test_defaults():
    assert iterand.iteration_count(100, 30) == 4
    assert iterand.iteration_count_printed(100, 30) == 3
    assert iterand.iteration_count_printed(100, 30, 2) == 6
    assert iterand.iteration_count(100, 30, 0) == 0
    assert iterand.imp_density(2)["density"] == pytest.approx(0.64)
    assert iterand.equal_fraction(0.875) == pytest.approx(0.5)
    assert iterand.open_lth_removed(10)["asked"] == 2
    assert iterand.fan_in(3) == 3
    assert iterand.score_bound(6) == 1.0
    assert iterand.minimal_resamples(0.5, 0.1) == iterand.minimal_resamples(0.5, 0.1, 1)
    assert iterand.resampled_failure_printed(0.5, 1, 2) == iterand.resampled_failure_printed(0.5, 1, 2, -0.3)


def test_small_sparsity_keeps_its_digits():
    assert iterand.imp_density(3, 1e-12)["sparsity"] == pytest.approx(3e-12, rel=1e-9)
    assert iterand.equal_fraction(3e-12, 3) == pytest.approx(1e-12, rel=1e-9)
    assert iterand.cosine_step(1.0, 999_999, 1_000_000) == pytest.approx((math.pi / 2e6) ** 2, rel=1e-9)


# --- the constructive proof ------------------------------------------------------------------------------------------

TARGET = np.array([[0.7, -0.2], [-1.0, 0.0], [0.4, 1.0]])


def test_construction_keeps_one_pair_for_each_weight_and_sign():
    built = iterand.construct(TARGET, 0.5, 200, seed=3)
    assert built.complete
    (layer,) = built.layers
    width = iterand.matrix_width(2, 3, 0.5, 0.05, 200)["width"]
    assert built.widths == [width]
    assert layer.inner.shape == layer.inner_mask.shape == (width, 2)
    assert layer.outer.shape == layer.outer_mask.shape == (3, width)
    assert int(layer.outer_mask.sum()) == 2 * TARGET.size
    assert (layer.inner_mask.sum(axis=1) <= 1).all()
    assert built.kept == int(layer.outer_mask.sum() + layer.inner_mask.sum())
    assert np.abs(layer.inner).max() <= 1
    assert np.abs(layer.outer).max() <= 1
    tolerance = 0.5 / (2 * 2 * math.sqrt(3))
    kept = layer.inner[layer.inner_mask]
    assert (np.abs(np.abs(kept) - 1) <= tolerance).all()
    half = width // 4
    for (k, j), (number, sign) in itertools.product(np.ndindex(3, 2), enumerate((1.0, -1.0))):
        block = slice((2 * j + number) * half, (2 * j + number + 1) * half)
        (value,) = layer.outer[k, block][layer.outer_mask[k, block]]
        assert abs(value - sign * TARGET[k, j]) <= tolerance
    assert built.error <= 0.5


def test_construction_computes_the_target_within_the_error():
    built = iterand.construct(TARGET, 0.3, 400, seed=1)
    points = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    gaps = np.linalg.norm(built(points) - points @ TARGET.T, axis=1)
    assert built.complete
    assert gaps.max() <= built.error <= 0.3  # the vertices hold the largest error of one layer
    assert built([1.0, 0.5]).shape == (1, 3)


def test_construction_of_a_network_uses_relu_between_layers():
    first, second = np.array([[0.5, -0.8], [0.9, 0.1]]), np.array([[1.0, -0.6]])
    built = iterand.construct([first, second], 1.0, 800, seed=2)
    assert built.complete
    assert built.widths == iterand.network_plan([2, 2, 1], 1.0, 0.05, 800)["ticket_widths"]
    points = np.random.default_rng(1).uniform(-1, 1, (300, 2))
    exact = np.maximum(points @ first.T, 0) @ second.T
    assert np.abs(built(points) - exact).max() <= iterand.sup_norm_error(2, 1.0)["guaranteed"]
    assert built.error <= iterand.sup_norm_error(2, 1.0)["guaranteed"]
    assert float(np.abs(exact).max()) > 0.5


def test_construction_is_reproducible_and_seeds_differ():
    first, again, other = (iterand.construct(TARGET, 0.5, 50, seed=s, half=3) for s in (5, 5, 6))
    assert np.array_equal(first.layers[0].inner, again.layers[0].inner)
    assert np.array_equal(first.layers[0].outer_mask, again.layers[0].outer_mask)
    assert first.error == again.error
    assert not np.array_equal(first.layers[0].inner, other.layers[0].inner)
    default = iterand.construct(TARGET, 0.5, 50, half=3)
    assert np.array_equal(default.layers[0].inner, iterand.construct(TARGET, 0.5, 50, seed=0, half=3).layers[0].inner)


@pytest.mark.parametrize("resamples", [1, 2, 200])
def test_weights_of_the_construction_are_uniform(resamples):
    """Windows of chance 1e-4 almost never hit, so what is left are plain draws from [-1, 1]."""
    (layer,) = iterand.construct([[1.0, 0.5]], 4e-4, resamples, seed=4, half=1000).layers
    for values in (layer.inner, layer.outer):
        assert -1 <= values.min() < -0.99
        assert 0.99 < values.max() <= 1
        assert abs(values.mean()) < 6 / math.sqrt(3 * values.size)
        assert abs((values**2).mean() - 1 / 3) < 6 * math.sqrt(4 / 45 / values.size)


def test_construction_uses_exactly_the_values_it_may():
    """With R values per weight a neuron's inner weight hits with chance 1 - (1 - q)^R: counted over many neurons."""
    for resamples in (1, 2, 64, 65, 130):
        (layer,) = iterand.construct([[1.0]], 0.04, resamples, seed=8, half=20_000).layers
        near = np.abs(np.abs(layer.inner[:, 0]) - 1) <= 0.02
        right_sign = np.sign(layer.inner[:, 0]) == np.repeat([1, -1], 20_000)
        hit = iterand.hit_probability(0.01, resamples)["hit"]
        spread = 5 * math.sqrt(hit * (1 - hit) / 40_000)
        assert abs((near & right_sign).mean() - hit) < spread


def test_failed_construction_shows_its_error():
    built = iterand.construct([[1.0, 0.0], [0.0, -1.0]], 0.01, 1, seed=0, half=1)
    assert not built.complete
    assert built.kept == 0
    assert built.error == pytest.approx(math.sqrt(2))  # attained at a corner
    record = iterand.constructed_error([[1.0, 0.0], [0.0, -1.0]], 0.01, 1, 1)
    assert record == {"complete": False, "error": built.error, "kept": 0}


def test_construction_with_many_inputs_samples_the_vertices():
    wide = np.full((1, 12), 0.01)
    built = iterand.construct(wide, 1.0, 1, seed=0, half=1)
    assert 0 < built.error <= 0.12 + 1e-12


def test_success_of_interior_weights_exceeds_that_of_the_ends():
    ends, inside = (iterand.construction_success([[w]], 0.5, 5, 2) for w in (1.0, 0.3))
    assert ends < inside < 1
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    single = iterand.construction_success(matrix, 0.5, 60, 2)
    as_network = iterand.construction_success([matrix], 1.0, 60, 2)
    assert agree(single, as_network, 1e-12)  # the network form reserves half of the error
    twice = iterand.construction_success([matrix, matrix], 1.0, 60, 2)
    assert agree(twice, iterand.layer_success(2, 2, 2, 1.0, 60, 8)["success"] ** 2, 1e-10)


# --- inside ----------------------------------------------------------------------------------------------------------


def test_quadrature_nodes_reach_both_ends():
    nodes, weights = _tanh_sinh(0.0, 1.0)
    assert nodes.size == 257
    assert nodes[0] < 1e-36
    assert nodes[128] == pytest.approx(0.5)
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    assert weights @ nodes**7 == pytest.approx(1 / 8, rel=1e-13)


def test_binomial_sum_is_cut_at_forty_standard_deviations():
    counts, weights = _binomial(10**8, math.log(0.5))
    assert counts.size == 2 * 40 * (5000 + 10) + 1
    assert weights.sum() == pytest.approx(1.0, rel=1e-13)
    assert weights @ counts == pytest.approx(5e7, rel=1e-12)
    assert weights @ (counts - 5e7) ** 2 == pytest.approx(2.5e7, rel=1e-9)
    counts, weights = _binomial(3, math.log(0.25))
    assert counts.tolist() == [0, 1, 2, 3]
    assert weights == pytest.approx([1 / 64, 9 / 64, 27 / 64, 27 / 64], rel=1e-14)
