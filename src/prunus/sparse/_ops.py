"""The sparse products as torch operators: `torch.ops.prunus.sparse_linear` and `sparse_conv2d`.

Registered operators are what `torch.compile` and `torch.export` keep as one node. Gradients flow to the inputs and the
bias; the weights are frozen. Rows of the transpose are not balanced, so the backward pass goes through the dense
matrix.

The two products are registered with `torch.library.Library` and not as a `custom_op`, whose wrappers cost some ten
microseconds for every call; and where no gradient is needed and no dispatch mode is active, a call goes from the
autograd key straight to the kernel (`_straight`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input

from prunus._torch import dispatch_modes, transformed
from prunus.errors import BadInput
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._integer import MOST_IN_ROW, check_integer, integer_linear
from prunus.sparse._packed import Packed

AUTOMATIC, PERMUTE, TILE, INTEGER = 0, 1, 2, 3


def run_linear(
    packed: Packed, x: Tensor, bias: Tensor | None = None, relu: bool = False, choice: int = AUTOMATIC
) -> Tensor:
    """x (..., cols) times the transposed matrix, plus bias, float32: (..., rows). No gradients.

    With INTEGER the inputs are quantised too, and the products are exact integers (`_integer`).
    """
    if x.is_neg():
        x = x.resolve_neg()
    layer, threads = packed.layer, torch.get_num_threads()
    if layer is not None and choice in (AUTOMATIC, INTEGER):
        out = layer.linear_on(x, bias, relu, threads, choice)  # mostly; what follows costs a few microseconds more
        if out is not None:
            return cast("Tensor", out)
    check_linear(packed, x, bias)
    if layer is None:
        return integer_linear(packed, x, bias, relu) if choice == INTEGER else dense_linear(packed, x, bias, relu)
    flat = x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), packed.cols)
    if flat.stride(-1) != 1 or (flat.shape[0] > 1 and flat.stride(0) < packed.cols):
        flat = flat.contiguous()
    batch = flat.shape[0]
    out = x.new_empty(batch, packed.rows)
    added = 0 if bias is None else bias.data_ptr()
    layer.linear(flat.data_ptr(), flat.stride(0), batch, out.data_ptr(), added, relu, threads, choice)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], packed.rows)


def dense_linear(packed: Packed, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """The same through the dense matrix: any transform of torch, no speed."""
    out = functional.linear(x, packed.dense(), bias)
    return out.relu() if relu else out


def check_bias(packed: Packed, bias: Tensor) -> None:
    if bias.numel() != packed.rows or bias.dtype != torch.float32 or not bias.is_contiguous() or not bias.is_cpu:
        found = f"{bias.dtype} {tuple(bias.shape)} on {bias.device}"
        raise BadInput(
            f"The layer wants a bias of {packed.rows} numbers in one piece, float32 on the CPU, but it is {found}."
        )


def check_linear(packed: Packed, x: Tensor, bias: Tensor | None) -> None:
    """Refuse what the kernel would read without looking."""
    if bias is not None:
        check_bias(packed, bias)
    if x.dim() == 0 or x.shape[-1] != packed.cols:
        raise BadInput(f"The layer takes inputs of width {packed.cols}, but got shape {tuple(x.shape)}.")
    if x.dtype != torch.float32 or not x.is_cpu:
        raise BadInput(f"Sparse layers run float32 on the CPU, but the input is {x.dtype} on {x.device}.")


class _Known:
    """The native view of tensors that were checked; a copy of a tensor starts without it.

    It holds addresses, and no tensors but the one it is written on: nothing stays in memory for it.
    """

    __slots__ = ("integer", "layer", "others", "programs", "size", "stamp")

    def __init__(self, packed: Packed, tensors: list[Tensor]) -> None:
        self.layer, self.programs = packed.layer, packed.programs
        self.integer = packed.values.dtype == torch.int8 and packed.cols <= MOST_IN_ROW
        self.size = (packed.rows, packed.cols, packed.bank)
        self.others = [weakref.ref(tensor) for tensor in tensors[1:]]
        self.stamp = [(tensor.data_ptr(), tensor._version, tensor.shape) for tensor in tensors]

    def of(self, rows: int, cols: int, bank: int, tensors: list[Tensor]) -> bool:
        """Whether these are the tensors it was made of, and nothing in them has changed."""
        if self.size != (rows, cols, bank) or len(tensors) != len(self.stamp):
            return False
        for ref, tensor in zip(self.others, tensors[1:]):
            if ref() is not tensor:
                return False
        for (address, version, shape), tensor in zip(self.stamp, tensors):
            if tensor.data_ptr() != address or tensor._version != version or tensor.shape != shape:
                return False
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(None), ()


def packed_of(rows: int, cols: int, bank: int, tensors: list[Tensor]) -> Packed:
    """The weight that an operator was given. What was checked before, and not changed since, is not checked again."""
    if len(tensors) not in (4, 5):
        raise BadInput(f"A packed weight has four tensors, or five with a scale, not {len(tensors)}.")
    packed = Packed(rows, cols, bank, *tensors)
    if any(tensor.is_inference() for tensor in tensors):  # they do not count their changes
        return packed
    known = getattr(tensors[0], "_prunus_view", None)
    if known is not None and known.of(rows, cols, bank, tensors):
        packed.__dict__["layer"], packed.__dict__["programs"] = known.layer, known.programs
    elif packed.layer is not None:
        tensors[0]._prunus_view = _Known(packed, tensors)  # type: ignore[attr-defined]
    return packed


def geometry_of(packed: Packed, numbers: list[int]) -> ConvGeometry:
    """The sizes that an operator was given, where they belong to its weight."""
    geometry = ConvGeometry.from_numbers(numbers) if len(numbers) == 10 else None
    if geometry is None or geometry.problem():
        raise BadInput(f"A convolution cannot have the sizes {numbers}.")
    if (packed.rows, packed.cols) != (geometry.outputs, geometry.columns(packed.bank)):
        raise BadInput(f"A packed matrix of {packed.rows} x {packed.cols} does not fit the convolution {numbers}.")
    return geometry


_LIBRARY = torch.library.Library("prunus", "FRAGMENT")
WEIGHT = "Tensor[] tensors, SymInt rows, SymInt cols, SymInt bank"


def register(
    name: str,
    arguments: str,
    kernel: Callable[..., Tensor],
    fake: Callable[..., Tensor],
    backward: Callable[..., tuple[Any, ...]],
    setup: Callable[..., None],
) -> None:
    """Define an operator with one result, its kernel for the CPU, its shapes and its gradients."""
    _LIBRARY.define(f"{name}({arguments}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"prunus::{name}", fake, lib=_LIBRARY)
    torch.library.register_autograd(f"prunus::{name}", backward, setup_context=setup, lib=_LIBRARY)
    if hasattr(torch.library, "get_kernel"):
        _LIBRARY.impl(name, _straight(name, kernel), "AutogradCPU", with_keyset=True)


def _straight(name: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operator's autograd kernel: calls the CPU kernel directly where torch's own would only pass the call on."""
    general = torch.library.get_kernel(f"prunus::{name}", "AutogradCPU")

    def call(keys: Any, x: Tensor, *rest: Any) -> Tensor:
        if type(x) is Tensor and dispatch_modes() == 0 and not transformed():
            wanted = torch.is_grad_enabled() and any(isinstance(y, Tensor) and y.requires_grad for y in (x, *rest))
            if not wanted:
                return kernel(x, *rest)
        return cast("Tensor", general.call_boxed(keys, x, *rest))

    return call


