"""Closeness theorems: what lies outside their domains is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from prunus.errors import BadInput
from prunus.theory import Claim
from prunus.theory import closeness as c
from support.domains import admit, bad_arguments, boundary_arguments, refuse

MOMENTS = {"second": 1 / 3, "fourth": 0.2, "latala": 0.55}
THEOREM3: dict[str, Any] = {
    "layers": 3, "image": 64, "kernel": 3, "d": 256, "exponent": 0.5, "image_exponent": 0.2, "width_exponent": 0.05,
    "second": 1.0, "fourth": 3.0, "latala": 0.6, "outputs": 10, "norm_bound": 10.0,
}  # fmt: skip


@pytest.mark.parametrize("claim, name, value", boundary_arguments("closeness"))
def test_boundary_argument(claim: Claim, name: str, value: Any) -> None:
    admit(claim, name, value)


@pytest.mark.parametrize("claim, name, value", bad_arguments("closeness"))
def test_bad_argument(claim: Claim, name: str, value: Any) -> None:
    refuse(claim, name, value)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: c.without_replacement_failure(5, 6, 0.1), r"count .* \[0, 5\]"),
        (lambda: c.no_repeat_probability_printed(0, 1), "weights"),
        (lambda: c.no_repeat_probability_printed(1, -1), "count"),
        (lambda: c.pruned_from_density_printed(0, 0.5), "weights"),
        (lambda: c.pruned_from_density_printed(5, 1.5), "density"),
        (lambda: c.global_threshold([10, 5], [1.0], 0.5), "scales must hold 2 numbers"),
        (lambda: c.global_threshold([10, 0], [1.0, 1.0], 0.5), "weights"),
        (lambda: c.global_threshold([10, 2.5], [1.0, 1.0], 0.5), "whole"),
        (lambda: c.global_threshold([10], [0.0], 0.5), "scales must hold numbers above 0"),
        (lambda: c.global_threshold([10], [1.0], 1.0), r"sparsity .* \[0, 1\)"),
        (lambda: c.global_threshold([10], [1.0], 0.5, "cauchy"), "normal, uniform"),
        (lambda: c.global_threshold_printed([10], [1.0], -0.5, "uniform"), "sparsity"),
        (lambda: c.theorem2_exponent_cap_printed(2, 5), "rows"),
        (lambda: c.theorem2_exponent_cap_printed(5, 2), "columns"),
        (lambda: c.recursion_error([1.0, 2.0], [0.0]), "differences must hold 2"),
        (lambda: c.recursion_error([1.0, -2.0], [0.0, 0.0]), "norms"),
        (lambda: c.recursion_error([1.0, 2.0], [0.0, -0.1]), "differences"),
        (lambda: c.recursion_error([1.0, 2.0], [0.0, 0.1], [1.0, 1.0]), "lipschitz must hold 1 number"),
        (lambda: c.recursion_error([1.0, 2.0], [0.0, 0.1], -1.0), "lipschitz"),
        (lambda: c.recursion_error([1.0, 2.0], [0.0, 0.1], 1.0, -1.0), "radius"),
        (lambda: c.doubling_error(1.0, 1.1, 3), r"difference .* \[0, 1\]"),
        (lambda: c.union_failure([1.1], [0.0]), r"norm_failures .* \[0, 1\]"),
        (lambda: c.union_failure([0.1], [-0.1]), "difference_failures"),
        (lambda: c.layer_recursion([1.0], [1.0, 1.0], [0.0]), "pruned_norms must hold 1"),
        (lambda: c.layer_recursion([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], offsets=[0.0, 0.0]), "offsets must hold 1"),
        (lambda: c.layer_recursion([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], biases=[-1.0, 0.0]), "biases"),
        (lambda: c.exceedance_upper(5, 6), r"exceedances .* \[0, 5\]"),
        (lambda: c.success_interval(5, 6), r"successes .* \[0, 5\]"),
        (lambda: c.batch_norm_fold(1, 0, 1, 0, 0, 0.0, 0.0), "above 0"),
        (lambda: c.concatenation_error([0.1, -0.1]), "errors"),
        (lambda: c.softmax_jacobian_norm([0.5, 0.4]), "sum to 1"),
        (lambda: c.softmax_jacobian_norm([1.5, -0.5]), "at least 0"),
        (lambda: c.difference_mean_latala_printed(0, 1, 0.5, 1.0, 1.0), "rows"),
        (lambda: c.difference_mean_latala_printed(1, 1, 1.0, 1.0, 1.0), "exponent"),
        (lambda: c.difference_mean_explicit(2, 2, 4), r"r .* \[0, 3\]"),
        (lambda: c.difference_norm_heuristic(2, 2, 4), r"r .* \[0, 3\]"),
        (lambda: c.difference_mean_jensen(4, 5, 1.0), r"r .* \[0, 4\]"),
        (lambda: c.theorem1_prime_error(4, 3, 16, 0.1), r"pruned .* \[0, 15\]"),
        (lambda: c.theorem2_constants(3, [1.0, 1.0], **MOMENTS), "norms must hold 3"),
        (lambda: c.theorem2_constants(3, 0.0, **MOMENTS), "norms"),
        (lambda: c.theorem2_slack(0.1, [1.1]), r"norm_failures .* \[0, 1\]"),
        (lambda: c.theorem2_probability(3, 9, 0.4, **MOMENTS, norm_failures=[0.1]), "norm_failures must hold 3"),
        (lambda: c.theorem2_probability(3, 9, 0.4, **MOMENTS, load_failure=1.1), "load_failure"),
        (lambda: c.norm_failure(1.0, 1.0, 0.9, 1.0), r"second\^2"),
        (lambda: c.convolution_norm_order(2, 3), "image .* at least 3"),
        (lambda: c.convolution_norm_order_printed(2, 3), "image .* at least 3"),
        (lambda: c.theorem3_probability(**{**THEOREM3, "kernel": 65}), r"kernel .* \[1, 64\]"),
        (lambda: c.theorem3_probability(**{**THEOREM3, "exponent": 0.7}), r"exponent .*0\.69"),
        (lambda: c.theorem3_probability(**{**THEOREM3, "width_exponent": 0.125}), r"width_exponent .* \(0, 0\.125\)"),
        (lambda: c.theorem3_probability(**{**THEOREM3, "last_constant": 0.0}), "last_constant"),
        (lambda: c.theorem3_probability_printed(**{**THEOREM3, "outputs": 0}), "outputs"),
        (lambda: c.theorem3_probability_printed(**{**THEOREM3, "norm_bound": 0.0}), "norm_bound"),
        (lambda: c.theorem3_error_printed(3, 64, 256, 64, 3, 0.2, 0.05, 0.0), "norm_bound"),
        (lambda: c.theorem3_error_printed(3, 64, 256, 64, 0, 0.2, 0.05, 1.0), "channels"),
        (lambda: c.theorem3_error_printed(3, 64, 256, 0, 3, 0.2, 0.05, 1.0), "input_image"),
        (lambda: c.last_layer_norm_printed(8, 16, 10, 0.0, 0.1), "second"),
        (lambda: c.last_layer_norm_printed(8, 0, 10, 1.0, 0.1), "d must"),
        (lambda: c.last_layer_norm_printed(8, 16, 10, 1.0, 1.0), "image_exponent"),
        (lambda: c.last_layer_norm(8, 16, 10, 1.0, 1.0), "image_exponent"),
        (lambda: c.unequal_norm_failure([3], [4], [1.0], 1.0, 3.0, 0.6), "larger"),
        (lambda: c.unequal_norm_failure([3], [1], [0.0], 1.0, 3.0, 0.6), "norm_bounds"),
        (lambda: c.unequal_norm_failure([3, 4], [1], [1.0], 1.0, 3.0, 0.6), "kernels must hold 2"),
        (lambda: c.unequal_difference_failure([3], [1], [3], [3], [2.1], [1.0], 1.0, 3.0, 0.6), r"exponents .* \[0,"),
        (lambda: c.unequal_difference_failure([3], [1], [0], [3], [1.0], [1.0], 1.0, 3.0, 0.6), "inputs"),
        (lambda: c.unequal_difference_failure([3], [1], [3], [0], [1.0], [1.0], 1.0, 3.0, 0.6), "outputs"),
        (lambda: c.unequal_difference_failure([3], [1], [3], [3], [1.0], [0.0], 1.0, 3.0, 0.6), "differences"),
        (lambda: c.unequal_convolution_error([1.0], [0.0, 0.0], 1.0, 2, 1), "differences must hold 1"),
        (lambda: c.unequal_convolution_error([1.0], [0.0], -1.0, 2, 1), "last_norm_bound"),
    ],
)  # fmt: skip
def test_domain_sentences(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
