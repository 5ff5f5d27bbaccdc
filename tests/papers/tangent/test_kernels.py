from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import BadInput
from prunus.papers.tangent._split import draw_network, split_backward
from prunus.theory import tangent
from support.theory import agree, assert_published_differs, assert_published_forms_are_recorded, cases, verify

quick = settings(max_examples=40, deadline=None, derandomize=True)
angles = st.floats(0.0, math.pi)
depths = st.integers(1, 8)
densities = st.floats(0.01, 1.0)


@pytest.mark.parametrize("claim, case", cases("tangent"))
def test_reference_value(claim, case):
    verify(claim, case)


# --- where the published formula is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identifier, arguments",
    [
        ("K-2a", {"angle": 1.0, "depth": 3}),
        ("K-5", {"angle": 1.0, "depth": 3, "density": 0.5}),
        ("K-7b", {"density": 0.5, "layer": 2}),
        ("K-11a", {"probability": 0.1, "count": 1000, "deviation": 0.3}),
        ("K-12", {"sigma": 1.0, "scale": 1.0, "deviation": 2.0}),
        ("K-13b", {"frobenius": 1.0, "spectral": 1.0, "deviation": 20.0}),
        ("K-14a", {"density": 0.1, "deviation": 0.2, "delta": 0.05, "depth": 3, "rows": 1024}),
        ("K-15", {"delta": 0.05}),
    ],
)
def test_the_published_formula_differs(identifier, arguments):
    assert_published_differs(identifier, arguments)


def test_published_forms_are_recorded():
    assert_published_forms_are_recorded("tangent")


def test_printed_product_has_one_factor_more_in_every_term():
    true, printed = tangent.limiting_kernel(1.2, 3), tangent.limiting_kernel_printed(1.2, 3)
    extra = tangent.layer_covariances(1.2, 4)["derivatives"][3]
    assert agree(printed["terms"], [term * extra for term in true["terms"]], 1e-13)


def test_printed_subgamma_exponent_without_a_linear_part():
    assert tangent.subgamma_exponent_printed(1.0, 0.0, 2.0) == 2.0
    assert tangent.subgamma_exponent_printed(2.0, 1.0, 1.0) == 0.125


def test_printed_chernoff_is_violated_by_the_exact_tail():
    assert tangent.binomial_deviation_tail(0.1, 1000, 0.3) > tangent.chernoff_bound_printed(0.1, 1000, 0.3)


# --- accuracy at the ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-8, 1e-4])
def test_kernels_near_correlation_minus_one_keep_their_digits(gap):
    rho = -1 + gap
    gap = 1 + rho  # as the machine holds it
    small = 2 * math.asin(math.sqrt(gap / 2))
    kernels = tangent.arc_cosine_kernels(rho)
    assert agree(kernels["step"], small / math.pi, 1e-7)
    assert agree(kernels["ramp"], small**3 / (3 * math.pi) * (1 - small**2 / 10), 1e-6)


@pytest.mark.parametrize("angle", [1e-12, 1e-9, 1e-5])
def test_small_angles_survive_the_layers(angle):
    """1 - kappa 0 is linear in the angle, which shrinks by 2 t^3 / (6 pi) only: correlations would round to 1."""
    derivatives = tangent.layer_covariances(angle, 3)["derivatives"]
    for derivative in derivatives:
        assert agree(1 - derivative, angle / math.pi, 1e-3, 3e-16)


@pytest.mark.parametrize("excess", [0.3, 0.499999, 0.500001, 1.0])
def test_ramp_is_smooth_across_the_series(excess):
    angle = math.pi - excess
    expected = (math.sin(angle) + math.cos(angle) * (math.pi - angle)) / math.pi
    assert agree(tangent.layer_covariances(angle, 1)["covariances"][1], expected, 1e-12)


