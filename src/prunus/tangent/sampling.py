"""Kernels of many random networks at once, and the width a density asks for (ledger K-18, K-18b)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.formulas.tangent import width_for_sigma
from prunus.tangent._angles import density_in, depth_in, inputs
from prunus.tangent._limit import limit

_BYTES = 1 << 27
_CHUNK = 1 << 18  # entries of a mask at a time: they stay in the cache


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

    Args:
        x: a few inputs, (n, ...); they are flattened.
        depth: hidden layers.
        width: units of each hidden layer.
        density: chance that a weight behind the first layer is kept.
        networks: how many networks are drawn.
        rescale: True, False or "weights", see above.
        seed: the same seed gives the same kernels.

    Returns:
        The kernels, (networks, n, n), float64.

    Raises:
        BadInput: The inputs, the depth or the density cannot be used, or width or networks are below 1.

    Example:
        >>> prunus.tangent.sample_kernels(torch.randn(2, 6), depth=2, width=16, density=0.5, networks=3).shape
        torch.Size([3, 2, 2])
    """
    depth, density = depth_in(depth), density_in(density)
    if min(width, networks) < 1:
        raise BadInput(f"width and networks must be at least 1, got {width} and {networks}.")
    x = inputs("x", x).to(torch.float32 if x.dtype == torch.float32 else torch.float64)
    generator = torch.Generator().manual_seed(seed)
    sizes = [x.shape[1], *[width] * depth, 1]
    at_once = min(networks, max(1, _BYTES // (x.element_size() * sum(a * b for a, b in pairwise(sizes)))))
    # Weights are drawn into the same memory again and again: fresh memory costs more than the drawing.
    memory = [torch.empty(at_once, after, before, dtype=x.dtype) for before, after in pairwise(sizes)]
    draw = _Draw(x, density, rescale, generator)
    found = [
        draw.kernels([weights[: min(at_once, networks - start)] for weights in memory])
        for start in range(0, networks, at_once)
    ]
    return torch.cat(found).to(torch.float64)


class _Draw:
    """Draws networks and works out their kernels on the inputs `x` (n, d)."""

    def __init__(self, x: Tensor, density: float, rescale: bool | str, generator: torch.Generator) -> None:
        self.x, self.density, self.generator = x, density, generator
        self.pairs = torch.triu_indices(len(x), len(x))
        # What a mask multiplies by in the forward pass, and its square in the derivative.
        self.forward = 1 / math.sqrt(density) if rescale else 1.0
        self.derivative = 1 / density if rescale is True else 1.0

    def kernels(self, weights: list[Tensor]) -> Tensor:
        """(networks, n, n); each of `weights` (networks, out, in) is drawn anew."""
        x, count = self.x, len(weights[0])
        activations, gates, mixed = [x.expand(count, *x.shape)], [], []
        for layer, weight in enumerate(weights):
            g = activations[-1]
            weight.normal_(generator=self.generator)
            masked = layer > 0 and self.density < 1
            mixed.append(self._mask(weight, self._products(g)) if masked else None)
            if layer + 1 < len(weights):
                before, scale = g @ weight.mT, math.sqrt(2 / weight.shape[1])
                scale *= self.forward if masked else 1.0
                gates.append((before > 0).to(x.dtype) * math.sqrt(2 / weight.shape[1]))
                activations.append(before.relu_() * scale)
        back = x.new_ones(count, len(x), 1)
        kernel = x.new_zeros(count, len(x), len(x))
        for layer in range(len(weights) - 1, -1, -1):
            g, through = activations[layer], mixed[layer]
            if through is None:
                kernel += (back @ back.mT) * (g @ g.mT)
            else:
                kernel += self._spread((self._products(back) * through).sum(2)) * self.derivative
            if layer > 0:
                back = gates[layer - 1] * (back @ weights[layer])
                back *= 1.0 if through is None else self.forward
        return kernel

    def _products(self, vectors: Tensor) -> Tensor:
        """v_a * v_b for every pair of inputs: (networks, pairs, size)."""
        a, b = self.pairs
        return vectors[:, a] * vectors[:, b]

    def _mask(self, weight: Tensor, products: Tensor) -> Tensor:
        """Masks the weights with a fresh mask M and returns M (G_a * G_b) for every pair, (networks, pairs, out).

        The kernel's term is (B_a * B_b)^T M (G_a * G_b): the mask itself need not be kept for it.
        """
        count, rows, fan = weight.shape
        some = max(1, _CHUNK // (count * fan))
        drawn, parts = weight.new_empty(count, min(some, rows), fan), []
        for part in weight.split(some, dim=1):
            mask = drawn[:, : part.shape[1]]
            mask.uniform_(generator=self.generator).lt_(self.density)
            part *= mask
            parts.append(products @ mask.mT)
        return torch.cat(parts, dim=2)

    def _spread(self, values: Tensor) -> Tensor:
        """Symmetric matrices (networks, n, n) from one value for each pair."""
        (a, b), n = self.pairs, len(self.x)
        kernel = values.new_zeros(len(values), n, n)
        kernel[:, a, b] = values
        kernel[:, b, a] = values
        return kernel


@dataclass(frozen=True)
class WidthPlan:
    """How wide a network of this depth and density must be for kernel entries to vary by `sigma` at most.

    dense, slope   of the fluctuation model: width x variance = dense + slope z, z = (1 - density) / density
    pilots         what the two pilot runs measured

    Example:
        >>> plan = prunus.tangent.plan_width(torch.randn(2, 6), 1.0, 0.1, depth=1, width=32, networks=8)
        >>> plan.statement
        "At density 1 about ... units a layer keep the standard deviation of one output's kernel, ..."
    """

    width: int
    density: float
    sigma: float
    dense: float
    slope: float
    pilots: tuple[dict[str, float], ...]

    @property
    def statement(self) -> str:
        """The plan in words."""
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

    Args:
        x: inputs, (n, ...), none of them zero; the first eight are used.
        density: density of the network that is planned.
        sigma: the largest standard deviation that is wanted.
        depth: hidden layers.
        width: units of each hidden layer in the pilot runs.
        networks: networks drawn in each pilot run, at least 8.
        seed: the same seed gives the same plan.
        advance: called after each pilot run, for a progress line.

    Returns:
        The width, and the fit it comes from.

    Raises:
        BadInput: A number is out of its range, or an input is zero.

    Example:
        >>> x = torch.randn(3, 6)
        >>> few, many = (prunus.tangent.plan_width(x, 1.0, s, depth=1, width=32, networks=8).width for s in (0.2, 0.1))
        >>> few < many
        True
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
