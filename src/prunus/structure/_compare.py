"""Is the smaller model the masked original? Both are run on the example, and on others where it says too little.

An example of zeros says little: without biases every model of the same shape answers it with zeros. So tensors of the
example that are the same all over are made to vary, one at a time. A model in half precision is compared in single
precision, where rounding does not hide a mistake. Where layer norms may lose units (`exact=False`), which zeros cannot
imitate, both are run with sums in the place of means.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus._torch import pytree
from prunus.structure._call import Example, outputs

TOLERANCE = 1e-4
_ROUNDING = 1e-5  # what may differ however little a removal changes
_PART = 0.1  # of what the removal changes
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Trial:
    """One call, what the masked original answers, how far off is right, and whether means are sums meanwhile."""

    example: Example
    wanted: list[Tensor]
    tolerance: float
    summed: bool = False

    def gap(self, model: nn.Module) -> float:
        """How far the model's outputs are from those that are wanted."""
        with Sums() if self.summed else nullcontext():
            return gap(outputs_of(model, self.example), self.wanted)


def find_trials(model: nn.Module, masked: nn.Module, example: Example, *, exact: bool) -> list[Trial]:
    """What a smaller model is run on: the example, and variants of it that the masked original can answer.

    Without `exact`, `masked` has zeros in its vectors too.
    """
    model, masked, example = in_single(model), in_single(masked), _in_single(example)
    found: list[Trial] = []
    for at, given in enumerate((example, *_varied(example))):
        try:
            with nullcontext() if exact else Sums():
                wanted, whole = outputs_of(masked, given), outputs_of(model, given)
        except Exception:
            if not at:
                raise
            continue  # what a model does with inputs that nobody gave it is its own affair
        if not at or all(bool(each.isfinite().all()) for each in wanted):
            found.append(Trial(given, wanted, _tolerance(whole, wanted), summed=not exact))
    return found


def compare(model: nn.Module, trials: Sequence[Trial]) -> tuple[float, bool]:
    """(largest gap, whether all are small enough)."""
    single = in_single(model)
    gaps = [trial.gap(single) for trial in trials]
    return max(gaps), all(found <= trial.tolerance for found, trial in zip(gaps, trials))


def outputs_of(model: nn.Module, example: Example) -> list[Tensor]:
    """The outputs for an example in evaluation mode; the modes are put back."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return outputs(model, example)
    finally:
        for module, flag in training:
            module.training = flag


def gap(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference between outputs, each relative to its scale; infinite where they are not alike.

    Entries that are equal, such as those that a model fills with -1e9, do not count for the scale. Of whole numbers it
    is the share of those that differ.
    """
    if len(found) != len(wanted) or any(a.shape != b.shape for a, b in zip(found, wanted)):
        return float("inf")
    return max((_apart(a, b) for a, b in zip(found, wanted) if a.numel()), default=0.0)


def _apart(found: Tensor, wanted: Tensor) -> float:
    if found.is_complex():
        found, wanted = torch.view_as_real(found), torch.view_as_real(wanted)
    differs = (found != wanted) & ~(found.isnan() & wanted.isnan())
    if not bool(differs.any()):
        return 0.0
    if not found.is_floating_point():
        return float(differs.double().mean())
    ordinary = wanted[wanted.isfinite()].abs().unique()  # a filling counts once
    typical = float(ordinary[len(ordinary) // 2]) if len(ordinary) else 0.0
    value = float((found - wanted)[differs].abs().max()) / max(float(wanted[differs].abs().max()), typical, 1e-30)
    return value if value == value else float("inf")


class Sums(TorchFunctionMode):
    """Inside, layer norms and means take sums, in which units that are zero and units that left are the same."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in ("layer_norm", "rms_norm"):
            return _scaled(*args, **given)
        if name in ("mean", "var", "std", "var_mean", "std_mean"):
            x = args[0] if args else given.pop("input")
            dims = args[1] if len(args) > 1 else given.get("dim")
            kept = bool(given.get("keepdim", args[2] if len(args) > 2 and name == "mean" else False))
            sums = x.sum() if dims is None else x.sum(dims, keepdim=kept)
            if name == "mean":
                return sums
            squares = x.square().sum() if dims is None else x.square().sum(dims, keepdim=kept)
            spread = squares.sqrt() if name.startswith("std") else squares
            return (spread, sums) if name.endswith("_mean") else spread
        return func(*args, **given)


def _scaled(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = None,
    *_: Any,
) -> Tensor:
    """A layer norm with the square root of the sum of squares in the place of the standard deviation."""
    dims = list(range(-len(normalized_shape), 0))
    result = input / (input.square().sum(dims, keepdim=True) + (eps or 1e-6)).sqrt()
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def _tolerance(whole: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """A mistake must be small beside what the removal itself changes."""
    return min(TOLERANCE, max(_ROUNDING, _PART * gap(whole, wanted)))


def in_single(model: nn.Module) -> nn.Module:
    """The model, or a copy in single precision of one in half precision."""
    half = any(each.dtype in _HALF for each in (*model.parameters(), *model.buffers()))
    return copy.deepcopy(model).float() if half else model


def _in_single(example: Example) -> Example:
    def single(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value

    return Example(pytree.tree_map(single, example.args), pytree.tree_map(single, example.kwargs))


def _varied(example: Example) -> Iterator[Example]:
    """The example with one of its tensors that are the same all over made to vary, for each of them."""
    leaves, form = pytree.tree_flatten((example.args, example.kwargs))
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.numel() > 1 and bool((leaf == leaf.flatten()[0]).all()):
            new = _varying(leaf)
            if new is not None:
                args, kwargs = pytree.tree_unflatten([*leaves[:at], new, *leaves[at + 1 :]], form)
                yield Example(args, kwargs)


def _varying(leaf: Tensor) -> Tensor | None:
    """Another tensor of the same shape and kind; None where nothing is safe to try."""
    if leaf.is_floating_point():
        return torch.randn(leaf.shape, generator=torch.Generator().manual_seed(0)).to(leaf)
    if leaf.is_complex() or leaf.device.type != "cpu":  # a wrong index ends a process on other devices
        return None
    return (torch.arange(leaf.numel()) % (2 if leaf.dtype is torch.bool else 4)).reshape(leaf.shape).to(leaf.dtype)