def test_next_layer_is_the_kernel_of_the_kernel():
    for angle in np.linspace(0, math.pi, 33):
        covariances = tangent.layer_covariances(angle, 4)["covariances"]
        for before, after in itertools.pairwise(covariances):
            assert agree(after, tangent.arc_cosine_kernels(before)["ramp"], 1e-12, 1e-12)


# --- properties ------------------------------------------------------------------------------------------------------


@quick
@given(angles, depths, st.floats(0, 5), st.floats(0, 5))
def test_limit_is_bihomogeneous_symmetric_and_sums_its_terms(angle, depth, norm_x, norm_y):
    unit, result = tangent.limiting_kernel(angle, depth), tangent.limiting_kernel(angle, depth, norm_x, norm_y)
    assert agree(result["limit"], norm_x * norm_y * unit["limit"], 1e-12, 1e-12)
    assert agree(result["limit"], tangent.limiting_kernel(angle, depth, norm_y, norm_x)["limit"], 1e-14, 1e-14)
    assert agree(math.fsum(result["terms"]), result["limit"], 1e-12, 1e-12)
    assert len(result["terms"]) == depth + 1
    assert abs(result["limit"]) <= (depth + 1) * norm_x * norm_y * (1 + 1e-12)


@quick
@given(angles, depths)
def test_covariances_grow_with_depth_and_stay_below_one(angle, depth):
    layers = tangent.layer_covariances(angle, depth)
    steps = np.diff(layers["covariances"])
    assert (steps >= -1e-15).all()
    assert max(layers["covariances"]) <= 1
    assert all(0 <= derivative <= 1 for derivative in layers["derivatives"])


@quick
@given(st.floats(-1, 1), st.floats(-1, 1))
def test_arc_cosine_kernels_increase(first, second):
    low, high = sorted((first, second))
    a, b = tangent.arc_cosine_kernels(low), tangent.arc_cosine_kernels(high)
    assert 0 <= a["step"] <= b["step"] <= 1
    assert 0 <= a["ramp"] <= b["ramp"] + 1e-15 <= 1 + 1e-15


def test_gram_matrix_of_the_limit_is_positive():
    random = np.random.default_rng(0)
    points = random.standard_normal((30, 4))
    norms = np.linalg.norm(points, axis=1)
    angles = np.arccos(np.clip(points @ points.T / np.outer(norms, norms), -1, 1))
    gram = tangent.limiting_kernel(angles, 3, norms[:, None], norms)["limit"]
    assert gram.shape == (30, 30)
    assert np.linalg.eigvalsh((gram + gram.T) / 2).min() > 0
    assert agree(gram[3, 5], tangent.limiting_kernel(angles[3, 5], 3, norms[3], norms[5])["limit"], 1e-12)


@quick
@given(angles, depths, densities)
def test_pruned_limits_lie_between_none_and_dense(angle, depth, density):
    dense = tangent.limiting_kernel(angle, depth)["limit"]
    pruned = tangent.pruned_limit(angle, depth, density)
    assert agree(pruned["limit"] * tangent.training_slowdown(density, depth), dense, 1e-10, 1e-12)
    assert pruned["factor"] == density**depth
    assert agree(tangent.weight_rescaled_limit(angle, depth, 1.0)["limit"], dense, 1e-12, 1e-12)
    assert tangent.weight_rescaled_limit_printed(angle, depth, density) == dense


@quick
@given(
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    densities,
    depths,
)
def test_pruned_input_is_symmetric_and_bounded(x, y, density, depth):
    result, mirrored = (
        tangent.pruned_input_limit(x, y, density, depth),
        tangent.pruned_input_limit(y, x, density, depth),
    )
    norms = math.hypot(*x) * math.hypot(*y)
    for name in result:
        assert agree(result[name], mirrored[name], 1e-7, 1e-9)
    assert abs(result["limit"]) <= (depth + 1) * norms * (1 + 1e-9) + 1e-12