def sparse_linear(
    x: Tensor,
    bias: Tensor | None,
    tensors: list[Tensor],
    rows: int,
    cols: int,
    bank: int,
    relu: bool,
    integer: bool,
) -> Tensor:
    """`tensors` are values, index, schedule, starts and, for int8, scale. With `integer` inputs are quantised too."""
    known = getattr(tensors[0], "_prunus_view", None) if tensors else None
    if known is not None and known.of(rows, cols, bank, tensors) and (not integer or known.integer) and not x.is_neg():
        out = known.layer.linear_on(x, bias, relu, torch.get_num_threads(), INTEGER if integer else AUTOMATIC)
        if out is not None:
            return cast("Tensor", out)
    packed = packed_of(rows, cols, bank, tensors)
    if integer:
        check_integer(packed)
    return run_linear(packed, x, bias, relu, INTEGER if integer else AUTOMATIC)


def linear_fake(x: Tensor, bias: Tensor | None, tensors: list[Tensor], rows: int, *rest: Any) -> Tensor:
    """The shape of a product, for tracing."""
    return x.new_empty((*x.shape[:-1], rows))


def linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, tensors, rows, cols, bank, relu, _ = inputs
    ctx.shape = (rows, cols, bank)
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *([output] if relu else []))


def _before_relu(ctx: Any, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The gradient before the activation, and the packed weight's tensors; the output is saved only under a relu."""
    saved = list(ctx.saved_tensors)
    return (grad * (saved[-1] > 0) if len(saved) > ctx.count else grad), saved[: ctx.count]


def linear_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad, tensors = _before_relu(ctx, grad)
    wanted = ctx.needs_input_grad
    grad_x = None
    if wanted[0]:
        grad_x = torch.ops.prunus.sparse_linear_grad(grad.contiguous(), tensors, *ctx.shape)
    grad_bias = grad.reshape(-1, grad.shape[-1]).sum(0) if wanted[1] else None
    return grad_x, grad_bias, [None] * ctx.count, None, None, None, None, None


register(
    "sparse_linear",
    f"Tensor x, Tensor? bias, {WEIGHT}, bool relu, bool integer",
    sparse_linear,
    linear_fake,
    linear_backward,
    linear_setup,
)


@torch.library.custom_op("prunus::sparse_linear_grad", mutates_args=())
def sparse_linear_grad(grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int) -> Tensor:
    """Gradient with respect to the input of `sparse_linear`: grad (..., rows) times the matrix."""
    return grad @ packed_of(rows, cols, bank, tensors).dense()


@sparse_linear_grad.register_fake
def _(grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], cols))


