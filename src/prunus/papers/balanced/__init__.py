"""The balanced-sparsity paper (ledger B): what pruning bank by bank costs over pruning freely.

Source: Yao et al., "Balanced Sparsity for Efficient DNN Inference on GPU", and the appendix on its energies.

The corrected form of a result has the plain name; the published one, where it differs, ends in `_printed`.
"""

from prunus.formulas.energy import bank_energy, energy_split, limit_energy
from prunus.papers.balanced._design import (
    energy_order,
    excess_curve,
    first_order_energy,
    ideal_time,
    prune_count,
    smallest_bank,
    smallest_bank_rule,
)
from prunus.papers.balanced._energies import (
    bank_cost,
    bank_energy_printed,
    limit_fourth_moment,
    rank_energy,
    rank_variance,
    rank_variance_printed,
    rank_variances,
    signed_variance_sum,
    small_sparsity_energy,
    sparsity_for_energy,
)
from prunus.papers.balanced._outputs import (
    correlated_row_error,
    mixture_variance,
    pruned_product_moments,
    pruned_variance,
    pruned_variance_printed,
    row_energy_spread,
    row_error,
)
from prunus.papers.balanced._products import (
    bank_characteristic,
    bank_characteristic_printed,
    bank_product_moments,
    limit_characteristic,
    mixture_characteristic,
    product_density,
    product_density_printed,
    product_moments,
)
from prunus.papers.balanced._tensors import (
    pruned_mean_square,
    random_layout_energy,
    tensor_energy,
)

__all__ = [
    "bank_characteristic",
    "bank_characteristic_printed",
    "bank_cost",
    "bank_energy",
    "bank_energy_printed",
    "bank_product_moments",
    "correlated_row_error",
    "energy_order",
    "energy_split",
    "excess_curve",
    "first_order_energy",
    "ideal_time",
    "limit_characteristic",
    "limit_energy",
    "limit_fourth_moment",
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
    "rank_energy",
    "rank_variance",
    "rank_variance_printed",
    "rank_variances",
    "row_energy_spread",
    "row_error",
    "signed_variance_sum",
    "small_sparsity_energy",
    "smallest_bank",
    "smallest_bank_rule",
    "sparsity_for_energy",
    "tensor_energy",
]
