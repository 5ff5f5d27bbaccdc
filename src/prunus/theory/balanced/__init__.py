"""Balanced sparsity: the same number of zeros in every bank, and what it costs against free choice (B-0 to B-11)."""

from prunus.theory.balanced._design import (
    energy_order,
    excess_curve,
    first_order_energy,
    ideal_time,
    prune_count,
    smallest_bank,
    smallest_bank_rule,
)
from prunus.theory.balanced._outputs import (
    correlated_row_error,
    mixture_variance,
    pruned_product_moments,
    pruned_variance,
    pruned_variance_printed,
    row_energy_spread,
    row_error,
)
from prunus.theory.balanced._products import (
    bank_characteristic,
    bank_characteristic_printed,
    bank_product_moments,
    limit_characteristic,
    mixture_characteristic,
    product_density,
    product_density_printed,
    product_moments,
)
from prunus.theory.balanced._tensors import pruned_mean_square, random_layout_energy, tensor_energy

__all__ = [
    "bank_characteristic",
    "bank_characteristic_printed",
    "bank_product_moments",
    "correlated_row_error",
    "energy_order",
    "excess_curve",
    "first_order_energy",
    "ideal_time",
    "limit_characteristic",
    "mixture_characteristic",
    "mixture_variance",
    "product_density",
    "product_density_printed",
    "product_moments",
    "prune_count",
    "pruned_mean_square",
    "pruned_product_moments",
    "pruned_variance",
    "pruned_variance_printed",
    "random_layout_energy",
    "row_energy_spread",
    "row_error",
    "smallest_bank",
    "smallest_bank_rule",
    "tensor_energy",
]
