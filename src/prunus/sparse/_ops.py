"""The sparse products as torch operators: `torch.ops.prunus.sparse_linear` and `sparse_conv2d`.

Registered operators are what `torch.compile` and `torch.export` keep as one node. Gradients flow to the inputs and the
bias; the weights are frozen. Rows of the transpose are not balanced, so the backward pass goes through the dense
matrix.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input

from prunus.errors import BadInput
from prunus.sparse._arena import Arena
from prunus.sparse._geometry import Geometry
from prunus.sparse._packed import Packed, kernels

AUTOMATIC, PERMUTE, TILE = 0, 1, 2


def run_linear(
    packed: Packed, x: Tensor, bias: Tensor | None = None, relu: bool = False, choice: int = AUTOMATIC
) -> Tensor:
    """x (..., cols) times the transposed matrix, plus bias, float32: (..., rows). No gradients."""
    check_input(packed, x)
    layer = packed.layer
    if layer is None:
        out = functional.linear(x, packed.dense(), bias)
        return out.relu_() if relu else out
    flat = x if x.dim() == 2 else x.reshape(-1, packed.cols)
    if flat.stride(-1) != 1 or (flat.shape[0] > 1 and flat.stride(0) < packed.cols):
        flat = flat.contiguous()
    batch = flat.shape[0]
    out = torch.empty(batch, packed.rows)
    layer.linear(
        flat.data_ptr(),
        flat.stride(0),
        batch,
        out.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if packed.scale is None else packed.scale.data_ptr(),
        relu,
        torch.get_num_threads(),
        choice,
    )
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], packed.rows)


def check_input(packed: Packed, x: Tensor) -> None:
    if x.dim() == 0 or x.shape[-1] != packed.cols:
        raise BadInput(f"The layer takes inputs of width {packed.cols}, but got shape {tuple(x.shape)}.")
    if x.dtype != torch.float32 or not x.is_cpu:
        raise BadInput(f"Sparse layers run float32 on the CPU, but the input is {x.dtype} on {x.device}.")


def _packed(rows: int, cols: int, bank: int, tensors: list[Tensor]) -> Packed:
    return Packed(rows, cols, bank, *tensors)


@torch.library.custom_op("prunus::sparse_linear", mutates_args=())
def sparse_linear(
    x: Tensor, bias: Tensor | None, tensors: list[Tensor], rows: int, cols: int, bank: int, relu: bool
) -> Tensor:
    """`tensors` are values, index, schedule, starts and, for int8, scale."""
    return run_linear(_packed(rows, cols, bank, tensors), x, bias, relu)


@sparse_linear.register_fake
def _(x: Tensor, bias: Tensor | None, tensors: list[Tensor], rows: int, cols: int, bank: int, relu: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, tensors, rows, cols, bank, relu = inputs
    ctx.shape = (rows, cols, bank)
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *([output] if relu else []))


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    if len(saved) > ctx.count:
        grad = grad * (saved[-1] > 0)
    wanted = ctx.needs_input_grad
    grad_x = None
    if wanted[0]:
        grad_x = torch.ops.prunus.sparse_linear_grad(grad.contiguous(), saved[: ctx.count], *ctx.shape)
    grad_bias = grad.reshape(-1, grad.shape[-1]).sum(0) if wanted[1] else None
    return grad_x, grad_bias, [None] * ctx.count, None, None, None, None


sparse_linear.register_autograd(_linear_backward, setup_context=_linear_setup)


@torch.library.custom_op("prunus::sparse_linear_grad", mutates_args=())
def sparse_linear_grad(grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int) -> Tensor:
    """Gradient with respect to the input of `sparse_linear`: grad (..., rows) times the matrix."""
    return grad @ _packed(rows, cols, bank, tensors).dense()


@sparse_linear_grad.register_fake
def _(grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], cols))


# ------------------------------------------------------------------------------------------------------- convolutions


_HALO = "_prunus_halo"  # on a tensor that a sparse convolution wrote with zeros around every image


@functools.cache
def _contiguous() -> Any:
    return kernels().Layout(0, 0, 0)


@functools.lru_cache(maxsize=4096)
def _padded(halo: int, height: int, width: int) -> Any:
    """The layout of images with `halo` zeros around them; rows share theirs, and the end may be read past a little."""
    pitch = width + halo
    plane = -(-((height + 2 * halo) * pitch + halo + 32) // 16) * 16
    return kernels().Layout(halo, pitch, plane)


def _image(x: Tensor, layout: Any) -> tuple[Tensor, int, Any]:
    """A tensor to hold on to, the address where its images begin, and their layout."""
    if layout is not None:
        return x, x.data_ptr() - 4 * layout.pad * (layout.pitch + 1), layout
    x = x.contiguous()
    return x, x.data_ptr(), _contiguous()


def run_conv2d(
    packed: Packed,
    geometry: Geometry,
    x: Tensor,
    bias: Tensor | None = None,
    other: Tensor | None = None,
    relu: bool = False,
    where: tuple[int, Arena | None, int] = (0, None, 0),
) -> Tensor:
    """act(conv(x) + bias + other), x (n, inputs, h, w) -> (n, outputs, h', w'), float32. No gradients.

    `where` is (halo, arena, place): with a halo the result is a view into memory with that many zeros around every
    image, so that the next sparse convolution can read it in place; with an arena this memory is used again later.
    """
    halo, arena, place = where
    height, width = check_image(geometry, x)
    batch, channels, *pixels = x.shape
    outputs = geometry.outputs
    if other is not None and (other.shape != (batch, outputs, height, width) or other.dtype != torch.float32):
        wanted = (batch, outputs, height, width)
        raise BadInput(f"What is added must be float32 of shape {wanted}, not {other.dtype} {tuple(other.shape)}.")
    layer = packed.layer
    if layer is None:
        return _dense_conv2d(packed, geometry, x, bias, other, relu)
    known = getattr(x, _HALO, None)
    readable = known is not None and known.pad == geometry.in_place and width <= known.pitch
    x, source, layout = _image(x, known if readable and channels % packed.bank in (0, channels) else None)
    added, added_layout = 0, layout
    if other is not None:
        other, added, added_layout = _image(other, getattr(other, _HALO, None))
    out, destination, target = _result((batch, outputs, height, width), halo, arena, place)
    layer.conv(
        source,
        destination,
        0 if bias is None else bias.data_ptr(),
        0 if packed.scale is None else packed.scale.data_ptr(),
        added,
        relu,
        torch.get_num_threads(),
        batch,
        channels,
        *pixels,
        geometry.sizes.data_ptr(),
        layout,
        target,
        added_layout,
    )
    return out


def _result(shape: tuple[int, ...], halo: int, arena: Arena | None, place: int) -> tuple[Tensor, int, Any]:
    """A tensor for the result, the address where its images begin, and their layout."""
    if not halo:
        out = torch.empty(shape)
        return out, out.data_ptr(), _contiguous()
    if arena is not None:
        known = arena.views(place).get((shape, halo))
        if known is not None:
            return known
    batch, outputs, height, width = shape
    target = _padded(halo, height, width)
    size = batch * outputs * target.plane
    buffer = torch.empty(size) if arena is None else arena.take(place, size)
    strides = (outputs * target.plane, target.plane, target.pitch, 1)
    out = buffer.as_strided(shape, strides, halo * (target.pitch + 1))
    setattr(out, _HALO, target)
    found = (out, buffer.data_ptr(), target)
    if arena is not None:
        views = arena.views(place)
        if len(views) > 64:  # images of ever new sizes
            views.clear()
        views[shape, halo] = found
    return found


def _dense_conv2d(
    packed: Packed, geometry: Geometry, x: Tensor, bias: Tensor | None, other: Tensor | None, relu: bool
) -> Tensor:
    weight = geometry.weight(packed.dense(), packed.bank)
    out = functional.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation)
    out = out if other is None else out.add_(other)
    return out.relu_() if relu else out


def check_image(geometry: Geometry, x: Tensor) -> tuple[int, int]:
    """Height and width of the output, or one sentence that says why there is none."""
    shape = x.shape
    if len(shape) != 4 or shape[1] != geometry.inputs:
        raise BadInput(f"The layer takes images (n, {geometry.inputs}, h, w), but got shape {tuple(x.shape)}.")
    if x.dtype != torch.float32 or not x.is_cpu:
        raise BadInput(f"Sparse layers run float32 on the CPU, but the input is {x.dtype} on {x.device}.")
    height, width = geometry.output(shape[2], shape[3])
    if height < 1 or width < 1:
        raise BadInput(f"Images of {x.shape[2]} x {x.shape[3]} pixels are smaller than the kernel {geometry.kernel}.")
    return height, width


@torch.library.custom_op("prunus::sparse_conv2d", mutates_args=())
def sparse_conv2d(
    x: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    tensors: list[Tensor],
    rows: int,
    cols: int,
    bank: int,
    relu: bool,
    geometry: list[int],
) -> Tensor:
    """`tensors` as in `sparse_linear`; `geometry` as in `Geometry.numbers`."""
    packed = _packed(rows, cols, bank, tensors)
    return run_conv2d(packed, Geometry.from_numbers(geometry), x, bias, other, relu)


@sparse_conv2d.register_fake
def _(
    x: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    tensors: list[Tensor],
    rows: int,
    cols: int,
    bank: int,
    relu: bool,
    geometry: list[int],
) -> Tensor:
    height, width = Geometry.from_numbers(geometry).output(x.shape[2], x.shape[3])
    return x.new_empty((x.shape[0], rows, height, width))


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, _, tensors, rows, cols, bank, relu, geometry = inputs
    ctx.shape = (rows, cols, bank)
    ctx.geometry, ctx.count, ctx.size = geometry, len(tensors), x.shape
    ctx.save_for_backward(*tensors, *([output] if relu else []))


def _conv_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    if len(saved) > ctx.count:
        grad = grad * (saved[-1] > 0)
    wanted = ctx.needs_input_grad
    grad_x = None
    if wanted[0]:
        arguments = (grad.contiguous(), saved[: ctx.count], *ctx.shape, ctx.geometry, ctx.size[2], ctx.size[3])
        grad_x = torch.ops.prunus.sparse_conv2d_grad(*arguments)
    grad_bias = grad.sum((0, 2, 3)) if wanted[1] else None
    grad_other = grad if wanted[2] else None
    return grad_x, grad_bias, grad_other, [None] * ctx.count, None, None, None, None, None


sparse_conv2d.register_autograd(_conv_backward, setup_context=_conv_setup)


@torch.library.custom_op("prunus::sparse_conv2d_grad", mutates_args=())
def sparse_conv2d_grad(
    grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int, geometry: list[int], height: int, width: int
) -> Tensor:
    """Gradient with respect to the input of `sparse_conv2d`."""
    g = Geometry.from_numbers(geometry)
    weight = g.weight(_packed(rows, cols, bank, tensors).dense(), bank)
    size = (grad.shape[0], g.inputs, height, width)
    return conv2d_input(size, weight, grad, g.stride, g.padding, g.dilation)


@sparse_conv2d_grad.register_fake
def _(
    grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int, geometry: list[int], height: int, width: int
) -> Tensor:
    return grad.new_empty((grad.shape[0], geometry[0], height, width))