# ------------------------------------------------------------------------------------------------------- convolutions


def run_conv2d(
    packed: Packed,
    geometry: ConvGeometry,
    x: Tensor,
    bias: Tensor | None = None,
    other: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """act(conv(x) + bias + other), x (n, inputs, h, w) -> (n, outputs, h', w'), float32. No gradients."""
    x = x.resolve_neg() if x.is_neg() else x
    other = other.resolve_neg() if other is not None and other.is_neg() else other
    layer, threads, sizes = packed.layer, torch.get_num_threads(), geometry.native.data_ptr()
    if layer is not None:
        out = layer.conv_on(x, bias, other, relu, threads, geometry.inputs, sizes)  # as in run_linear
        if out is not None:
            return cast("Tensor", out)
    shape = check_conv(packed, geometry, x, bias, other)
    if layer is None:
        return dense_conv2d(packed, geometry, x, bias, other, relu)
    x, other = x.contiguous(), None if other is None else other.contiguous()
    out = x.new_empty(*shape)
    added, also = (0 if tensor is None else tensor.data_ptr() for tensor in (bias, other))
    layer.conv(x.data_ptr(), out.data_ptr(), added, also, relu, threads, *x.shape, sizes)
    return out


def dense_conv2d(
    packed: Packed, geometry: ConvGeometry, x: Tensor, bias: Tensor | None, other: Tensor | None, relu: bool
) -> Tensor:
    weight = geometry.weight(packed.dense(), packed.bank)
    out = functional.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation)
    out = out if other is None else out + other
    return out.relu() if relu else out


