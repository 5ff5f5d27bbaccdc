"""What a layer's weight is multiplied with while a model runs.

A `Recorder` sees every matrix product and convolution that torch carries out, recognises weights by their storage, and
hands over the inputs as the weight's rows read them: one line for each place at which the rows are applied (a sample, a
token, a pixel of the output), its columns tap by tap with channels fastest. It looks below torch's functions, so
it does not matter who makes the call: attention that passes slices of one projection, recurrent layers step by step,
subclasses and functional calls are all seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from prunus._torch import TorchDispatchMode, pytree
from prunus.layers import CONV1D, Weight

_aten = torch.ops.aten
_PRODUCTS = {  # where the inputs and the weight stand
    _aten.addmm.default: (1, 2), _aten.mm.default: (0, 1),
    _aten.baddbmm.default: (1, 2), _aten.bmm.default: (0, 1),
}  # fmt: skip
_PLAIN = (_aten.mm.default, _aten.bmm.default)
_SUMS = (_aten.add.Tensor, _aten.add_.Tensor)
_NORMS = (_aten.native_batch_norm.default, _aten._native_batch_norm_legit_no_training.default)


Keep = tuple[Tensor, ...]
"""Masks (samples, positions) of sequences, each for the activations of its length."""


def storage(tensor: Tensor) -> int:
    """The address of the memory behind a tensor, the same for all its views."""
    return tensor.untyped_storage().data_ptr()


def place(tensor: Tensor) -> tuple[StorageWeakRef, int]:
    """Where a tensor begins. Unlike an address it is never given to another tensor while somebody holds it, and it does
    not keep the memory itself."""
    return StorageWeakRef(tensor.untyped_storage()), int(tensor.storage_offset())


@dataclass(frozen=True, eq=False)
class Use:
    """One product of inputs with a weight, or with some of its rows.

    `columns()` makes the inputs (places, groups, columns); two uses with the same `key` have the same columns. `rows`
    are the first and last row used, `output` the result, with the rows on dimension 1, `version` the state it was in,
    and `plain` says that nothing was added to the product.
    """

    weight: Weight
    key: tuple[Any, ...]
    rows: tuple[int, int]
    columns: Callable[[], Tensor]
    output: Tensor
    version: int = 0
    plain: bool = False


class Stop(Exception):
    """Ends a forward pass once everything wanted was seen."""


_looking = [True]


@contextmanager
def unseen() -> Iterator[None]:
    """Inside, recorders see nothing: for copies that are made beside what the model computes."""
    before, _looking[0] = _looking[0], False
    try:
        yield
    finally:
        _looking[0] = before


@contextmanager
def plain_layers(model: nn.Module) -> Iterator[None]:
    """Inside, attention and recurrent layers are carried out product by product, so that a `Recorder` sees them."""
    fast, fused = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    torch.backends.mha.set_fastpath_enabled(False)
    if recurrent:  # convolutions would be slow without it
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.backends.mkldnn.enabled = fused


class Recorder(TorchDispatchMode):
    """Calls `see` with every `Use` of the given weights, and `normed` with the input and the mean of every batch norm.

    `summed` is called with both tensors of a sum of two tensors of one shape, as residual connections make them: first
    one that nothing else was computed from (inside an activation such as x + x^3 it would be the other way).
    `keep`, from `Batch.real_positions`, leaves out padded positions of sequences. Where `blank` says so, a product of
    the given weights is not computed: what it gives has the right shape and no meaning.
    """

    def __init__(
        self,
        weights: Iterable[Weight],
        see: Callable[[Use], None],
        normed: Callable[[Tensor, Tensor], None] | None = None,
        keep: Keep = (),
        summed: Callable[[Tensor, Tensor], None] | None = None,
        blank: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.weights: dict[int, list[Weight]] = {}
        for weight in weights:
            self.weights.setdefault(storage(weight.parameter), []).append(weight)
        self.see, self.normed, self.keep, self.summed, self.blank = see, normed, keep, summed, blank
        self.read: set[int] = set()  # storages that something was computed from

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not _looking[0]:
            return func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            inputs, matrix = (args[place] for place in _PRODUCTS[func])
            matrix = _one(matrix)
            weight = self._weight(matrix) if matrix.dim() == 2 else None
            if weight is not None and self.blank():
                output = inputs.new_empty(*inputs.shape[:-1], matrix.shape[1])
            else:
                output = func(*args, **(kwargs or {}))
            self.read.add(storage(inputs))
            self.read.discard(storage(output))
            if weight is not None:
                self.see(replace(_product(weight, inputs, matrix, output, self.keep), plain=func in _PLAIN))
            return output
        if func in _SUMS and self.summed is not None and not kwargs and _alike(*args[:2]):
            for own, other in ((args[0], args[1]), (args[1], args[0])):
                if storage(own) not in self.read:
                    self.summed(own, other)  # before a sum in place changes one of them
        output = func(*args, **(kwargs or {}))
        if func is _aten.convolution.default:
            weight = self._weight(args[1])
            if weight is not None:
                self.see(_convolution(weight, output, *args))
        elif func in _NORMS and self.normed is not None and isinstance(args[3], Tensor):
            self.normed(args[0], args[3])
        if self.summed is not None:
            made, given = _storages(output), _storages((args, kwargs))
            self.read |= given - made  # a view computes nothing
            self.read -= made - given  # memory may be used again
        return output

    def _weight(self, tensor: Tensor) -> Weight | None:
        for weight in self.weights.get(storage(tensor), ()):
            begin = weight.parameter.storage_offset()
            if begin <= tensor.storage_offset() < begin + weight.numel:
                return weight
        return None


def _alike(first: Tensor, second: Any) -> bool:
    """Are these two tensors of one shape in plain memory?"""
    same = isinstance(second, Tensor) and first.shape == second.shape
    return same and first.layout is second.layout is torch.strided


def _storages(value: Any) -> set[int]:
    """The memory behind all tensors inside; sparse ones have none of this kind."""
    leaves = pytree.tree_leaves(value)
    return {storage(each) for each in leaves if isinstance(each, Tensor) and each.layout is torch.strided}


def _one(matrix: Tensor) -> Tensor:
    """A batch that repeats one matrix as that matrix.

    So torch multiplies inputs that do not lie in one piece, unless the weight needs a gradient.
    """
    return matrix[0] if matrix.dim() == 3 and (len(matrix) == 1 or (len(matrix) and not matrix.stride(0))) else matrix


def _product(weight: Weight, inputs: Tensor, matrix: Tensor, output: Tensor, keep: Keep) -> Use:
    """Inputs (..., columns) times a matrix (columns, rows), which is the weight transposed, or some rows of it."""
    offset = matrix.storage_offset() - weight.parameter.storage_offset()
    first = offset if weight.kind == CONV1D else offset // max(1, matrix.shape[0])
    key = (*place(inputs), inputs._version, tuple(inputs.shape), inputs.stride())
    rows = (int(first), int(first + matrix.shape[1]))
    return Use(weight, key, rows, lambda: _lines(inputs, keep), output.flatten(0, -2), output._version)


def added_to(use: Use, first: Tensor, second: Tensor) -> Tensor | None:
    """What a sum adds to the output of `use` (places, rows), if `first` is that output as the weight left it."""
    made = use.output
    if made.dim() != 2 or not made.is_contiguous():
        return None
    here = first.data_ptr() == made.data_ptr() and first.is_contiguous() and first._version == use.version
    if here and first.numel() == made.numel() and first.shape[-1] == made.shape[1]:
        return second.reshape(made.shape)
    return None


def _convolution(
    weight: Weight, output: Tensor, inputs: Tensor, kernel: Tensor, bias: Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> Use:  # fmt: skip
    taps, size = tuple(kernel.shape[2:]), tuple(output.shape[2:])
    geometry = (taps, groups, tuple(stride), tuple(padding), tuple(dilation))
    key = (*place(inputs), inputs._version, tuple(inputs.shape), inputs.stride(), transposed, size, *geometry)
    if transposed:
        rows, columns = kernel.shape[1] * groups, lambda: _spread_patches(inputs, *geometry, size)
    else:
        rows, columns = kernel.shape[0], lambda: _patches(inputs, *geometry)
    return Use(weight, key, (0, rows), columns, output, output._version)


def _lines(inputs: Tensor, keep: Keep) -> Tensor:
    """Inputs of a linear layer as (places, 1, columns), without padded positions."""
    return real(inputs.reshape(-1, inputs.shape[-1]), keep).unsqueeze(1)


def real(lines: Tensor, keep: Keep) -> Tensor:
    """Lines (places, columns) without those of padded positions."""
    fitting = next((mask for mask in keep if mask.numel() == len(lines)), None)
    return lines if fitting is None else lines[fitting.reshape(-1)]


def _patches(
    inputs: Tensor,
    kernel: tuple[int, ...],
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """What a convolution lays its rows on: (places, groups, taps x channels)."""
    padded = F.pad(inputs, [side for side in reversed(padding) for _ in range(2)])
    return _windows(padded, kernel, groups, stride, dilation)


def _windows(
    padded: Tensor, kernel: tuple[int, ...], groups: int, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    dims, view = len(kernel), padded
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation)):
        view = view.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
    view = view.unflatten(1, (groups, -1))  # (samples, groups, channels, *places, *taps)
    places = range(3, 3 + dims)
    return cast(
        "Tensor",
        view.permute(0, *places, 1, *range(3 + dims, 3 + 2 * dims), 2).reshape(
            -1, groups, math.prod(kernel) * view.shape[2]
        ),
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
    spread = inputs.new_zeros(
        *inputs.shape[:2], *((side - 1) * step + 1 for side, step in zip(inputs.shape[2:], stride))
    )
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in stride))] = inputs
    sides: list[int] = []
    for side, tap, pad, gap, out in zip(spread.shape[2:], kernel, padding, dilation, size):
        left = gap * (tap - 1) - pad
        sides = [left, out + gap * (tap - 1) - side - left, *sides]
    lines = _windows(F.pad(spread, sides), kernel, groups, (1,) * len(kernel), dilation)
    taps = lines.unflatten(-1, (math.prod(kernel), -1))
    return cast("Tensor", taps.flip(-2).flatten(-2))


def norms_of(model: nn.Module) -> dict[int, nn.Module]:
    """The batch norms of a model by the storage of their running mean."""
    return {storage(m.running_mean): m for m in model.modules() if is_batch_norm(m) and m.running_mean is not None}


def is_batch_norm(module: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Is this a batch norm of any dimension?"""
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
