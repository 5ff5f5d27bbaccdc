"""Integer products in plain torch: the same integers and floats as the compiled kernels, without their speed.

A token's inputs become bytes `q = round(x / step) + zero`, 0 to 127, over the range of the token and zero; weights are
int8 with one scale for each row. The sum of `weight * q` is exact, and `zero` times the row's sum of weights is taken
from it; only then come floats: `(sum - zero * row_sum) * (step * scale) + bias`. A token that holds NaN or infinity
gives NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.sparse._packed import Packed, entries

TOP = 127
SMALLEST_STEP = 1e-37
MOST_IN_ROW = 133_144  # weights whose sum is sure to fit 32 bits


def quantise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes (as int64), step and zero of each token of x (tokens, cols), float32."""
    tokens = x.shape[0]
    finite = x.isfinite().all(1, keepdim=True) if x.shape[1] else torch.ones(tokens, 1, dtype=torch.bool)
    clean = torch.where(finite, x, 0.0)
    nothing = x.new_zeros(tokens, 1)
    low, high = (
        torch.cat([clean, nothing], 1).amin(1, keepdim=True),
        torch.cat([clean, nothing], 1).amax(1, keepdim=True),
    )
    step = high / TOP - low / TOP
    flat = step < SMALLEST_STEP
    inverse = 1.0 / torch.where(flat, 1.0, step)
    zero = torch.where(flat, 0.0, (-low * inverse).round())
    q = torch.where(flat, 0.0, ((clean * inverse).round() + zero).clamp(0, TOP))
    step = torch.where(flat, 0.0, step)
    return q.long(), torch.where(finite, step, torch.nan), zero.long()


def integer_linear(packed: Packed, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """x (..., cols) -> (..., rows)."""
    check_integer(packed)
    assert packed.scale is not None
    flat = x.reshape(-1, packed.cols) if packed.cols else x.reshape(x.shape[:-1].numel(), 0)
    q, step, zero = quantise(flat)
    weight = integer_weight(packed)
    sums = (q.double() @ weight.double().T).long()  # exact: far below 2^53
    exact = (sums - zero * weight.sum(1)).to(torch.float32)
    out = exact * (step * packed.scale)
    out = out if bias is None else out + bias
    return (out.relu() if relu else out).reshape(*x.shape[:-1], packed.rows)


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