def check_image(geometry: ConvGeometry, x: Tensor) -> tuple[int, int]:
    """Height and width of the output, or one sentence that says why there is none."""
    shape = x.shape
    if len(shape) != 4 or shape[1] != geometry.inputs:
        raise BadInput(f"The layer takes images (n, {geometry.inputs}, h, w), but got shape {tuple(x.shape)}.")
    if x.dtype != torch.float32 or not x.is_cpu:
        raise BadInput(f"Sparse layers run float32 on the CPU, but the input is {x.dtype} on {x.device}.")
    if not shape[2] or not shape[3]:
        raise BadInput(f"Images need at least one pixel, but got shape {tuple(x.shape)}.")
    height, width = geometry.output(shape[2], shape[3])
    if height < 1 or width < 1:
        raise BadInput(f"Images of {x.shape[2]} x {x.shape[3]} pixels are smaller than the kernel {geometry.kernel}.")
    return height, width


def check_conv(
    packed: Packed, geometry: ConvGeometry, x: Tensor, bias: Tensor | None, other: Tensor | None
) -> tuple[int, ...]:
    """The shape of the result; refuses what the kernel would read without looking."""
    if bias is not None:
        check_bias(packed, bias)
    height, width = check_image(geometry, x)
    shape = (x.shape[0], geometry.outputs, height, width)
    if other is not None and (tuple(other.shape) != shape or other.dtype != torch.float32):
        raise BadInput(f"What is added must be float32 of shape {shape}, not {other.dtype} {tuple(other.shape)}.")
    return shape


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
    """`tensors` as in `sparse_linear`; `geometry` as in `ConvGeometry.numbers`."""
    packed = packed_of(rows, cols, bank, tensors)
    return run_conv2d(packed, geometry_of(packed, geometry), x, bias, other, relu)


def conv_fake(
    x: Tensor, bias: Any, other: Any, tensors: Any, rows: int, cols: int, bank: int, relu: bool, geometry: list[int],
    *rest: Any,
) -> Tensor:  # fmt: skip
    """The shape of a convolution's result, for tracing."""
    height, width = ConvGeometry.from_numbers(geometry).output(x.shape[2], x.shape[3])
    return x.new_empty((x.shape[0], rows, height, width))


def conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, _, tensors, rows, cols, bank, relu, geometry = inputs
    ctx.shape = (rows, cols, bank)
    ctx.geometry, ctx.count, ctx.size = geometry, len(tensors), x.shape
    ctx.save_for_backward(*tensors, *([output] if relu else []))


def conv_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad, tensors = _before_relu(ctx, grad)
    wanted, grad_x = ctx.needs_input_grad, None
    if wanted[0]:
        arguments = (grad.contiguous(), tensors, *ctx.shape, ctx.geometry, ctx.size[2], ctx.size[3])
        grad_x = torch.ops.prunus.sparse_conv2d_grad(*arguments)
    grad_bias = grad.sum((0, 2, 3)) if wanted[1] else None
    grad_other = grad if wanted[2] else None
    return grad_x, grad_bias, grad_other, [None] * ctx.count, None, None, None, None, None


register(
    "sparse_conv2d",
    f"Tensor x, Tensor? bias, Tensor? other, {WEIGHT}, bool relu, SymInt[] geometry",
    sparse_conv2d,
    conv_fake,
    conv_backward,
    conv_setup,
)


@torch.library.custom_op("prunus::sparse_conv2d_grad", mutates_args=())
def sparse_conv2d_grad(
    grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int, geometry: list[int], height: int, width: int
) -> Tensor:
    """Gradient with respect to the input of `sparse_conv2d`."""
    packed = packed_of(rows, cols, bank, tensors)
    g = geometry_of(packed, geometry)
    weight = g.weight(packed.dense(), bank)
    size = (grad.shape[0], g.inputs, height, width)
    return cast("Tensor", conv2d_input(size, weight, grad, g.stride, g.padding, g.dilation))


@sparse_conv2d_grad.register_fake
def _(
    grad: Tensor, tensors: list[Tensor], rows: int, cols: int, bank: int, geometry: list[int], height: int, width: int
) -> Tensor:
    return grad.new_empty((grad.shape[0], geometry[0], height, width))