def test_pruned_input_ignores_coordinates_that_are_zero_in_both():
    long = np.zeros(1000)
    long[[3, 700]] = 1.0, 2.0
    assert tangent.pruned_input_limit(long, long, 0.3, 3)["limit"] == pytest.approx(20.0, rel=1e-12)
    assert set(tangent.pruned_input_limit([1.0, 0.0], [0.0, 0.0], 0.5, 2).values()) == {0.0}


def test_pruned_input_in_several_chunks():
    x = np.linspace(-1, 1, 17)
    y = np.cos(np.arange(17.0))
    angle = math.acos(float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y)))
    dense = tangent.limiting_kernel(angle, 2, float(np.linalg.norm(x)), float(np.linalg.norm(y)))["limit"]
    assert tangent.pruned_input_limit(x, y, 1.0, 2)["limit"] == pytest.approx(dense, rel=1e-10)
    assert tangent.pruned_input_limit(x, x, 0.4, 2)["limit"] == pytest.approx(3 * float(x @ x), rel=1e-12)


@quick
@given(st.floats(0.001, 0.999), st.integers(1, 3000), st.floats(0, 3))
def test_exact_tails_are_probabilities_below_the_repaired_bound(p, m, eps):
    tail = tangent.binomial_deviation_tail(p, m, eps)
    assert 0 <= tail <= 1 + 1e-12
    assert tail <= tangent.chernoff_bound(p, m, eps) * (1 + 1e-9)


@quick
@given(st.integers(1, 200), st.floats(0, 100))
def test_chaos_bounds_hold_for_the_identity(n, deviation):
    norms = (math.sqrt(n), 1.0)
    exact, inverse = tangent.identity_chaos_tail(n, deviation), tangent.inverted_chaos_bound(*norms, deviation)
    assert exact <= inverse["bound"] * (1 + 1e-12) <= tangent.chaos_bound(*norms, deviation) * (1 + 1e-11)


def test_tails_at_large_counts():
    tail = tangent.binomial_deviation_tail(0.1, 10**9, 1e-3)
    # ten standard deviations and a half: the normal tail, up to a correction of a per cent
    assert agree(tail, math.erfc(1e5 / math.sqrt(9e7) / math.sqrt(2)), 0.05)
    assert tangent.unbalanced_row_probability(10**9, 0.5, 1e-3, 10**7)["probability"] < 1e-200
    assert 0.99 < tangent.identity_chaos_tail(10**8, 1.0) < 1


def test_whole_thresholds_are_found_in_decimals():
    # 0.7 times 10 is 7 only in decimals: the thresholds are 4.9 and 9.1
    exact = sum(math.comb(10, k) * 0.7**k * 0.3 ** (10 - k) for k in range(11) if k <= 4 or k >= 10)
    assert tangent.binomial_deviation_tail(0.7, 10, 0.3) == pytest.approx(exact, rel=1e-12)
    assert tangent.binomial_deviation_tail(0.1, 30, 1 / 3) < 1
    included = sum(math.comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in (0, 6, 7, 8, 9, 10))
    assert tangent.binomial_deviation_tail(0.3, 10, 1.0) == pytest.approx(included, rel=1e-12)


def test_poisson_exponent_is_smooth_across_its_series():
    below, above = tangent.poisson_exponent(0.05), tangent.poisson_exponent(0.05 * (1 + 1e-12))
    assert agree(below, above, 1e-11)
    assert agree(tangent.poisson_exponent(1e-8), 0.5e-16, 1e-7)
    assert agree(tangent.poisson_exponent(0.04), 1.04 * math.log(1.04) - 0.04, 1e-12)


def test_certain_rows():
    assert tangent.unbalanced_row_probability(5, 1.0, 0.1, 3) == {"row": 0.0, "probability": 0.0}
    # a row of one weight always misses half by half
    assert tangent.unbalanced_row_probability(1, 0.5, 0.5, 2) == {"row": 1.0, "probability": 1.0}


