"""Kernels of many random networks at once, and the width a density asks for (ledger K-18, K-18b)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.tangent._angles import density_in, depth_in, inputs
from prunus.tangent._limit import limit
from prunus.theory.tangent import width_for_sigma

_BYTES = 1 << 27


def sample_kernels(
    x: Tensor,
    depth: int = 3,
    width: int = 256,
    density: float = 1.0,
    networks: int = 64,
    *,
    rescale: bool | str = True,
    seed: int = 0,
) -> Tensor:
    """Exact kernels (networks, n, n) of random fully connected networks as in K-0, for a few inputs.

    Weights are standard normal, masks independent with this density on all layers but the first. `rescale` as in
    `limit`: True for masks in {0, 1/sqrt(density)}, False for {0, 1}, "weights" for the trap of K-5. Inputs in float32
    are worked on in float32, which is twice as quick; the result is float64.
    """
    depth, density = depth_in(depth), density_in(density)
    if min(width, networks) < 1:
        raise BadInput(f"width and networks must be at least 1, got {width} and {networks}.")
    x = inputs("x", x).to(torch.float32 if x.dtype == torch.float32 else torch.float64)
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, _BYTES // (x.element_size() * 4 * width * max(width, x.shape[1])))
    found = [
        _kernels(x, depth, width, density, min(at_once, networks - start), rescale, generator)
        for start in range(0, networks, at_once)
    ]
    return torch.cat(found).to(torch.float64)


def _kernels(
    x: Tensor, depth: int, width: int, density: float, count: int, rescale: bool | str, generator: torch.Generator
) -> Tensor:
    n = len(x)
    sizes = [x.shape[1], *[width] * depth, 1]
    # What a mask multiplies by in the forward pass, and its square in the derivative.
    forward = 1 / math.sqrt(density) if rescale else 1.0
    derivative = 1 / density if rescale is True else 1.0
    weights, masks = [], []
    for layer in range(depth + 1):
        weight = torch.randn(count, sizes[layer + 1], sizes[layer], generator=generator, dtype=x.dtype)
        mask = None
        if layer > 0 and density < 1:
            mask = (torch.rand(weight.shape, generator=generator) < density).to(x.dtype)
            weight = weight.mul_(mask).mul_(forward)
        weights.append(weight)
        masks.append(mask)
    activations, gates = [x.expand(count, *x.shape)], []
    for weight in weights[:-1]:
        before = activations[-1] @ weight.mT
        scale = math.sqrt(2 / width)
        gates.append((before > 0).to(x.dtype) * scale)
        activations.append(before.relu() * scale)
    back = torch.ones(count, n, 1, dtype=x.dtype)
    kernel = torch.zeros(count, n, n, dtype=x.dtype)
    for layer in range(depth, -1, -1):
        g, mask = activations[layer], masks[layer]
        if mask is None:
            kernel += (back @ back.mT) * (g @ g.mT)
        else:
            kernel += _masked_products(back, g, mask) * derivative
        if layer > 0:
            back = gates[layer - 1] * (back @ weights[layer])
    return kernel


def _masked_products(back: Tensor, g: Tensor, mask: Tensor) -> Tensor:
    """(B_a * B_b)^T M (G_a * G_b) for every pair of inputs, network by network."""
    a, b = torch.triu_indices(g.shape[1], g.shape[1])
    values = ((back[:, a] * back[:, b]) * ((g[:, a] * g[:, b]) @ mask.mT)).sum(2)
    kernel = g.new_zeros(len(g), g.shape[1], g.shape[1])
    kernel[:, a, b] = values
    kernel[:, b, a] = values
    return kernel


@dataclass(frozen=True)
class WidthPlan:
    """How wide a network of this depth and density must be for kernel entries to vary by `sigma` at most.

    dense, slope   of the fluctuation model: width x variance = dense + slope z, z = (1 - density) / density
    pilots         what the two pilot runs measured
    """

    width: int
    density: float
    sigma: float
    dense: float
    slope: float
    pilots: tuple[dict[str, float], ...]

    @property
    def statement(self) -> str:
        return (
            f"At density {self.density:g} about {self.width} units a layer keep the standard deviation of one output's "
            f"kernel, relative to the norms of the inputs, at {self.sigma:g} (a fit to pilot runs, not a theorem)."
        )


def plan_width(
    x: Tensor,
    density: float,
    sigma: float,
    *,
    depth: int = 3,
    width: int = 256,
    networks: int = 100,
    seed: int = 0,
    advance: Callable[[], Any] = lambda: None,
) -> WidthPlan:
    """K-18b with constants of your own inputs: two pilot runs, dense and pruned, at `width` give its two constants.

    `sigma` is the standard deviation of a kernel entry over ||x|| ||x'||, averaged over the pairs among the first
    eight inputs. The density of the pilot is raised until density x width is 25, below which the mean is biased and
    the model does not hold; the plan asks for at least that as well.
    """
    density = density_in(density)
    if not sigma > 0:
        raise BadInput(f"sigma must be positive, got {sigma!r}.")
    if networks < 8:
        raise BadInput(f"networks must be at least 8 to measure a spread, got {networks}.")
    few = inputs("x", x)[:8]
    norms = few.norm(dim=1)
    if not bool((norms > 0).all()):
        raise BadInput("x holds an input that is zero: its kernel has no spread to measure.")
    few = few / norms[:, None]
    tried = min(1.0, max(density, 25 / width))
    expected = limit(few, depth=depth)
    pilots: list[dict[str, float]] = []
    for level in (1.0, tried) if density < 1 else (1.0,):
        kernels = sample_kernels(few, depth, width, level, networks, seed=seed + len(pilots))
        variance = float(kernels.var(0).mean())
        bias = float((kernels.mean(0) - expected).abs().mean())
        pilots.append({"width": width, "density": level, "variance": variance, "bias": bias})
        advance()
    dense = pilots[0]["variance"] * width
    z = (1 - tried) / tried
    slope = max(0.0, pilots[-1]["variance"] * width - dense) / z if z > 0 else 0.0
    return WidthPlan(width_for_sigma(sigma, density, dense, slope), density, sigma, dense, slope, tuple(pilots))
