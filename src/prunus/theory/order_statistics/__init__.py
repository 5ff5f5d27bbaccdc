"""Order statistics of weights and gradients: moments, thresholds, energies."""

from prunus.theory.order_statistics._energy import (
    bank_cost,
    bank_energy,
    bank_energy_printed,
    energy_split,
    limit_energy,
    limit_fourth_moment,
    rank_energy,
    rank_variance,
    rank_variance_printed,
    rank_variances,
    signed_variance_sum,
    small_sparsity_energy,
    sparsity_for_energy,
)
from prunus.theory.order_statistics._moments import correlated_order_moment

__all__ = [
    "bank_cost",
    "bank_energy",
    "bank_energy_printed",
    "correlated_order_moment",
    "energy_split",
    "limit_energy",
    "limit_fourth_moment",
    "rank_energy",
    "rank_variance",
    "rank_variance_printed",
    "rank_variances",
    "signed_variance_sum",
    "small_sparsity_energy",
    "sparsity_for_energy",
]
