"""Small pruned ReLU networks in numpy: their tangent kernel layer by layer, straight from the definition (K-3)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PairPasses:
    """One network at a pair of inputs; lists run over layers."""

    covariances: list[float]  # <g(x), g(y)> of layers 0 .. depth
    back_products: list[float]  # <b(x), b(y)> of weight layers 1 .. depth + 1
    terms: list[float]  # kernel terms of weight layers 1 .. depth + 1
    preactivation: float  # mean square of the last hidden pre-activation at x


def tangent_terms(
    pair: Array, depth: int, width: int, density: float, mode: str, random: np.random.Generator
) -> PairPasses:
    """Draw one network and evaluate it at both rows of `pair`.

    mode "plain": masks in {0, 1}; "mask": masks in {0, 1/sqrt(density)}; "weight": stored weights divided by
    sqrt(density) and differentiated as stored. The first layer is dense.
    """
    sizes = [pair.shape[1], *[width] * depth, 1]
    scale = 1.0 if mode == "plain" else 1 / math.sqrt(density)
    used, slopes = [], []
    for layer, (fan, rows) in enumerate(itertools.pairwise(sizes)):
        weight = random.standard_normal((rows, fan))
        mask = random.random((rows, fan)) < density if layer else np.ones((rows, fan), dtype=bool)
        factor = scale if layer else 1.0
        used.append(weight * mask * factor)
        slopes.append(mask * (factor**2 if mode == "mask" else 1.0))
    activations, signs = [pair], []
    for weight in used[:-1]:
        before = activations[-1] @ weight.T
        signs.append(before > 0)
        activations.append(math.sqrt(2 / weight.shape[0]) * np.maximum(before, 0.0))
        last = before
    backs = [np.ones((2, 1))]
    for weight, sign in zip(used[:0:-1], signs[::-1], strict=True):
        backs.append(math.sqrt(2 / weight.shape[1]) * sign * (backs[-1] @ weight))
    backs.reverse()
    terms = [
        float((b[0] * b[1]) @ slope @ (g[0] * g[1])) for b, slope, g in zip(backs, slopes, activations, strict=True)
    ]
    return PairPasses(
        [float(g[0] @ g[1]) for g in activations],
        [float(b[0] @ b[1]) for b in backs],
        terms,
        float((last[0] ** 2).mean()),
    )
