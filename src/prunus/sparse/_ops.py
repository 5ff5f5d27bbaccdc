"""The sparse products as torch operators: `torch.ops.prunus.sparse_linear` and `sparse_conv2d`.

Registered operators are what `torch.compile` and `torch.export` keep as one node. Gradients flow to the inputs and the
bias; the weights are frozen. Rows of the transpose are not balanced, so the backward pass goes through the dense
matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._packed import Packed

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
    if x.dtype != torch.float32 or x.device.type != "cpu":
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
