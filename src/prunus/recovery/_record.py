"""What a layer's weight is multiplied with while a model runs.

A `Recorder` sees every call of torch's linear and convolution functions, recognises weights by their storage, and hands
over the inputs in the form in which the weight's rows read them: one line for each place the row is laid on, its columns
tap by tap with channels fastest. So it does not matter which module makes the call: attention that passes slices of one
projection, subclasses and functional calls are all seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus.layers import Weight

_LINEAR = ("input", "weight", "bias")
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_ADDMM = ("bias", "input", "weight")
_NORM = ("input", "weight", "bias", "running_mean", "running_var")

_CALLS: dict[Any, tuple[str, ...]] = {
    F.linear: _LINEAR,
    torch.addmm: _ADDMM,
    torch.batch_norm: _NORM,
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _CONVOLUTION),
    **dict.fromkeys((torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), _TRANSPOSED),
}


def storage(tensor: Tensor) -> int:
    """The address of the memory behind a tensor, the same for all its views."""
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, eq=False)
class Use:
    """One product of inputs with a weight, or with some of its rows.

    `columns()` makes the inputs (places, groups, columns); two uses with the same `key` have the same columns. `rows`
    are the first and last row used, `output` the result, with the rows on dimension `channel`.
    """

    weight: Weight
    key: tuple[Any, ...]
    rows: tuple[int, int]
    columns: Callable[[], Tensor]
    output: Tensor
    channel: int


class Stop(Exception):
    """Ends a forward pass once everything wanted was seen."""


class Recorder(TorchFunctionMode):
    """Calls `see` with every `Use` of the given weights, and `normed` with the input and the mean of every batch norm.

    `keep`, a boolean (samples, positions), leaves out padded positions of sequences.
    """

    def __init__(
        self,
        weights: Iterable[Weight],
        see: Callable[[Use], None],
        normed: Callable[[Tensor, Tensor], None] | None = None,
        keep: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.weights = {storage(weight.parameter): weight for weight in weights}
        self.see, self.normed, self.keep = see, normed, keep

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        names = _CALLS.get(func)
        if names is None:
            return output
        given = dict(zip(names, args)) | dict(kwargs or {})
        if names is _NORM:
            if self.normed is not None and given.get("running_mean") is not None:
                self.normed(given["input"], given["running_mean"])
            return output
        tensor = given.get("weight", given.get("mat2"))
        weight = self.weights.get(storage(tensor)) if isinstance(tensor, Tensor) else None
        if weight is not None:
            self.see(self._use(weight, names, given, tensor, output))
        return output

    def _use(self, weight: Weight, names: Any, given: dict[str, Any], tensor: Tensor, output: Tensor) -> Use:
        inputs = given.get("input", given.get("mat1"))
        key: tuple[Any, ...] = (inputs.data_ptr(), tuple(inputs.shape), inputs.stride())
        if names in (_LINEAR, _ADDMM):
            width = tensor.shape[1] if names is _LINEAR else tensor.shape[0]
            first = tensor.storage_offset() // max(1, width) if names is _LINEAR else 0
            count = tensor.shape[0] if names is _LINEAR else tensor.shape[1]
            keep = self.keep
            return Use(weight, key, (first, first + count), lambda: _lines(inputs, keep), output, output.dim() - 1)
        dims = tensor.dim() - 2
        geometry = {
            name: given[name] if isinstance(given.get(name), str) else _each(given.get(name, default), dims)
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        }
        groups = int(given.get("groups", 1))
        kernel = tuple(tensor.shape[2:])
        key += (names, kernel, groups, *geometry.values())
        make = _patches if names is _CONVOLUTION else _spread_patches
        extra = {} if names is _CONVOLUTION else {"size": tuple(output.shape[2 - (output.dim() == dims + 1) :])}
        rows = tensor.shape[0] if names is _CONVOLUTION else tensor.shape[1] * groups
        whole = inputs if inputs.dim() == dims + 2 else inputs.unsqueeze(0)
        return Use(
            weight, key, (0, rows), lambda: make(whole, kernel, groups, **geometry, **extra), output,
            output.dim() - dims - 1,
        )  # fmt: skip


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _lines(inputs: Tensor, keep: Tensor | None) -> Tensor:
    """Inputs of a linear layer as (places, 1, columns), without padded positions."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    if keep is not None and inputs.dim() in (2, 3) and math.prod(inputs.shape[:-1]) == keep.numel():
        flat = flat[keep.reshape(-1)]
    return flat.unsqueeze(1)


def _patches(
    inputs: Tensor,
    kernel: tuple[int, ...],
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
) -> Tensor:
    """What a convolution lays its rows on: (places, groups, taps x channels)."""
    if padding == "valid":
        padding = (0,) * len(kernel)
    if isinstance(padding, str):
        total = [gap * (size - 1) for gap, size in zip(dilation, kernel)]
        sides = [(every // 2, every - every // 2) for every in total]
    else:
        sides = [(side, side) for side in padding]
    padded = F.pad(inputs, [side for pair in reversed(sides) for side in pair])
    return _windows(padded, kernel, groups, stride, dilation)


def _windows(
    padded: Tensor, kernel: tuple[int, ...], groups: int, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    dims, view = len(kernel), padded
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation)):
        view = view.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
    view = view.unflatten(1, (groups, -1))  # (samples, groups, channels, *places, *taps)
    places = range(3, 3 + dims)
    return view.permute(0, *places, 1, *range(3 + dims, 3 + 2 * dims), 2).reshape(
        -1, groups, math.prod(kernel) * view.shape[2]
    )


def _spread_patches(
    inputs: Tensor,
    kernel: tuple[int, ...],
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    size: tuple[int, ...],
) -> Tensor:
    """The same for a transposed convolution: inputs spread out by the stride, taps in reverse."""
    spread = inputs.new_zeros(*inputs.shape[:2], *((side - 1) * step + 1 for side, step in zip(inputs.shape[2:], stride)))
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in stride))] = inputs
    sides: list[int] = []
    for side, tap, pad, gap, out in zip(spread.shape[2:], kernel, padding, dilation, size):
        left = gap * (tap - 1) - pad
        sides = [left, out + gap * (tap - 1) - side - left, *sides]
    lines = _windows(F.pad(spread, sides), kernel, groups, (1,) * len(kernel), dilation)
    taps = lines.unflatten(-1, (math.prod(kernel), -1))
    return taps.flip(-2).flatten(-2)


def norms_of(model: nn.Module) -> dict[int, nn.Module]:
    """The batch norms of a model by the storage of their running mean."""
    kinds = nn.modules.batchnorm._BatchNorm
    return {storage(m.running_mean): m for m in model.modules() if isinstance(m, kinds) and m.running_mean is not None}
