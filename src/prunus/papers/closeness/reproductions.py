"""Tables 2 and 3 of the closeness paper again: norms of random matrices, and the constant of Latala's inequality."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from prunus.papers.reproducing import reproduction

_CLOSENESS = "Qian and Klabjan, A Probabilistic Approach to Neural Network Pruning"
_MATRICES = 1000
"""Matrices behind each number of the closeness paper's tables 2 and 3."""

# Norm of a uniform matrix, K = 1: rows, columns -> mean, deviation, 95 % and 99 % quantile.
_TABLE_2 = {
    (32, 32): (1.087, 0.038, 1.150, 1.183),
    (32, 64): (0.941, 0.027, 0.988, 1.015),
    (32, 128): (0.836, 0.018, 0.867, 0.878),
    (32, 256): (0.762, 0.013, 0.784, 0.794),
    (32, 512): (0.708, 0.009, 0.723, 0.731),
    (64, 64): (1.114, 0.026, 1.158, 1.183),
    (64, 128): (0.959, 0.018, 0.992, 1.005),
    (64, 256): (0.848, 0.012, 0.868, 0.880),
    (64, 512): (0.770, 0.008, 0.785, 0.792),
    (128, 128): (1.131, 0.017, 1.159, 1.173),
    (128, 256): (0.969, 0.012, 0.990, 0.999),
    (128, 512): (0.856, 0.008, 0.870, 0.875),
    (256, 256): (1.140, 0.011, 1.160, 1.170),
    (256, 512): (0.976, 0.008, 0.989, 0.995),
    (512, 512): (1.146, 0.007, 1.159, 1.163),
}


@reproduction(
    "closeness-table-2",
    "Norms of uniform random matrices: mean, deviation and quantiles",
    f"{_CLOSENESS}, table 2 (ledger P-8)",
    minutes=3.0,
)
def closeness_table_2(seed: int = 0, matrices: int = 0) -> Iterator[dict[str, Any]]:
    """Entries uniform on +-1/sqrt(max side). The difference counts both sampling errors and the paper's rounding."""
    generator = np.random.default_rng(seed)
    for (rows, columns), (mean, deviation, high, higher) in _TABLE_2.items():
        count = matrices or max(60, 40_000 // max(rows, columns))
        edge = 1 / math.sqrt(max(rows, columns))
        norms = np.array([_norm(generator.uniform(-edge, edge, (rows, columns))) for _ in range(count)])
        spread = float(norms.std(ddof=1))
        error = math.sqrt(spread**2 / count + spread**2 / _MATRICES + 0.0005**2 / 3)
        yield {
            "shape": f"{rows}x{columns}",
            "matrices": count,
            "published mean": mean,
            "our mean": float(norms.mean()),
            "standard errors": (float(norms.mean()) - mean) / error,
            "published deviation": deviation,
            "our deviation": spread,
            "published 95 %": high,
            "our 95 %": float(np.quantile(norms, 0.95)),
            "published 99 %": higher,
            "our 99 %": float(np.quantile(norms, 0.99)),
        }


# Calibrated constant of Latala's inequality: side, law (variance times side), exponent of the mask -> C.
_TABLE_3 = (
    (32, "uniform", 1.0, None, 0.596),
    (64, "uniform", 1.0, None, 0.610),
    (128, "uniform", 1.0, None, 0.618),
    (256, "uniform", 1.0, None, 0.624),
    (512, "uniform", 1.0, None, 0.627),
    (32, "normal", 1.0, None, 0.571),
    (128, "normal", 1.0, None, 0.590),
    (512, "normal", 1.0, None, 0.598),
    (128, "normal", 3.0, None, 0.591),
    (32, "normal", 1.0, 0.01, 0.540),
    (256, "normal", 1.0, 0.01, 0.542),
    (32, "normal", 1.0, 0.1, 0.545),
    (256, "normal", 1.0, 0.1, 0.562),
    (32, "normal", 1.0, 0.5, 0.565),
    (256, "normal", 1.0, 0.5, 0.592),
)


@reproduction(
    "closeness-table-3",
    "The calibrated constant of Latala's inequality, with and without masks",
    f"{_CLOSENESS}, table 3 (ledger P-9; the constant is one law's and one shape's, not universal)",
    minutes=3.0,
)
def closeness_table_3(seed: int = 0, matrices: int = 0) -> Iterator[dict[str, Any]]:
    """Mean norm over the sum of the three terms, all from the same matrices; masks drawn with replacement."""
    generator = np.random.default_rng(seed)
    for side, law, variance, exponent, published in _TABLE_3:
        count = matrices or max(60, 40_000 // side)
        square, fourth, norms = np.zeros((side, side)), 0.0, []
        for _ in range(count):
            matrix = _draw(generator, side, law, variance)
            if exponent is not None:
                drawn = generator.integers(0, side * side, math.floor(side ** (2 - exponent)))
                matrix.reshape(-1)[drawn] = 0.0
            norms.append(_norm(matrix))
            square += np.square(matrix)
            fourth += float((matrix**4).sum())
        terms = math.sqrt(square.sum(1).max() / count) + math.sqrt(square.sum(0).max() / count)
        terms += (fourth / count) ** 0.25
        # The constant's own error: that of the mean norm, and 0.003 for the maxima of averages over fewer matrices.
        spread = float(np.std(norms, ddof=1)) / terms
        error = math.sqrt(spread**2 / count + spread**2 / _MATRICES + 0.0005**2 / 3 + 0.003**2)
        yield {
            "side": side,
            "law": f"{law}, variance {variance:g}/{side}",
            "mask exponent": exponent,
            "matrices": count,
            "mean norm": float(np.mean(norms)),
            "published C": published,
            "our C": float(np.mean(norms)) / terms,
            "standard errors": (float(np.mean(norms)) / terms - published) / error,
        }


def _draw(generator: np.random.Generator, side: int, law: str, variance: float) -> np.ndarray:
    scale = math.sqrt(variance / side)
    if law == "uniform":
        return scale * generator.uniform(-math.sqrt(3), math.sqrt(3), (side, side))
    return scale * generator.standard_normal((side, side))


def _norm(matrix: np.ndarray) -> float:
    """Spectral norm, by the eigenvalues of the smaller of the two products with the transpose."""
    flat = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return math.sqrt(float(np.linalg.eigvalsh(flat @ flat.T)[-1]))
