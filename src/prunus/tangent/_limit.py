"""The limiting tangent kernel of fully connected ReLU networks, dense and randomly pruned (ledger K-2 to K-9)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.tangent._angles import angles, density_in, depth_in, half_sine_angle, inputs, next_angle, ramp, step

_BLOCK = 1 << 18  # entries of the kernel worked on at once: small enough for the caches
_ENUMERATED = 12  # coordinates up to which all masks of the input are gone through


def limit(
    x1: Tensor,
    x2: Tensor | None = None,
    depth: int = 3,
    density: float = 1.0,
    rescale: bool | str = True,
    prune_input: bool = False,
    *,
    draws: int = 4096,
    seed: int = 0,
) -> Tensor:
    """The limiting kernel (n1, n2), float64, of a ReLU network with `depth` hidden layers whose widths go to infinity.

    Conventions of K-0: standard normal weights, factor sqrt(2 / width) after each ReLU, no biases, one output; inputs
    (n, ...) are flattened. Layers 2 .. depth + 1 keep each weight with probability `density`.

    rescale=True      masks in {0, 1/sqrt(density)}: the dense limit at any density (Corollary 3.3)
    rescale=False     masks in {0, 1}: density ** depth times the dense limit (Theorem 3.1)
    rescale="weights" the trap of K-5: the weights are divided by sqrt(density) and differentiated as they are; only
                      the input layer's term keeps its size, all others shrink by the density
    prune_input=True  the input layer is masked as well (K-9): an average over masks of the input, exact up to 12
                      coordinates, else over `draws` masks drawn with `seed`; without rescaling one density more

    Args:
        x1: inputs, (n1, ...).
        x2: other inputs, (n2, ...); None for `x1` against itself.
        depth: hidden layers.
        density: chance that a weight is kept.
        rescale: True, False or "weights", see above.
        prune_input: whether the input layer is masked as well.
        draws: masks of the input that are drawn where there are too many to go through.
        seed: seed of those draws.

    Returns:
        The kernel (n1, n2), float64.

    Raises:
        BadInput: The inputs do not fit each other, or an option is out of its range.

    Example:
        >>> prunus.tangent.limit(torch.eye(2), depth=1, density=0.5, rescale=False).round(decimals=4)
        tensor([[1.0000, 0.1592],
                [0.1592, 1.0000]], dtype=torch.float64)
    """
    depth, density = depth_in(depth), density_in(density)
    if rescale not in (True, False, "weights"):
        raise BadInput(f'rescale must be True, False or "weights", got {rescale!r}.')
    first = inputs("x1", x1)
    second = first if x2 is None else inputs("x2", x2)
    if first.shape[1] != second.shape[1]:
        raise BadInput(f"x1 and x2 must have inputs of one size, got {first.shape[1]} and {second.shape[1]}.")
    if prune_input and density < 1:
        if rescale == "weights":
            raise BadInput('rescale="weights" is known for a dense input layer only: leave prune_input out.')
        kernel = _pruned_input(first, second, depth, density, x2 is None, draws, seed)
        return kernel if rescale else kernel * density ** (depth + 1)
    later = density if rescale == "weights" else 1.0
    kernel = torch.empty(len(first), len(second), dtype=torch.float64, device=first.device)
    norms1, norms2 = first.norm(dim=1), second.norm(dim=1)
    rows = max(1, _BLOCK // max(1, len(second)))
    for start in range(0, len(first), rows):
        part, rest = slice(start, start + rows), slice(start if x2 is None else 0, None)
        angle = angles(first[part], second[rest], norms1[part], norms2[rest], same=x2 is None)
        block = _recursion(angle, norms1[part, None] * norms2[rest], depth, later)
        kernel[part, rest] = block
        if x2 is None:
            kernel[rest, part] = block.T
    return kernel if rescale else kernel * density**depth


def _recursion(angle: Tensor, scale: Tensor, depth: int, later: float = 1.0) -> Tensor:
    """K-2: theta^(h) = sigma^(h) + derivative^(h) theta^(h-1); `later` weighs the terms of layers 2 .. depth + 1."""
    kernel = torch.cos(angle)
    for layer in range(1, depth + 1):
        kernel.mul_(step(angle)).add_(ramp(angle), alpha=later)
        if layer < depth:
            angle = next_angle(angle)
    return kernel.mul_(scale)


def _pruned_input(x1: Tensor, x2: Tensor, depth: int, density: float, same: bool, draws: int, seed: int) -> Tensor:
    """K-9 with rescaled masks: the first layer's covariance and input term averaged over masks of the coordinates."""
    seen = (x1 != 0).any(0) | (x2 != 0).any(0)
    x1, x2 = x1[:, seen], x2[:, seen]
    masks, weights = _input_masks(x1.shape[1], density, draws, seed)
    masks, weights = masks.to(x1.device), weights.to(x1.device)
    norms1, norms2 = x1.norm(dim=1), x2.norm(dim=1)
    scale = norms1[:, None] * norms2
    safe = torch.where(scale > 0, scale, 1.0)
    covariance, input_term, gap = (torch.zeros_like(scale) for _ in range(3))
    inverse1, inverse2 = (1 / torch.where(norms > 0, norms, 1.0) for norms in (norms1, norms2))
    chunk = max(1, _BLOCK // max(1, scale.numel()))
    for mask, weight in zip(masks.split(chunk), weights.split(chunk)):
        m1, m2 = x1 * mask[:, None], x2 * mask[:, None]
        a, b = m1.norm(dim=2), m2.norm(dim=2)
        angle = angles(m1, m2, a, b, same)
        a, b = a / math.sqrt(density), b / math.sqrt(density)
        both = a[:, :, None] * b[:, None]
        # 1 - correlation of the features as a sum of positive terms, so that parallel inputs keep the angle 0.
        uneven = (a * inverse1)[:, :, None] - (b * inverse2)[:, None]
        opening = uneven**2 / 2 + both / safe * 2 * torch.sin(next_angle(angle) / 2) ** 2
        covariance += torch.einsum("m,mab->ab", weight, both * ramp(angle))
        input_term += torch.einsum("m,mab->ab", weight, both * torch.cos(angle) * step(angle))
        gap += torch.einsum("m,mab->ab", weight, opening)
    kernel, angle = input_term + covariance, half_sine_angle(gap / 2)
    for layer in range(2, depth + 1):
        kernel = kernel * step(angle) + scale * ramp(angle)
        if layer < depth:
            angle = next_angle(angle)
    return torch.where(scale > 0, kernel, 0.0)


def _input_masks(size: int, density: float, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Masks of the input's coordinates (m, size) and their probabilities: all of them, or as many as drawn."""
    if size <= _ENUMERATED:
        masks = (torch.arange(1 << size)[:, None] >> torch.arange(size) & 1).to(torch.float64)
        ones = masks.sum(1)
        return masks, density**ones * (1 - density) ** (size - ones)
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise BadInput(f"draws must be a whole number of at least 1, got {draws!r}.")
    generator = torch.Generator().manual_seed(seed)
    masks = (torch.rand(draws, size, generator=generator, dtype=torch.float64) < density).to(torch.float64)
    return masks, torch.full((draws,), 1 / draws, dtype=torch.float64)
