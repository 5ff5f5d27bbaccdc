"""Norms of concrete linear and convolution operators, and the spectral penalty used in training.

`matrix_norm`, `convolution_norm`, `average_pool_norm` and `max_pool_lipschitz` are upper bounds, in float64, rounded
outwards: certificates rest on them. What starts with `estimate_` is quick and only a lower estimate (ledger P-32).
"""

from __future__ import annotations

from prunus.operators.convolution import Geometry, block_norm, convolution_norm, embedding_size
from prunus.operators.dense import gram_norm, matrix_norm, schur_norm, vector_norm
from prunus.operators.double import convolve
from prunus.operators.estimates import estimate_convolution_norm, estimate_matrix_norm
from prunus.operators.penalty import SpectralPenalty, spectral_penalty
from prunus.operators.pooling import adaptive_average_pool_norm, average_pool_norm, max_pool_lipschitz

__all__ = [
    "Geometry",
    "SpectralPenalty",
    "adaptive_average_pool_norm",
    "average_pool_norm",
    "block_norm",
    "convolution_norm",
    "convolve",
    "embedding_size",
    "estimate_convolution_norm",
    "estimate_matrix_norm",
    "gram_norm",
    "matrix_norm",
    "max_pool_lipschitz",
    "schur_norm",
    "spectral_penalty",
    "vector_norm",
]
