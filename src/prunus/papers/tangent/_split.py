"""The backward vector of a pruned network, split along and across the activations (K-24d; Propositions 5.2 and 5.3).

Given the pre-activations of layer h+1, the rows of its weights are fixed along the span of the two masked activations
and fresh Gaussians across it. The part across carries the kernel; the part along fades like 1 / sqrt(density width).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.tangent import kept
from prunus.papers.tangent._kernels import MOST_LAYERS

Array = NDArray[np.float64]

_RANK_CUT = 1e-12  # tolerance
_MOST_WEIGHTS = 2 * 10**7  # about half a gigabyte with masks and products


@dataclass(frozen=True)
class Split:
    """b^(h) of both inputs (rows), and its parts across and along the span of the masked activations."""

    whole: Array
    across: Array
    along: Array


@claim("K-24d")
def backward_split(angle: float, depth: int, width: int, density: float, layer: int, seed: int = 0) -> dict[str, float]:
    """K-24d: draw one network with rescaled masks and split its backward vector at hidden layer `layer`.

    Unit inputs at the given angle, first layer dense. Returns <b(x), b(y)>, the same for the part across, the norm of
    the part along at x, and the largest entry of b - across - along, which is rounding only.
    """
    angle = domain.real("angle", angle, 0.0, math.pi)
    depth, width = domain.whole("depth", depth, 1, MOST_LAYERS), domain.whole("width", width, 1)
    layer, seed = domain.whole("layer", layer, 1, depth), domain.whole("seed", seed, 0)
    pair = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    weights, masks = draw_network(pair.shape[1], depth, width, kept("density", density), np.random.default_rng(seed))
    split = split_backward(pair, weights, masks, layer)
    return {
        "total": float(split.whole[0] @ split.whole[1]),
        "across": float(split.across[0] @ split.across[1]),
        "along_norm": float(np.linalg.norm(split.along[0])),
        "gap": float(np.abs(split.whole - split.across - split.along).max()),
    }


def draw_network(
    inputs: int, depth: int, width: int, density: float, random: np.random.Generator
) -> tuple[list[Array], list[Array]]:
    """Standard normal weights of layers 1 .. depth + 1 and their masks in {0, 1/sqrt(density)}; the first is dense."""
    total = width * (inputs + (depth - 1) * width + 1)
    if total > _MOST_WEIGHTS:
        raise BadInput(f"The network has {total:.3g} weights, more than {_MOST_WEIGHTS:.0e}: take a smaller one.")
    sizes = [inputs, *[width] * depth, 1]
    weights = [random.standard_normal((rows, fan)) for fan, rows in itertools.pairwise(sizes)]
    masks = [(random.random(w.shape) < density) / math.sqrt(density) for w in weights]
    masks[0] = np.ones_like(weights[0])
    return weights, masks


def split_backward(pair: Array, weights: list[Array], masks: list[Array], layer: int) -> Split:
    """The split for given weights and masks, both inputs in the rows of `pair`."""
    used = [weight * mask for weight, mask in zip(weights, masks, strict=True)]
    activations, before = [pair], []
    for weight in used[:-1]:
        before.append(activations[-1] @ weight.T)
        activations.append(math.sqrt(2 / weight.shape[0]) * np.maximum(before[-1], 0.0))
    back = np.ones((2, 1))
    for above in range(len(used) - 1, layer, -1):
        back = math.sqrt(2 / used[above].shape[1]) * (before[above - 1] > 0) * (back @ used[above])
    gate = math.sqrt(2 / weights[layer].shape[1]) * (before[layer - 1] > 0)
    fixed = _projected_rows(activations[layer], weights[layer], masks[layer])
    across = weights[layer] - fixed
    return Split(
        gate * (back @ used[layer]), gate * (back @ (across * masks[layer])), gate * (back @ (fixed * masks[layer]))
    )


def _projected_rows(activations: Array, weight: Array, mask: Array) -> Array:
    """Each row of the weights projected on the span of the two activations under that row's mask."""
    spans = mask[:, None, :] * activations  # (rows, 2, fan)
    gram = spans @ spans.transpose(0, 2, 1)
    values = np.einsum("ikj,ij->ik", spans, weight)  # the pre-activations of the layer above
    coefficients = np.einsum("ikl,il->ik", np.linalg.pinv(gram, rcond=_RANK_CUT, hermitian=True), values)
    return cast("Array", np.einsum("ik,ikj->ij", coefficients, spans))
