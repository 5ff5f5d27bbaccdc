"""The two guards of every certificate: what was read is what runs, and nothing attained is above the bound."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from prunus.certificates._watch import check_run
from prunus.certificates.bounds.intervals import Ranges, propagate_ranges
from prunus.certificates.bounds.recursion import Norms
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.bounds.rounding import drifts
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, dtype_of
from prunus.errors import BadInput, RunFailed
from prunus.graph import unwrapped

_POINTS = 8
_MOST_OUTPUTS = 100
"""Outputs for which rounding is followed one by one."""
_MAIN = ("logits", "last_hidden_state")


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def with_gradients(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function as it runs outside of `torch.no_grad` and `torch.inference_mode`: attacks need gradients."""

    @functools.wraps(function)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with torch.inference_mode(False), torch.enable_grad():
            return function(*args, **kwargs)

    return run


def run_module(model: nn.Module, inputs: Tensor, gradients: bool = False) -> Tensor:
    """The main output of the module as it is, (n, outputs) in float64, for inputs (n, *shape)."""
    with torch.set_grad_enabled(gradients):
        result = model(inputs.to(dtype_of(model)))
    found = main_tensor(result).detach().double()
    return found.reshape(found.shape[0], -1)


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


def check_reading(pair: Pair, models: tuple[nn.Module, nn.Module], region: Region, seed: int) -> None:
    """Both modules, run on points of the region in one batch and one by one, agree with what was read.

    One of the points is run with gradients on, as in training. Nothing may run that the graph cannot show.

    Raises:
        BadInput: they take values out of tensors, draw random numbers, or treat a single example differently.
        RunFailed: they differ by more than rounding explains at these points.
    """
    points = some_points(region, seed)
    inputs = [points.to(dtype_of(model)).double() for model in models]
    if torch.equal(*inputs):
        roundings = _roundings(pair, inputs[0], (False, True))
    else:
        roundings = [_roundings(pair, inputs[side], (bool(side),))[0] for side in (0, 1)]
    for pruned, (model, exact, rounding) in enumerate(zip(models, inputs, roundings)):
        read = pair.run(exact, bool(pruned))[-1].flatten(1)
        allowed = rounding * 1.01 + 1e-11 * (1 + read.abs().amax(1))
        which = "pruned" if pruned else "original"
        check_run(unwrapped(model), exact.to(dtype_of(model)), which)
        ends = [run_module(model, exact[:1]), run_module(model, exact[-1:], gradients=True)]
        found = run_module(model, exact)
        for result, rows in ((found, len(read)), (ends[0], 1), (ends[1], 1)):
            if result.shape != (rows, read.shape[1]):
                raise RunFailed(
                    f"The {which} network gives {tuple(result.shape)} outputs for {rows} inputs, not "
                    f"{(rows, read.shape[1])}: no certificate is given."
                )
        single = torch.cat(ends)
        off = (found - read).norm(dim=1)
        off[[0, -1]] = torch.maximum(off[[0, -1]], (single - read[[0, -1]]).norm(dim=1))
        # Where the networks may overflow the bound is infinite too.
        wrong = ~(off <= allowed) & torch.isfinite(allowed)
        if bool(wrong.any()):
            row = int(torch.nonzero(wrong)[0])
            raise RunFailed(
                f"The {which} network as it runs differs by {float(off[row]):.3g} from what was read of it, and "
                f"rounding explains only {float(rounding[row]):.3g}: no certificate is given. Does it mix the examples "
                "of a batch, or change between two runs?"
            )


def _roundings(pair: Pair, points: Tensor, sides: Sequence[bool]) -> list[Tensor]:
    """How far (points,) each network may compute from its exact self at single points, in the 2-norm."""
    here, outputs, found = Region(points, 0.0), math.prod(pair.output_shape), []
    with torch.no_grad():
        ranges, norms = propagate_ranges(pair, here), Norms(pair)
        relaxation = _at_points(pair, here, ranges) if outputs <= _MOST_OUTPUTS else None
        for pruned in sides:
            rounding = drifts(pair, norms, ranges, pruned, pair.dtypes[int(pruned) :][:1])[0][-1]
            if relaxation is not None:
                units = torch.eye(outputs, dtype=torch.float64).reshape(1, outputs, *pair.output_shape)
                rows = torch.cat([units, -units], dim=1).expand(points.shape[0], *[-1] * (units.ndim - 1))
                width = relaxation.upper_one(len(pair.steps), rows, pruned).reshape(points.shape[0], 2, -1).sum(1)
                rounding = torch.minimum(rounding, width.norm(dim=1))
            found.append(rounding)
    return found


def _at_points(pair: Pair, here: Region, ranges: Sequence[Ranges]) -> Relaxation:
    """The relaxation of the values computed at single points; nothing but the inputs is known of them before."""
    blank = [value.blank() for value in ranges[1:]]
    relaxation = Relaxation(pair, here, [ranges[0], *blank], computed=True)
    relaxation.refresh()
    return relaxation


def check_attained(attained: float, bound: float) -> None:
    """A difference above the bound means that the bound is wrong."""
    if attained > bound:
        raise RunFailed(
            f"An input of the domain moves the output by {attained:.6g}, above the bound {bound:.6g}: no certificate "
            "is given. This is a fault of Prunus; please report the two networks."
        )


def check_seconds(seconds: Any) -> None:
    """Refuse a time in which nothing can be done."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise BadInput(f"The time is {seconds!r} s: give more than 0.")
