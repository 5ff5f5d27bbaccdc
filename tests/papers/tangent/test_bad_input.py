from __future__ import annotations

import math

import numpy as np
import pytest

from prunus.errors import BadInput
from prunus.theory import tangent


@pytest.mark.parametrize(
    "call, part",
    [
        (lambda: tangent.parametrisation_factor(0), "width must be a whole number of at least 1"),
        (lambda: tangent.arc_cosine_kernels(1.1), "correlation must lie in [-1, 1], got 1.1"),
        (lambda: tangent.arc_cosine_kernels([0.0, -1.00001]), "correlation must lie in [-1, 1], got -1.00001"),
        (lambda: tangent.arc_cosine_kernels(math.nan), "finite"),
        (lambda: tangent.relu_moments(-1.0, 1.0, 0.0), "must be at least 0"),
        (lambda: tangent.relu_moments(1.0, -1.0, 0.0), "must be at least 0"),
        (lambda: tangent.relu_moments(1.0, 1.0, 1.5), "covariance must lie between"),
        (lambda: tangent.limiting_kernel(-0.1, 1), "angle must lie in [0, pi] radians, got -0.1"),
        (lambda: tangent.limiting_kernel(3.2, 1), "angle must lie in [0, pi] radians, got 3.2"),
        (lambda: tangent.limiting_kernel(1.0, 0), "depth must be a whole number in [1, 20000]"),
        (lambda: tangent.limiting_kernel_printed(1.0, 0), "depth must be a whole number in [1, 20000]"),
        (lambda: tangent.limiting_kernel(1.0, 1.5), "depth must be a whole number"),
        (lambda: tangent.limiting_kernel(1.0, 1, -1.0), "norm_x and norm_y must be at least 0"),
        (lambda: tangent.limiting_kernel(1.0, 1, 1.0, -1.0), "norm_x and norm_y must be at least 0"),
        (lambda: tangent.pruned_limit(1.0, 1, 0.0), "density must be a finite number in (0, 1]"),
        (lambda: tangent.pruned_limit(1.0, 1, 1.1), "density must be a finite number in (0, 1]"),
        (lambda: tangent.weight_rescaled_limit(1.0, 1, 0.0), "density"),
        (lambda: tangent.weight_rescaled_limit_printed(1.0, 1, 0.0), "density"),
        (lambda: tangent.training_slowdown(0.5, 0), "depth"),
        (lambda: tangent.matched_ridge(-1.0, 0.5, 1), "ridge must be a finite number of at least 0"),
        (lambda: tangent.matched_ridge(1.0, 0.5, 0), "depth"),
        (lambda: tangent.pruned_covariance(1.0, 0.5, -1), "layer must be a whole number in [0, 20000]"),
        (lambda: tangent.preactivation_scale(0.5, 0), "layer must be a whole number of at least 1"),
        (lambda: tangent.preactivation_scale_printed(0.5, 0), "layer must be a whole number of at least 1"),
        (lambda: tangent.pruned_back_product(1.0, 3, 0.5, 5), "layer must be a whole number in [1, 4]"),
        (lambda: tangent.pruned_back_product(1.0, 3, 0.5, 0), "layer must be a whole number in [1, 4]"),
        (lambda: tangent.pruned_back_product(1.0, 0, 0.5, 1), "depth"),
        (lambda: tangent.pruned_input_limit([1.0], [1.0, 2.0], 0.5, 1), "same length, got 1 and 2"),
        (lambda: tangent.pruned_input_limit([1.0], [1.0], 0.5, 0), "depth"),
        (lambda: tangent.pruned_input_limit([[1.0]], [[1.0]], 0.5, 1), "x must have 1 dimension"),
        (lambda: tangent.pruned_input_limit(np.ones(21), np.ones(21), 0.5, 1), "at most 20 coordinates"),
        (lambda: tangent.width_order(0, 0.5, 0.1), "depth"),
        (lambda: tangent.width_order(1, 0.5, 0.0), "error must be a finite number above 0"),
        (lambda: tangent.layer_width_order(3, [5, 5, 1], 0.5, 0.1, 0.1), "layer must be a whole number in [1, 2]"),
        (lambda: tangent.layer_width_order(0, [5, 5, 1], 0.5, 0.1, 0.1), "layer must be a whole number in [1, 2]"),
        (lambda: tangent.layer_width_order(1, [5, 5], 0.5, 0.1, 0.1), "end with the output's 1"),
        (lambda: tangent.layer_width_order(1, [1], 0.5, 0.1, 0.1), "at least one hidden layer"),
        (lambda: tangent.layer_width_order(1, [0, 1], 0.5, 0.1, 0.1), "at least 1"),
        (lambda: tangent.layer_width_order(1, 5, 0.5, 0.1, 0.1), "list of whole numbers"),
        (lambda: tangent.layer_width_order(1, [5, 1], 0.5, 0.1, 1.0), "delta must be a finite number in (0, 1)"),
        (lambda: tangent.layer_width_order(1, [5, 1], 0.5, 0.1, 0.0), "delta must be a finite number in (0, 1)"),
        (lambda: tangent.layer_width_order(1, [5, 1], 0.5, 0.1, 0.1, 0.0), "constant"),
        (lambda: tangent.linear_density(0, 0.1), "depth"),
        (lambda: tangent.layer_error(0, 0.1), "depth"),
        (lambda: tangent.third_term_ratio(0, 0.1), "depth"),
        (lambda: tangent.chernoff_bound(0.0, 1, 0.1), "probability must be a finite number in (0, 1)"),
        (lambda: tangent.chernoff_bound(1.0, 1, 0.1), "probability must be a finite number in (0, 1)"),
        (lambda: tangent.chernoff_bound(0.5, 0, 0.1), "count must be a whole number of at least 1"),
        (lambda: tangent.chernoff_bound(0.5, 1, -0.1), "deviation must be a finite number of at least 0"),
        (lambda: tangent.poisson_exponent(-0.1), "deviation must be a finite number of at least 0"),
        (lambda: tangent.subgamma_exponent(0.0, 1.0, 1.0), "sigma must be a finite number above 0"),
        (lambda: tangent.subgamma_exponent(1.0, -1.0, 1.0), "scale must be a finite number of at least 0"),
        (lambda: tangent.subgamma_exponent(1.0, 1.0, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: tangent.chaos_bound(1.0, 2.0, 1.0), "spectral must lie in (0, frobenius], got 2.0 above 1.0"),
        (lambda: tangent.chaos_bound(1.0, 0.0, 1.0), "spectral must be a finite number above 0"),
        (lambda: tangent.chaos_bound(1.0, 1.0, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: tangent.chaos_bound_printed(1.0, 1.0, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: tangent.inverted_chaos_bound(1.0, 1.0, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: tangent.chaos_deviation(1.0, 1.0, -1.0), "t must be a finite number of at least 0"),
        (lambda: tangent.identity_chaos_tail(0, 1.0), "n must be a whole number of at least 1"),
        (lambda: tangent.identity_chaos_tail(1, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: tangent.balanced_row_width(0.5, 0.0, 0.1, 1, 1), "deviation must be a finite number above 0"),
        (lambda: tangent.balanced_row_width(0.5, 0.1, 1.0, 1, 1), "delta"),
        (lambda: tangent.balanced_row_width(0.5, 0.1, 0.0, 1, 1), "delta"),
        (lambda: tangent.balanced_row_width(0.5, 0.1, 0.1, 0, 1), "depth"),
        (lambda: tangent.balanced_row_width(0.5, 0.1, 0.1, 1, 0), "rows"),
        (lambda: tangent.unbalanced_row_probability(0, 0.5, 0.1, 1), "width"),
        (lambda: tangent.unbalanced_row_probability(1, 0.5, 0.1, 0), "rows"),
        (lambda: tangent.unbalanced_row_probability(1, 0.0, 0.1, 1), "density"),
        (lambda: tangent.unbalanced_row_probability(1, 0.5, 0.0, 1), "deviation"),
        (lambda: tangent.gaussian_output_bound(0.0), "delta"),
        (lambda: tangent.gaussian_output_bound(1.0), "delta"),
        (lambda: tangent.gaussian_output_bound(0.1, 0.0), "norm_squared must be a finite number above 0"),
        (lambda: tangent.gaussian_output_bound_printed(0.1, 0.0), "norm_squared must be a finite number above 0"),
        (lambda: tangent.half_space_moments(-1.0), "norm must be a finite number of at least 0"),
        (lambda: tangent.kernel_variance(0, 0.5), "width"),
        (lambda: tangent.kernel_variance(1, 0.5, dense=-1.0), "dense"),
        (lambda: tangent.kernel_variance(1, 0.5, slope=-1.0), "slope"),
        (lambda: tangent.kernel_variance(1, 0.5, curvature=-1.0), "curvature"),
        (lambda: tangent.width_for_sigma(0.0, 0.5), "sigma"),
        (lambda: tangent.width_for_sigma(1.0, 0.5, smallest_fan=-1.0), "smallest_fan"),
        (lambda: tangent.scaled_widths(0, 0.5), "width"),
        (lambda: tangent.scaled_widths(1, 0.0), "density"),
        (lambda: tangent.largest_stable_step(0.0), "largest must be a finite number above 0"),
        (lambda: tangent.steps_to_tolerance(2.0, 1.0, 0.1), "largest must be a finite number of at least 2"),
        (lambda: tangent.steps_to_tolerance(0.0, 1.0, 0.1), "smallest"),
        (lambda: tangent.steps_to_tolerance(1.0, 1.0, 0.0), "tolerance"),
        (lambda: tangent.effective_width(0, 0.5), "width"),
        (lambda: tangent.convolutional_limit([1.0], [1.0], 1), "x must have 2 dimensions"),
        (lambda: tangent.convolutional_limit([[1.0]], [1.0], 1), "y must have 2 dimensions"),
        (lambda: tangent.convolutional_limit([[1.0]], [[1.0, 2.0]], 1), "same shape"),
        (lambda: tangent.convolutional_limit([[1.0]], [[1.0]], 0), "depth"),
        (lambda: tangent.convolutional_limit([[1.0]], [[1.0]], 1, 2), "kernel must be an odd whole number"),
        (lambda: tangent.convolutional_limit([[1.0]], [[1.0]], 1, 0), "kernel"),
        (lambda: tangent.masked_convolution_factor(0.5, 0), "depth"),
        (lambda: tangent.forward_width_order(1, 0.5, 0.1, 1.0, 1), "delta"),
        (lambda: tangent.forward_width_order(1, 0.5, 0.1, 0.0, 1), "delta"),
        (lambda: tangent.forward_width_order(1, 0.5, 0.1, 0.1, 0), "next_width"),
        (lambda: tangent.step_change(1.1), "error must be a finite number in [0, 1]"),
        (lambda: tangent.backward_split(4.0, 1, 1, 0.5, 1), "angle must be a finite number in [0, "),
        (lambda: tangent.backward_split(-1.0, 1, 1, 0.5, 1), "angle must be a finite number in [0, "),
        (lambda: tangent.backward_split(1.0, 0, 1, 0.5, 1), "depth"),
        (lambda: tangent.backward_split(1.0, 1, 0, 0.5, 1), "width"),
        (lambda: tangent.backward_split(1.0, 1, 1, 0.0, 1), "density"),
        (lambda: tangent.backward_split(1.0, 2, 1, 0.5, 3), "layer must be a whole number in [1, 2]"),
        (lambda: tangent.backward_split(1.0, 2, 1, 0.5, 0), "layer must be a whole number in [1, 2]"),
        (lambda: tangent.backward_split(1.0, 2, 1, 0.5, 1, -1), "seed"),
        (lambda: tangent.relu_lipschitz(1.0), "deviation must be a finite number in [0, 1)"),
    ],
)
def test_bad_input_is_one_sentence_with_the_range(call, part):
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert part in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    "call, expected",
    [
        (lambda: tangent.limiting_kernel_printed(0.0, 1)["limit"], 2.0),
        (lambda: tangent.training_slowdown(0.5, 1), 2.0),
        (lambda: tangent.matched_ridge(3.0, 0.5, 1), 1.5),
        (lambda: tangent.preactivation_scale_printed(0.5, 1), 1.0),
        (lambda: tangent.pruned_back_product(0.0, 1, 0.5, 1), 0.5),
        (lambda: tangent.pruned_back_product(0.0, 1, 0.5, 2), 1.0),
        (lambda: tangent.layer_width_order(1, [1, 1], 1.0, 1.0, 0.5)["terms"][0], math.log(2)),
        (lambda: tangent.chernoff_bound(0.5, 1, 0.0), 2.0),
        (lambda: tangent.binomial_deviation_tail(0.5, 1, 1.0), 1.0),
        (lambda: tangent.unbalanced_row_probability(1, 1.0, 1.0, 1)["row"], 0.0),
        (lambda: tangent.kernel_variance(1, 1.0)["variance"], 45.0),
        (lambda: tangent.width_for_sigma(10.0, 1.0), 25),
        (lambda: tangent.scaled_widths(1, 1.0)["quadratic"], 1),
        (lambda: tangent.effective_width(1, 1.0), 1.0),
        (lambda: tangent.steps_to_tolerance(0.5, 0.5, 1.0)["condition"], 1.0),
        (lambda: tangent.convolutional_limit([[0.5]], [[0.5]], 1, 1)["limit"], 0.5),
        (lambda: tangent.masked_convolution_factor(0.5, 1), 0.5),
        (lambda: tangent.half_space_moments(0.0)["mean"], 0.0),
        (lambda: tangent.pruned_input_limit(np.ones(20), np.ones(20), 1.0, 1)["limit"], 40.0),
        (lambda: tangent.chaos_bound(1.0, 1.0 + 1e-10, 0.0), 2.0),
        (lambda: tangent.subgamma_exponent(0.5, 0.0, 0.5)["tail_exponent"], 0.5),
        (lambda: tangent.identity_chaos_tail(1, 0.0), 1.0),
        (lambda: tangent.step_change(1.0)["worst"], 0.5),
        (lambda: tangent.gaussian_output_bound(0.5, 0.5)["bound"], math.sqrt(math.log(4))),
    ],
)
def test_the_ends_of_the_ranges_are_admitted(call, expected):
    assert call() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "call, allowed",
    [
        (lambda excess: tangent.arc_cosine_kernels(1 + excess), 1e-6),
        (lambda excess: tangent.arc_cosine_kernels(-1 - excess), 1e-6),
        (lambda excess: tangent.relu_moments(1.0, 1.0, 1 + excess), 1e-6),
        (lambda excess: tangent.relu_moments(1.0, 1.0, -1 - excess), 1e-6),
        (lambda excess: tangent.limiting_kernel(math.pi + excess, 2), 1e-6),
        (lambda excess: tangent.chaos_bound(1.0, 1 + excess, 1.0), 1e-9),
    ],
)
def test_rounding_is_forgiven_and_no_more(call, allowed):
    call(0.97 * allowed)
    with pytest.raises(BadInput):
        call(1.03 * allowed)
