"""The standard model of floating-point arithmetic, entry by entry.

A sum of n products differs from the exact one by at most `gamma_n sum |w_i x_i|`, gamma_n = n u / (1 - n u), in any
order and with or without fused steps. Half-precision types are taken to accumulate in float32 and to round at the end,
or as often as the piece says (a bias added after a product, a batch norm after a layer). A result below the smallest
normal number may lose that much (gradual underflow, or flushing to zero), and where a result may leave the type's range
the error is infinite. Fast algorithms that recombine inputs (Winograd, FFT convolutions) and TF32 are outside of this
model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Piece, ValueProduct

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LIBRARY = 8.0
"""Units in the last place granted to activation functions of the math library."""


def gamma(terms: int, dtype: torch.dtype, roundings: int = 1) -> float:
    """Relative error of one output that sums `terms` products; roundings: how often a half-precision type rounds."""
    unit = UNITS.get(dtype, 2.0**-8)
    accumulate = max(min(unit, 2.0**-24), 2.0**-53)
    count = (terms + 2) * accumulate
    error = count / (1 - count) if count < 0.5 else float("inf")
    return error if unit <= 2.0**-24 else error + 1.001 * ((1 + unit) ** roundings - 1)


def noise(piece: Piece, before: Sequence[Tensor], after: Tensor, dtype: torch.dtype) -> Tensor | None:
    """How far each entry of a step's computed result is from the exact step on the same inputs; None for not at all.

    before, after: bounds on the magnitudes of the step's inputs and result, (points, *shape).
    """
    unit = UNITS.get(dtype, 2.0**-8)
    if isinstance(piece, Affine):
        if piece.terms == 0 and piece.bias is None:
            return None
        if piece.terms == 0:
            return None if piece.kind in ("constant", "gather") else unit * after
        spread = piece.rounded(before[0])
        lost = piece.underflow * smallest(dtype)
        leaves = overflow(largest_sums(piece, before[0], spread, dtype), dtype)
        return gamma(piece.terms, dtype, piece.roundings) * spread + lost + leaves
    if isinstance(piece, Join):
        if piece.kind == "concatenation":
            return None
        sums = torch.stack(list(before)).sum(0)
        return gamma(len(before), dtype) * sums + overflow(sums, dtype)
    if isinstance(piece, Elementwise):
        if piece.beyond is not None:
            return torch.minimum(1.001 * (before[0] - after).clamp_min(0.0), piece.beyond(before[1], dtype))
        if piece.piecewise_linear and piece.settings == (0.0,):
            return None
        sizes = after if piece.relative else after + before[0]
        return LIBRARY * (unit * sizes + smallest(dtype)) + piece.jump + overflow(steps_of(after, dtype), dtype)
    if isinstance(piece, ValueProduct):
        return 1.001 * unit * after + smallest(dtype) + overflow(after, dtype)
    if piece.kind == "max pooling":
        return None
    fresh = gamma(before[0][0].numel(), dtype) + LIBRARY * unit
    return fresh * after.flatten(1).amax(1).reshape(-1, *[1] * (after.ndim - 1)) + LIBRARY * smallest(dtype) + 0 * after


def steps_of(result: Tensor, dtype: torch.dtype) -> Tensor:
    """How large the steps inside an activation may be; half-precision types take them in float32."""
    return result if UNITS.get(dtype, 1.0) > 2.0**-24 else LIBRARY * result


def largest_sums(piece: Affine, x: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """How large what an affine step sums may become on the way to each output, where that matters for the type.

    x: bounds on the magnitudes of its inputs; spread: those of its outputs' terms. A mean is summed before it is
    divided, in float32 for half-precision types; and a layer is summed before the batch norm that was folded into it.
    """
    if piece.weight is None and UNITS.get(dtype, 1.0) <= 2.0**-24:
        spread = spread * max(1, piece.terms)
    layer = piece.inside
    if layer is None:
        return spread
    most = x.amax(0, keepdim=True)  # over all points at once, which is nearly always enough
    sums = largest_sums(layer, most, layer.rounded(most), dtype)
    if bool((sums > _limit(dtype)).any()):
        sums = largest_sums(layer, x, layer.rounded(x), dtype)
    return torch.maximum(spread, sums)


def smallest(dtype: torch.dtype) -> float:
    """The smallest normal number: what underflow can cost one operation."""
    return float(torch.finfo(dtype).tiny) if dtype in UNITS else 1e-5


def _limit(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max) / 2 if dtype in UNITS else 6e4


def overflow(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Infinite where sums may leave the range of the type, else 0, for bounds on their magnitudes."""
    return torch.where(largest <= _limit(dtype), 0.0, math.inf)
