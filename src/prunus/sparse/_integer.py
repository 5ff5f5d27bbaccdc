"""Integer products in plain torch: the same integers and floats as the compiled kernels, without their speed.

A token's inputs become bytes `q = round(x / step) + zero`, 0 to 127, over the range of the token and zero, or over a
span that was measured beforehand; a token of a convolution is a whole image. Weights are int8 with one scale for each
row. The sum of `weight * (q - zero)` is exact; only then come floats: `sum * (step * scale) + bias`. A token that holds
NaN or infinity gives NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._packed import Packed, entries

Span = tuple[float, float]
TOP = 127
SMALLEST_STEP = 1e-37
MOST_IN_ROW = 133_144  # weights whose sum is sure to fit 32 bits


def quantise(x: Tensor, span: Span | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes (as int64), step and zero of each token of x (tokens, cols), float32; outside a span they are clipped."""
    tokens = x.shape[0]
    finite = x.isfinite().all(1, keepdim=True) if x.shape[1] else torch.ones(tokens, 1, dtype=torch.bool)
    clean = torch.where(finite, x, 0.0)
    if span is None:
        padded = torch.cat([clean, x.new_zeros(tokens, 1)], 1)
        low, high = padded.amin(1, keepdim=True), padded.amax(1, keepdim=True)
    else:
        low, high = (x.new_full((tokens, 1), end) for end in span)
    step = high / TOP - low / TOP
    flat = step < SMALLEST_STEP
    inverse = 1.0 / torch.where(flat, 1.0, step)
    zero = torch.where(flat, 0.0, (-low * inverse).round())
    q = torch.where(flat, 0.0, ((clean * inverse).round() + zero).clamp(0, TOP))
    step = torch.where(flat, 0.0, step)
    return q.long(), torch.where(finite, step, torch.nan), zero.long()


def integer_linear(packed: Packed, x: Tensor, bias: Tensor | None, relu: bool, span: Span | None = None) -> Tensor:
    """x (..., cols) -> (..., rows)."""
    check_integer(packed)
    assert packed.scale is not None
    flat = x.reshape(-1, packed.cols) if packed.cols else x.reshape(x.shape[:-1].numel(), 0)
    q, step, zero = quantise(flat, span)
    sums = (q - zero).double() @ integer_weight(packed).double().T  # exact: far below 2^53
    out = sums.to(torch.float32) * (step * packed.scale)
    out = out + (0.0 if bias is None else bias)
    return (out.relu() if relu else out).reshape(*x.shape[:-1], packed.rows)


def integer_conv2d(
    packed: Packed,
    geometry: ConvGeometry,
    x: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    relu: bool,
    span: Span | None = None,
) -> Tensor:
    """x (n, inputs, h, w) -> (n, outputs, h', w'); the zeros around an image are exact."""
    check_integer(packed)
    assert packed.scale is not None
    q, step, zero = quantise(x.reshape(x.shape[0], math.prod(x.shape[1:])), span)
    weight = geometry.weight(integer_weight(packed), packed.bank).double()
    places = (geometry.stride, geometry.padding, geometry.dilation)
    sums = functional.conv2d((q - zero).double().reshape(x.shape), weight, None, *places)
    out = sums.to(torch.float32) * (step * packed.scale)[:, :, None, None]
    out = out + (0.0 if bias is None else bias[:, None, None])
    out = out if other is None else out + other
    return out.relu() if relu else out


def integer_weight(packed: Packed) -> Tensor:
    """The stored int8 values as a dense matrix (rows, cols), int64."""
    row, column, value = entries(packed, scaled=False)
    out = torch.zeros(packed.rows, packed.cols, dtype=torch.int64)
    return out.index_put_((row, column), value.long(), accumulate=True)


def check_integer(packed: Packed) -> None:
    """Whether integer products are possible: int8 values, and rows whose sums fit 32 bits."""
    if packed.values.dtype != torch.int8:
        raise BadInput("Integer products need int8 weights: give dtype=torch.int8 with activations=torch.int8.")
    if packed.cols > MOST_IN_ROW:
        raise BadInput(
            f"Sums over {packed.cols} columns may not fit 32 bits (at most {MOST_IN_ROW}): leave activations out."
        )


def check_activations(activations: Any, span: Any = None) -> None:
    """Whether inputs can be quantised so."""
    if activations not in (None, torch.int8):
        raise BadInput(f"Inputs can be quantised to torch.int8 or left as they are (None), not {activations}.")
    if span is None:
        return
    if activations is None:
        raise BadInput("A span of inputs serves integer products: give activations=torch.int8 with it.")
    ends = torch.as_tensor(span)
    fits = ends.shape == (2,) and ends.dtype == torch.float32
    if not fits or not (ends.is_meta or (bool(ends.isfinite().all()) and float(ends[0]) <= 0.0 <= float(ends[1]))):
        raise BadInput(
            "A span of inputs is two finite numbers in float32, the first at most and the second at least zero."
        )
