"""Integer products as torch operators: `torch.ops.prunus.integer_linear` (with a span) and `integer_conv2d`.

Gradients pass through the rounding as if it were not there, to the inputs and the bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from prunus.sparse import _ops
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._integer import Span, check_integer, integer_conv2d, integer_linear
from prunus.sparse._packed import Packed, kernels

_SIZES = 16  # sizes of image for which a convolution stays ready
_LAST = "last"  # the one that ran last stands apart: to look it up by all it depends on takes as long as a small layer


def run_linear(packed: Packed, x: Tensor, bias: Tensor | None, relu: bool, span: Span) -> Tensor:
    """As `_ops.run_linear` with INTEGER, over one span for all tokens."""
    x = x.resolve_neg() if x.is_neg() else x
    layer, threads = packed.layer, torch.get_num_threads()
    if layer is not None:
        out = layer.linear_on(x, bias, relu, threads, _ops.INTEGER, *span)
        if out is not None:
            return cast("Tensor", out)
    _ops.check_linear(packed, x, bias)
    if layer is None:
        return integer_linear(packed, x, bias, relu, span)
    flat = x.reshape(-1 if packed.cols else x.shape[:-1].numel(), packed.cols).contiguous()
    out = x.new_empty(flat.shape[0], packed.rows)
    added = 0 if bias is None else bias.data_ptr()
    addresses = (flat.data_ptr(), packed.cols, flat.shape[0], out.data_ptr(), added)
    layer.linear(*addresses, relu, threads, _ops.INTEGER, *span)
    return out.reshape(*x.shape[:-1], packed.rows)


def run_conv2d(
    packed: Packed,
    geometry: ConvGeometry,
    x: Tensor,
    bias: Tensor | None = None,
    other: Tensor | None = None,
    relu: bool = False,
    span: Span | None = None,
) -> Tensor:
    """act(conv(x) + bias + other) with integer products, float32 outside. Without a span, over each image's range."""
    x = x.resolve_neg() if x.is_neg() else x
    other = other.resolve_neg() if other is not None and other.is_neg() else other
    threads = torch.get_num_threads()
    last = packed.programs.get(_LAST)
    if last is not None and last[0] is geometry and last[1] == _kind(bias, other, relu, span):
        out = last[2].run_on(x, other, threads)  # looks at the sizes itself
        if out is not None:
            return cast("Tensor", out)
    if packed.layer is not None and x.dim() == 4 and x.shape[1] == geometry.inputs:
        program = _program(packed, geometry, x, bias, other, relu, span)
        packed.programs[_LAST] = (geometry, _kind(bias, other, relu, span), program)
        out = program.run_on(x, other, threads)
        if out is not None:
            return cast("Tensor", out)
    shape = _ops.check_conv(packed, geometry, x, bias, other)
    if packed.layer is None:
        return integer_conv2d(packed, geometry, x, bias, other, relu, span)
    inputs = [x.contiguous()] if other is None else [x.contiguous(), other.contiguous()]
    out = x.new_empty(*shape)
    addresses = [tensor.data_ptr() for tensor in (*inputs, out)]
    _program(packed, geometry, x, bias, other, relu, span).run(x.shape[0], addresses, threads)
    return out


def _kind(bias: Tensor | None, other: Tensor | None, relu: bool, span: Span | None) -> tuple[Any, ...]:
    """What a program depends on beside its geometry and the size of the images."""
    if bias is None:
        return (0, other is None, relu, span, kernels().level())
    plain = (bias.data_ptr(), bias.numel(), bias.is_contiguous(), bias.dtype)  # another may stand at the same place
    return (plain, other is None, relu, span, kernels().level())


def _program(
    packed: Packed,
    geometry: ConvGeometry,
    x: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    relu: bool,
    span: Span | None,
) -> Any:
    """The convolution, ready for images of one size."""
    programs, added = packed.programs, 0 if bias is None else bias.data_ptr()
    key = (x.shape[2], x.shape[3], geometry, *_kind(bias, other, relu, span))
    found = programs.get(key)
    if found is not None:
        return found
    _ops.check_image(geometry, x)
    if bias is not None:
        _ops.check_bias(packed, bias)
    if len(programs) >= _SIZES:
        programs.clear()
    size = (geometry.inputs, int(x.shape[2]), int(x.shape[3]))
    program = kernels().IntegerProgram()
    program.input(*size)
    if other is not None:
        program.input(geometry.outputs, *geometry.output(size[1], size[2]))
    place = -1 if other is None else 1
    add_conv(program, packed, geometry, size, added, relu, span, 0, place)
    program.finish([1 if other is None else 2])
    programs[key] = program
    return program


def add_conv(
    program: Any,
    packed: Packed,
    geometry: ConvGeometry,
    size: Sequence[int],
    bias: int,
    relu: bool,
    span: Span | None,
    source: int,
    other: int,
    cap: float = math.inf,
) -> None:
    """Add a convolution of the value numbered `source`, of this size, to a native program.

    `cap` is the most that its ReLU lets through.
    """
    check_integer(packed)
    low, high = (0.0, 0.0) if span is None else span
    numbers = geometry.native.data_ptr()
    program.conv(packed.integer_weight, numbers, *size, bias, relu, cap, span is not None, low, high, source, other)


def _span(numbers: list[float]) -> Span | None:
    return (numbers[0], numbers[1]) if numbers else None


def integer_linear_op(
    x: Tensor, bias: Tensor | None, tensors: list[Tensor], rows: int, cols: int, bank: int, relu: bool, low: float,
    high: float,
) -> Tensor:  # fmt: skip
    """`tensors` as in `sparse_linear`; inputs are quantised over [low, high]."""
    packed = _ops.packed_of(rows, cols, bank, tensors)
    check_integer(packed)
    return run_linear(packed, x, bias, relu, (low, high))


def integer_conv2d_op(
    x: Tensor, bias: Tensor | None, other: Tensor | None, tensors: list[Tensor], rows: int, cols: int, bank: int,
    relu: bool, geometry: list[int], span: list[float],
) -> Tensor:  # fmt: skip
    """As `sparse_conv2d`, with integer products; `span` is empty (each image's own range) or holds two numbers."""
    packed = _ops.packed_of(rows, cols, bank, tensors)
    check_integer(packed)
    return run_conv2d(packed, _ops.geometry_of(packed, geometry), x, bias, other, relu, _span(span))


def _integer_conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _ops.conv_setup(ctx, inputs[:9], output)
    ctx.span = inputs[9]


def _integer_conv_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (*_ops.conv_backward(ctx, grad), None if ctx.span else [])  # torch takes an empty list for one of tensors


_ops.register(
    "integer_linear",
    f"Tensor x, Tensor? bias, {_ops.WEIGHT}, bool relu, float low, float high",
    integer_linear_op,
    _ops.linear_fake,
    lambda ctx, grad: (*_ops.linear_backward(ctx, grad), None),
    lambda ctx, inputs, output: _ops.linear_setup(ctx, inputs[:8], output),
)
_ops.register(
    "integer_conv2d",
    f"Tensor x, Tensor? bias, Tensor? other, {_ops.WEIGHT}, bool relu, SymInt[] geometry, float[] span",
    integer_conv2d_op,
    _ops.conv_fake,
    _integer_conv_backward,
    _integer_conv_setup,
)
