"""Errors at the output of a pruned row, and the paper's variances beside the corrected ones (B-1a, B-7, B-8)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from prunus.errors import BadInput
from prunus.formulas import domain, laws
from prunus.formulas.binding import claim, printed
from prunus.formulas.energy import bank_energy, limit_energy
from prunus.papers.balanced._design import matrix_arguments
from prunus.papers.balanced._energies import limit_fourth_moment, rank_variances, signed_variance_sum

_SLACK = 1e-9  # tolerance


@claim("B-1a")
def pruned_product_moments(
    mean_input: float, sigma_input: float, mean_pruned: float, square_pruned: float
) -> dict[str, float]:
    """B-1a: mean and variance of z = dw x, a pruned weight times an independent input.

    Var z = (sigma_x^2 + mu_x^2) E dw^2 - (mu_x E dw)^2, written as a sum of non-negative terms. The printed variances
    average rank variances only and miss the squared means.
    """
    mean_input = domain.real("mean_input", mean_input)
    sigma_input = domain.real("sigma_input", sigma_input, 0.0)
    mean_pruned = domain.real("mean_pruned", mean_pruned)
    square_pruned = domain.real("square_pruned", square_pruned, mean_pruned**2 * (1.0 - _SLACK))
    spread = max(square_pruned - mean_pruned**2, 0.0)
    variance = sigma_input**2 * square_pruned + mean_input**2 * spread
    return {"mean": mean_input * mean_pruned, "variance": variance}


@claim("B-7a")
def row_error(
    columns: int,
    bank: int,
    r: int,
    sigma_input: float = 1.0,
    sigma_weight: float = 1.0,
    law: str = "normal",
) -> dict[str, float]:
    """B-7a: mean squared error of one output of a balanced row with white inputs, sigma_x^2 sigma_w^2 columns e."""
    columns = domain.whole("columns", columns, 1)
    bank = domain.whole("bank", bank, 1, columns)
    if columns % bank:
        raise BadInput(f"columns must be a multiple of bank, got {columns} columns with banks of {bank}.")
    scale = domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)
    relative = bank_energy(bank, r, law)
    decibels = -10.0 * math.log10(relative) + 0.0 if relative > 0.0 else math.inf
    return {"squared_error": scale**2 * columns * relative, "relative": relative, "decibels": decibels}


@claim("B-7b")
def correlated_row_error(removed: ArrayLike, moments: ArrayLike) -> dict[str, Any]:
    """B-7b: dw^T C dw for the removed weights dw of a row and second moments C = E[x x^T] of its inputs.

    `removed` has shape (n,) or (rows, n), `moments` (n, n). `diagonal` ignores correlations and can be off by a
    factor of two. C is refused where it is not symmetric or a correlation passes 1.
    """
    rows = domain.array("removed", removed)
    if rows.ndim not in (1, 2):
        raise BadInput(f"removed must be one row or a matrix of rows, got {rows.ndim} dimensions.")
    matrix = _second_moments(moments, rows.shape[-1])
    squared = np.einsum("...i,...i->...", rows @ matrix, rows)
    diagonal = np.square(rows) @ np.diagonal(matrix)
    if np.any(squared < -_SLACK * np.maximum(diagonal, np.finfo(float).tiny)):
        raise BadInput("moments must be positive semi-definite: it gives a negative squared error for these weights.")
    return {"squared_error": domain.plain(np.maximum(squared, 0.0)), "diagonal": domain.plain(diagonal)}


@claim("B-7c")
def row_energy_spread(sparsity: float) -> dict[str, float]:
    """B-7c: columns times the variance over rows of the removed energy, one threshold, normal weights.

    With f = E w^4 and e = E w^2 over what is removed: f - e^2 where the removed energy is divided by the expected
    energy of a row, f (1 - 2 e) + 3 e^2 where it is divided by the row's own.
    """
    fourth, energy = float(limit_fourth_moment(sparsity)["fourth"]), float(limit_energy(sparsity)["energy"])
    return {"spread": fourth - energy**2, "own_share": fourth * (1.0 - 2.0 * energy) + 3.0 * energy**2}


@claim("B-8a")
def pruned_variance(
    rows: int,
    columns: int,
    banks: int,
    r: int,
    sigma_input: float = 1.0,
    sigma_weight: float = 1.0,
) -> dict[str, Any]:
    """B-8a: variance of one lost product, sigma_x^2 E dw^2, unstructured (whole matrix) and balanced (per bank)."""
    rows, columns, banks, r, bank = matrix_arguments(rows, columns, banks, r)
    scale = (domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)) ** 2
    unstructured = scale * bank_energy(rows * columns, r * rows * banks) * bank / r
    balanced = scale * bank_energy(bank, r) * bank / r
    ordered = unstructured <= balanced * (1.0 + _SLACK)
    return {"unstructured": unstructured, "balanced": balanced, "ordered": ordered}


@printed("B-8a")
def pruned_variance_printed(
    rows: int,
    columns: int,
    banks: int,
    r: int,
    sigma_input: float = 1.0,
    sigma_weight: float = 1.0,
) -> dict[str, Any]:
    """B-8a as printed: (sigma_x / count) times a sum of rank variances of the signed law on rows x columns samples."""
    rows, columns, banks, r, bank = matrix_arguments(rows, columns, banks, r)
    domain.whole("r", r, 1, bank - 1)
    scale = domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight) ** 2
    every, total = rows * banks, rows * columns
    unstructured = scale * signed_variance_sum(total, r * every) / (r * every)
    balanced = scale * signed_variance_sum(total, r, step=every) / r
    return {"unstructured": unstructured, "balanced": balanced, "ordered": unstructured <= balanced}


@claim("B-8b")
def mixture_variance(n: int, r: int, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> float:
    """B-8b: variance of one lost product from a normal approximation of every rank, prefer B-3.

    Off by between 5.7 % low (n = 11, r = 10) and 36 % high (n = 2, r = 1).
    """
    scale = (domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)) ** 2
    means, variances = rank_mixture(n, r)
    return scale * float(np.mean(np.square(means) + variances))


def rank_mixture(n: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Means (level j/(n+1)) and variances (B-8c, level j/n) of the r smallest ranks, weights of variance 1."""
    n = domain.whole("n", n, 2)
    ranks = np.arange(1.0, domain.whole("r", r, 1, n - 1) + 1.0)
    return laws.NORMAL.quantile(ranks / (n + 1.0)), rank_variances(n, ranks)


def _second_moments(moments: ArrayLike, size: int) -> np.ndarray:
    matrix = domain.array("moments", moments, 2)
    if matrix.shape != (size, size):
        raise BadInput(f"moments must be a {size} x {size} matrix, as removed has {size} entries, got {matrix.shape}.")
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    bound = np.outer(scale, scale)
    slack = _SLACK * max(float(bound.max()), np.finfo(float).tiny)
    if np.any(np.abs(matrix - matrix.T) > slack):
        raise BadInput("moments must be symmetric: E[x x^T] is.")
    if np.any(np.abs(matrix) > bound + slack):
        raise BadInput("moments must be positive semi-definite: an entry passes the root of its two diagonal entries.")
    return matrix
