"""Rows of coefficients taken back through one step: of one network, or of a pair as (original, difference).

Every function gets rows (points, rows, *output shape) and returns the rows on the step's inputs, a constant and the sum
of the constant's terms in magnitude, (points, rows) each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range
from prunus.certificates.reading.pieces import Affine, Join

Both = tuple[Tensor, Tensor]
"""Rows on the original's values, and rows on the difference."""


def concrete(coefficients: Tensor, part: Range) -> Tensor:
    """The largest value of rows of coefficients over a range."""
    flat = coefficients.flatten(2)
    low, high = part.low.flatten(1)[:, :, None], part.high.flatten(1)[:, :, None]
    return (flat.clamp_min(0) @ high + flat.clamp_max(0) @ low).squeeze(2)


def transpose(piece: Affine, weight: Tensor | None, rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The transposed operator applied to rows (points, rows, *output shape)."""
    if piece.kind == "linear" and weight is not None:
        return rows @ weight
    if piece.kind in ("shift", "cast"):
        return rows
    flat = rows.flatten(0, 1)
    with torch.enable_grad():
        start = torch.zeros(flat.shape[0], *shape, dtype=torch.float64, requires_grad=True)
        output = piece.apply(weight, start)
        (back,) = torch.autograd.grad(output, start, flat.reshape(output.shape), create_graph=flat.requires_grad)
    return back.reshape(*rows.shape[:2], *shape)


def _offset(rows: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    none = torch.zeros(rows.shape[:2], dtype=torch.float64)
    if bias is None or not bool(bias.any()):
        return none, none
    column = bias.expand(rows.shape[2:]).reshape(-1, 1)
    flat = rows.flatten(2)
    return (flat @ column).squeeze(2), (flat.abs() @ column.abs()).squeeze(2)


def back_affine_one(piece: Affine, rows: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows on one network's values."""
    return transpose(piece, piece.weight, rows, shape), *_offset(rows, piece.bias)


def back_affine(one: Affine, two: Affine, found: Both, shape: Sequence[int]) -> tuple[Both, Tensor, Tensor]:
    """`d' = W d + D y* + shift`: the difference of the weights moves rows on the difference onto the original."""
    on_original, on_difference = found
    original = transpose(one, one.weight, on_original, shape)
    difference = transpose(two, two.weight, on_difference, shape)
    if one.weight is not None and two.weight is not None and not torch.equal(one.weight, two.weight):
        original = original + transpose(one, two.weight - one.weight, on_difference, shape)
    zero = torch.zeros(1, dtype=torch.float64)
    first = zero if one.bias is None else one.bias
    shift = (zero if two.bias is None else two.bias) - first
    own, size = _offset(on_original, first)
    moved, more = _offset(on_difference, shift)
    return (original, difference), own + moved, size + more


def back_join(piece: Join, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Rows on every input of a sum or a concatenation; sizes are the inputs' along the axis."""
    if piece.kind == "sum":
        return [rows] * len(sizes)
    return list(rows.split(list(sizes), piece.axis + 1))  # rows carry one more dimension in front