@quick
@given(st.floats(0.01, 2), densities)
def test_width_for_sigma_inverts_the_variance(sigma, density):
    width = tangent.width_for_sigma(sigma, density)
    assert tangent.kernel_variance(width, density)["sigma"] <= sigma * (1 + 1e-12)
    assert density * width >= 25 * (1 - 1e-12)


def test_width_for_sigma_is_exact_in_decimals():
    # (45 + 16) / 0.01 is 6100 in decimals; 0.1 squared is a little more than 0.01 in binary
    assert tangent.width_for_sigma(0.1, 0.5) == 6100
    assert tangent.width_for_sigma(100.0, 1.0, smallest_fan=0.0) == 1
    assert tangent.width_for_sigma(1.0, 1.0, dense=0.0, slope=0.0, smallest_fan=0.0) == 1
    assert tangent.width_for_sigma(1.0, 0.5, dense=10.0, slope=1.0, smallest_fan=1.0) == 11


def test_defaults_of_the_fluctuation_model():
    assert tangent.kernel_variance(100, 0.5)["variance"] == pytest.approx(0.61)
    assert tangent.kernel_variance(100, 0.5, curvature=200.0)["variance"] == pytest.approx(0.63)
    assert tangent.kernel_variance(10, 0.2, dense=0.0, slope=0.0, curvature=5.0)["variance"] == pytest.approx(0.8)


def test_layer_width_order_sums_the_widths_before_the_layer():
    widths = [7, 11, 13, 17, 1]
    for layer, before in ((1, 1), (2, 7), (3, 18), (4, 31)):
        terms = tangent.layer_width_order(layer, widths, 1.0, 1.0, 0.5)["terms"]
        rows = 4 * widths[layer] / 0.5
        logs = [math.log(rows), math.log(rows * 31), math.log(2 * rows * before)]
        assert agree(terms, [4**6 * logs[0], 4**2 * logs[1], 4**4 * logs[2]], 1e-12)
    assert tangent.layer_width_order(1, [5, 1], 1.0, 1.0, 0.5)["terms"][1] == pytest.approx(math.log(2))


@quick
@given(depths, densities, st.floats(0.01, 3), st.floats(0.001, 0.9), st.integers(1, 10**6))
def test_forward_order_is_linear_in_its_constant_and_inverse_in_the_density(depth, density, error, delta, width):
    base = tangent.forward_width_order(depth, density, error, delta, width)
    assert agree(tangent.forward_width_order(depth, density, error, delta, width, 3.0), 3 * base, 1e-12)
    assert agree(tangent.forward_width_order(depth, density / 2, error, delta, width), 2 * base, 1e-12)
    assert agree(tangent.forward_width_order(depth, density, 2 * error, delta, width), base / 4, 1e-12)


def test_convolution_with_one_pixel_rows_and_dead_pixels():
    x = np.zeros((1, 3, 3))
    x[0, 0, 0] = 1.0
    y = np.zeros((1, 3, 3))
    y[0, 2, 2] = 1.0
    # only the middle pixel sees both, at right angles: variances 1/9, kernel 1/(9 pi) there, over nine pixels
    result = tangent.convolutional_limit(x, y, 1)
    assert result["covariance"] == pytest.approx(1 / 81 / math.pi, rel=1e-12)
    assert result["limit"] == pytest.approx(1 / 81 / math.pi, rel=1e-12)
    parallel = tangent.convolutional_limit(x, 3 * x, 3)
    assert parallel["limit"] == pytest.approx(3 * tangent.convolutional_limit(x, x, 3)["limit"], rel=1e-12)
    assert tangent.convolutional_limit(x, x, 2, 3) == tangent.convolutional_limit(x, x, 2)


def test_zero_inputs_have_dead_derivatives():
    layers = tangent.layer_covariances(1.0, 2, norm_x=[0.0, 1.0])
    assert [float(d[0]) for d in layers["derivatives"]] == [0.0, 0.0]
    assert all(d[1] > 0.5 for d in layers["derivatives"])
    assert tangent.layer_covariances(1.0, 1, norm_y=0.0) == {"covariances": [0.0, 0.0], "derivatives": [0.0]}
    tiny = tangent.layer_covariances(1.0, 1, norm_y=1e-200)
    assert tiny["derivatives"] == tangent.layer_covariances(1.0, 1)["derivatives"]


