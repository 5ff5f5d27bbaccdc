"""The two guards of every certificate: what was read is what runs, and nothing attained is above the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, dtype_of
from prunus.errors import BadInput, RunFailed

_POINTS = 8
_MAIN = ("logits", "last_hidden_state")


def run_module(model: nn.Module, inputs: Tensor) -> Tensor:
    """The main output of the module as it is, (n, outputs) in float64, for inputs (n, *shape)."""
    with torch.no_grad():
        result = model(inputs.to(dtype_of(model)))
    return main_tensor(result).double().flatten(1)


def main_tensor(result: Any) -> Tensor:
    """The tensor a certificate is about, in whatever a module returns."""
    if isinstance(result, Mapping):
        result = next((result[name] for name in _MAIN if name in result), next(iter(result.values())))
    while isinstance(result, (tuple, list)):
        result = result[0]
    if not isinstance(result, Tensor):
        raise BadInput("The network must return one tensor.")
    return result


def some_points(region: Region, seed: int) -> Tensor:
    """A few inputs of the region: centres first, then random ones."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.arange(_POINTS) % region.points
    centres = region.centres[chosen]
    noise = torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    if region.half is not None:
        half = region.half[chosen] if region.half.ndim == centres.ndim else region.half
        moved = centres + (2 * torch.rand(centres.shape, dtype=torch.float64, generator=generator) - 1) * half
    else:
        length = torch.linalg.vector_norm(noise.flatten(1), dim=1).reshape(-1, *[1] * (noise.ndim - 1))
        moved = centres + noise / length.clamp_min(1e-300) * region.radius
    first = min(region.points, _POINTS // 2)
    return torch.cat([centres[:first], moved[first:]])


def check_reading(pair: Pair, models: tuple[nn.Module, nn.Module], region: Region, rounding: float, seed: int) -> None:
    """Both modules, run on points of the region in one batch and one by one, agree with what was read.

    Raises:
        RunFailed: they differ by more than the rounding that the certificate counts.
    """
    if rounding == math.inf:
        return  # the networks may overflow; the bound is infinite too
    points = some_points(region, seed)
    for pruned, model in enumerate(models):
        exact = points.to(dtype_of(model)).double()
        read = pair.run(exact, bool(pruned))[-1].flatten(1)
        allowed = rounding * 1.01 + 1e-11 * (1 + float(read.abs().max()))
        single = torch.cat([run_module(model, exact[:1]), run_module(model, exact[-1:])])
        found = run_module(model, exact)
        if found.shape != read.shape:
            raise RunFailed(f"The network returns outputs of shape {tuple(found.shape)}, not {tuple(read.shape)}.")
        off = float((found - read).norm(dim=1).max())
        off = max(off, float((single - read[[0, -1]]).norm(dim=1).max()))
        if not off <= allowed:
            which = "pruned" if pruned else "original"
            raise RunFailed(
                f"The {which} network as it runs differs by {off:.3g} from what was read of it, and rounding explains "
                f"only {rounding:.3g}: no certificate is given. Does it mix the examples of a batch, or change between "
                "two runs?"
            )


def check_attained(attained: float, bound: float) -> None:
    """A difference above the bound means that the bound is wrong."""
    if attained > bound:
        raise RunFailed(
            f"An input of the domain moves the output by {attained:.6g}, above the bound {bound:.6g}: no certificate "
            "is given. This is a fault of Prunus; please report the two networks."
        )
