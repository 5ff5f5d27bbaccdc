"""Rows taken back through products of two values, and through smooth maps with a known second derivative.

A product is linear up to the product of both deviations: with middles m, n of the ranges and their half-widths r, q,
`x y = n x + m y - m n + e`, |e| <= r q. The difference of two networks is exactly `x'y' - xy = x' dy + y dx`, and
treated alike. A smooth map f is its tangent at the middle up to half of its second derivative over the range, and its
difference is `J d + e` with the second derivative in the directions of the range and of d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.certificates.bounds.backward import Both
from prunus.certificates.bounds.intervals import Range, Ranges, joint
from prunus.certificates.reading.pieces import Lipschitz

_OUT = 1 + 1e-9


def _dot(rows: Tensor, column: Tensor) -> Tensor:
    return (rows.flatten(2) @ column.flatten(1)[:, :, None]).squeeze(2)


def _weighted(rows: Tensor, factors: Tensor) -> Tensor:
    return rows * factors[:, None]


def _plane(x: Range, y: Range) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Coefficients of x and of y, the constant, and the largest error of `x y` about the ranges' middles."""
    m, n = x.middle, y.middle
    error = x.half * y.half * _OUT + 1e-15 * (x.magnitude * y.magnitude)
    return n, m, -m * n, error


def back_product_one(found: Tensor, x: Range, y: Range) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows on both factors, the constant, and its size."""
    on_x, on_y, offset, error = _plane(x, y)
    constant = _dot(found, offset) + _dot(found.abs(), error)
    return _weighted(found, on_x), _weighted(found, on_y), constant, _dot(found.abs(), offset.abs() + error)


def back_product(found: Both, x: Ranges, y: Ranges) -> tuple[Both, Both, Tensor, Tensor]:
    """Rows on both factors as (original, difference), the constant, and its size."""
    on_original, on_difference = found
    left, right, constant, size = back_product_one(on_original, x.original, y.original)
    # x' dy with x' = x + dx, and y dx.
    dy_first, moved_x, offset_one, error_one = _plane(x.pruned, y.difference)
    dx_first, moved_y, offset_two, error_two = _plane(y.original, x.difference)
    left = left + _weighted(on_difference, dy_first)
    right = right + _weighted(on_difference, dx_first)
    change_x = _weighted(on_difference, dy_first + moved_y)
    change_y = _weighted(on_difference, moved_x)
    offset, error = offset_one + offset_two, error_one + error_two
    constant = constant + _dot(on_difference, offset) + _dot(on_difference.abs(), error)
    size = size + _dot(on_difference.abs(), offset_one.abs() + offset_two.abs() + error)
    return (left, change_x), (right, change_y), constant, size


def back_smooth_one(piece: Lipschitz, found: Tensor, before: Range, after: Range) -> tuple[Tensor, Tensor, Tensor]:
    """Rows through a smooth map of one network; an entry takes its range where the tangent is looser."""
    assert piece.slope is not None
    assert piece.bend is not None
    middle, half = before.middle, before.half
    error = piece.bend(before.low, before.high, half, half) / 2 * _OUT + 1e-14
    keep = (error < after.half).to(torch.float64)
    rows = _weighted(found, keep)
    back = piece.slope(middle, rows)
    value = piece.run(middle)
    constant = _dot(rows, value) - _dot(back, middle) + _dot(rows.abs(), error)
    rest = found - rows
    constant = constant + _dot(rest, after.middle) + _dot(rest.abs(), after.half * _OUT)
    size = _dot(found.abs(), value.abs() + error + after.magnitude) + _dot(back.abs(), middle.abs())
    return back, constant, size


def back_smooth(piece: Lipschitz, found: Both, before: Ranges, after: Ranges) -> tuple[Both, Tensor, Tensor]:
    """The same for rows on the original and on the difference."""
    assert piece.slope is not None
    assert piece.bend is not None
    original, constant, size = back_smooth_one(piece, found[0], before.original, after.original)
    both = joint(before)
    moved = before.difference.magnitude
    error = piece.bend(both.low, both.high, both.half, moved) * _OUT + 1e-14 * moved
    keep = (error < after.difference.half).to(torch.float64)
    rows = _weighted(found[1], keep)
    difference = piece.slope(both.middle, rows)
    rest = found[1] - rows
    constant = constant + _dot(rows.abs(), error)
    constant = constant + _dot(rest, after.difference.middle) + _dot(rest.abs(), after.difference.half * _OUT)
    size = size + _dot(found[1].abs(), error + after.difference.magnitude)
    return (original, difference), constant, size