def test_moments_are_elementwise_and_dead_where_a_variance_is_zero():
    result = tangent.relu_moments([1.0, 0.0, 4.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0])
    assert agree(list(result["step"]), [2 / 3, 0.0, 0.0], 1e-12, 1e-15)
    assert agree(list(result["ramp"]), [0.6089977810442293, 0.0, 0.0], 1e-12, 1e-15)


def test_signs_are_checked_in_every_element():
    for a, b in (([-1.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, -1.0])):
        with pytest.raises(BadInput, match=r"at least 0, got -1\.0"):
            tangent.relu_moments(a, b, 0.0)
        with pytest.raises(BadInput, match=r"at least 0, got -1\.0"):
            tangent.limiting_kernel(0.5, 1, a, b)
    with pytest.raises(BadInput, match="covariance"):
        tangent.relu_moments([1.0, 1.0], [1.0, 1.0], [0.0, -2.0])
    with pytest.raises(BadInput, match=r"got 4\.0"):
        tangent.limiting_kernel([0.1, 4.0, 0.2], 1)


def test_split_leaves_nothing_across_where_the_fan_is_small():
    # one kept input: the span of the masked activations is everything the row can reach
    result = tangent.backward_split(1.0, 1, 1, 1.0, 1, seed=2)
    assert result["across"] == pytest.approx(0.0, abs=1e-12)
    assert result["along_norm"] ** 2 == pytest.approx(result["total"], rel=1e-9) or result["total"] == 0
    same, right = tangent.backward_split(0.0, 1, 400, 1.0, 1), tangent.backward_split(math.pi / 2, 1, 400, 1.0, 1)
    assert same["total"] == pytest.approx(1.0, abs=0.6)  # kappa 0 of the angle, up to the spread of one network
    assert right["total"] == pytest.approx(0.5, abs=0.4)
    assert right["total"] < same["total"]
    assert tangent.backward_split(1.0, 2, 8, 0.5, 1) == tangent.backward_split(1.0, 2, 8, 0.5, 1, seed=0)
    assert tangent.backward_split(1.0, 2, 8, 0.5, 1, seed=1) != tangent.backward_split(1.0, 2, 8, 0.5, 1, seed=0)


def test_split_of_the_last_layer_by_hand():
    # at the last hidden layer b is the masked head times the gate and sqrt(2 / width)
    width, density = 6, 0.5
    weights, masks = draw_network(2, 1, width, density, np.random.default_rng(9))
    assert set(np.unique(masks[1])) <= {0.0, 1 / math.sqrt(density)}
    assert (masks[0] == 1).all()
    pair = np.array([[1.0, 0.0], [0.6, 0.8]])
    split = split_backward(pair, weights, masks, 1)
    gate = (pair @ weights[0].T > 0) * math.sqrt(2 / width)
    head = weights[1] * masks[1]
    assert np.allclose(split.whole, gate * head, atol=1e-14)
    assert np.allclose(split.across + split.along, split.whole, atol=1e-12)
    hidden = math.sqrt(2 / width) * np.maximum(pair @ weights[0].T, 0) * masks[1]
    across = weights[1] - (weights[1] @ np.linalg.pinv(hidden)) @ hidden
    assert np.allclose(split.across, gate * masks[1] * across, atol=1e-12)


def test_single_precision_angles_and_correlations_are_clipped():
    assert tangent.limiting_kernel(np.float32(math.pi), 1)["limit"] == pytest.approx(0.0, abs=1e-12)
    assert tangent.relu_moments(1.0, 1.0, 1.0000005)["step"] == 1.0
    assert tangent.arc_cosine_kernels(-1.0000005) == {"step": 0.0, "ramp": 0.0}
