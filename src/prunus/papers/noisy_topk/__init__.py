"""Noisy top-k (ledger N): a kept index set perturbed by swaps, its error and its privacy.

The corrected form of a result has the plain name; the published one, where it differs, ends in `_printed`.
"""

from prunus.formulas.swap_counts import (
    published_theta,
    swap_law,
)
from prunus.formulas.swap_errors import (
    error_after_swaps,
    swap_slope,
    theta_for_swaps,
    topk_error,
)
from prunus.formulas.swap_law import (
    SwapLaw,
    log_binomial,
)
from prunus.formulas.swap_privacy import (
    leakage,
    loss_law,
    privacy_delta,
    renyi_divergence,
    subsampled_privacy,
    swap_privacy,
    theta_for_local_epsilon,
    theta_for_swap_epsilon,
)
from prunus.formulas.two_level import (
    two_level_law,
    two_level_rule,
)
from prunus.papers.noisy_topk._counts import (
    flip_probability,
    index_bits,
    index_sets,
    index_sets_printed,
    swap_mean_derivative,
    swap_mode,
    swap_probability,
    swap_ratio,
    swap_saddle,
    swap_sets,
    truncation_delta,
)
from prunus.papers.noisy_topk._errors import (
    best_k,
    error_at_local_epsilon,
    expected_error,
    expected_error_limit,
    expected_error_limit_printed,
    feasible_budget,
    swap_slope_given,
    swap_slope_limit,
    swap_slope_limit_printed,
    topk_error_given,
    topk_error_limit,
    topk_error_limit_printed,
    total_error,
)
from prunus.papers.noisy_topk._inverse import (
    smallest_k,
    theta_for_error,
    theta_for_kept,
)
from prunus.papers.noisy_topk._optimum import (
    kept_at_local_epsilon,
    kept_fraction_bound,
    metric_optimum,
    rough_kept_fraction,
)
from prunus.papers.noisy_topk._privacy import (
    gain_over_random,
    grouped_privacy,
    local_privacy,
)
from prunus.papers.noisy_topk._values import (
    clip_sensitivity,
    composed_message,
    composed_rounds,
    gaussian_delta,
    gaussian_renyi,
    gaussian_sigma,
    laplace_scale,
)

__all__ = [
    "SwapLaw",
    "best_k",
    "clip_sensitivity",
    "composed_message",
    "composed_rounds",
    "error_after_swaps",
    "error_at_local_epsilon",
    "expected_error",
    "expected_error_limit",
    "expected_error_limit_printed",
    "feasible_budget",
    "flip_probability",
    "gain_over_random",
    "gaussian_delta",
    "gaussian_renyi",
    "gaussian_sigma",
    "grouped_privacy",
    "index_bits",
    "index_sets",
    "index_sets_printed",
    "kept_at_local_epsilon",
    "kept_fraction_bound",
    "laplace_scale",
    "leakage",
    "local_privacy",
    "log_binomial",
    "loss_law",
    "metric_optimum",
    "privacy_delta",
    "published_theta",
    "renyi_divergence",
    "rough_kept_fraction",
    "smallest_k",
    "subsampled_privacy",
    "swap_law",
    "swap_mean_derivative",
    "swap_mode",
    "swap_privacy",
    "swap_probability",
    "swap_ratio",
    "swap_saddle",
    "swap_sets",
    "swap_slope",
    "swap_slope_given",
    "swap_slope_limit",
    "swap_slope_limit_printed",
    "theta_for_error",
    "theta_for_kept",
    "theta_for_local_epsilon",
    "theta_for_swap_epsilon",
    "theta_for_swaps",
    "topk_error",
    "topk_error_given",
    "topk_error_limit",
    "topk_error_limit_printed",
    "total_error",
    "truncation_delta",
    "two_level_law",
    "two_level_rule",
]
