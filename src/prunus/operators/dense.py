"""Upper bounds on the 2-norm of matrices (ledger P-32): never power iteration, always rounded outwards."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.errors import BadInput

UNIT = 2.0**-53
"""Unit roundoff of float64."""

SLACK = 1e-10
"""Relative margin on every decomposition: far above the backward error of LAPACK at the sizes used here."""

_FULL_SIZE = 1500
"""Matrices whose smaller side is at most this get a full decomposition; larger ones the Gram iteration."""


def matrix_norm(matrix: Tensor) -> float:
    """An upper bound on the spectral norm of a matrix (rows, columns), tight to about 1e-10 (very large ones: 1e-3).

    Args:
        matrix: (rows, columns).

    Returns:
        The upper bound.

    Example:
        >>> 3.0 <= prunus.operators.matrix_norm(torch.diag(torch.tensor([3.0, 1.0]))) < 3.0001
        True
    """
    matrix = _checked(matrix)
    if matrix.numel() == 0 or not matrix.any():
        return 0.0
    if min(matrix.shape) == 1:
        return vector_norm(matrix)
    if min(matrix.shape) > _FULL_SIZE:
        return gram_norm(matrix, iterations=12)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    if tall.shape[0] > 2 * tall.shape[1] or tall.shape[1] > 48:
        scale = float(tall.abs().max())
        tall = tall / scale
        top = float(torch.linalg.eigvalsh(tall.T @ tall)[-1])
        return scale * math.sqrt(max(top, 0.0)) * (1.0 + SLACK + product_slack(tall.shape[0], tall.shape[1]))
    return float(torch.linalg.svdvals(tall)[0]) * (1.0 + SLACK)


def gram_norm(matrix: Tensor, iterations: int = 8) -> float:
    """Gram iteration: `||A|| <= ||(A^T A)^(2^k)||_F^(1/2^(k+1))`, k = `iterations` (ledger P-32).

    Every squaring is rescaled, and its rounding error is bounded by `product_slack`, so the result is an upper bound.

    Args:
        matrix: (rows, columns).
        iterations: Number k of squarings.

    Returns:
        The upper bound.

    Raises:
        BadInput: The matrix is not finite or not a matrix.

    Example:
        >>> 3.0 <= prunus.operators.gram_norm(torch.diag(torch.tensor([3.0, 1.0]))) < 3.01
        True
    """
    matrix = _checked(matrix)
    if iterations < 0:
        raise BadInput(f"The number of Gram iterations must be 0 or more, not {iterations}.")
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    scale = float(torch.linalg.matrix_norm(tall)) if tall.numel() else 0.0
    if scale == 0.0:
        return 0.0
    gram = (tall / scale).T @ (tall / scale)
    exponent, log_bound = 2.0, math.log(scale)
    for _ in range(iterations):
        size = float(torch.linalg.matrix_norm(gram))
        log_bound += math.log(size) / exponent
        gram = (gram / size) @ (gram / size)
        exponent *= 2.0
    log_bound += math.log(float(torch.linalg.matrix_norm(gram))) / exponent
    return math.exp(log_bound) * (1.0 + 1e-12 + product_slack(tall.shape[0], tall.shape[1]))


def product_slack(inner: int, outer: int) -> float:
    """Relative error of a 2-norm read from a computed Gram matrix with `inner` terms per entry and `outer` columns.

    A computed product differs from the exact one by at most `gamma_inner ||A||_F^2 <= gamma_inner outer ||A||^2`.
    """
    return 8.0 * max(inner, outer) * outer * UNIT


def schur_norm(matrix: Tensor) -> float:
    """The Schur test, `sqrt(largest row sum * largest column sum)` of magnitudes: cheap and always an upper bound.

    Args:
        matrix: (rows, columns).

    Returns:
        The upper bound.

    Example:
        >>> round(prunus.operators.schur_norm(torch.ones(2, 2)), 6)
        2.0
    """
    magnitudes = _checked(matrix).abs()
    if magnitudes.numel() == 0:
        return 0.0
    bound = math.sqrt(float(magnitudes.sum(0).max()) * float(magnitudes.sum(1).max()))
    return bound * (1.0 + 4.0 * max(magnitudes.shape) * UNIT)


def vector_norm(vector: Tensor) -> float:
    """The 2-norm of all entries, rounded outwards.

    Args:
        vector: A tensor of any shape.

    Returns:
        The norm, never below the true one.

    Example:
        >>> round(prunus.operators.vector_norm(torch.tensor([3.0, 4.0])), 6)
        5.0
    """
    flat = vector.detach().double().flatten()
    if flat.numel() == 0:
        return 0.0
    return float(torch.linalg.vector_norm(flat)) * (1.0 + 1e-14 + 2.0 * flat.numel() * UNIT)


def _checked(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2:
        raise BadInput(f"A matrix has two dimensions, but this tensor has shape {tuple(matrix.shape)}.")
    matrix = matrix.detach().double()
    if not bool(torch.isfinite(matrix).all()):
        raise BadInput("The matrix holds values that are not finite, so it has no norm.")
    return matrix
