"""The layer recursion (ledger P-26): sizes, deviations from the centre, and errors, in the 2-norm.

For every value of the graph and every centre it keeps `size*`, `size` (largest 2-norm of the value in the original and
in the pruned network), `away*`, `away` (largest distance from the value at the centre) and `error` (largest distance of
the two networks). A linear step takes the tighter of the two splits
`W y - W* y* = W (y - y*) + D y* = W* (y - y*) + D y`, and D y* is split once more at the centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz, ValueProduct

OUTWARDS = 1.0 + 1e-10
"""Covers the rounding of the scalar recursion in float64 (far below 1e-10 for any depth)."""


@dataclass(frozen=True)
class LayerNorms:
    """Upper bounds for one linear step: of the original and pruned operator, their difference, and the biases."""

    original: float
    pruned: float
    removed: float


class Norms:
    """The norms of every linear step, computed once and on demand."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._known: dict[int, LayerNorms] = {}

    def __getitem__(self, number: int) -> LayerNorms:
        if number not in self._known:
            self._known[number] = _layer_norms(self._pair.steps[number])
        return self._known[number]

    def put(self, number: int, norms: LayerNorms) -> None:
        """Take up norms that are known from elsewhere, such as the same layer in another combination."""
        self._known[number] = norms

    def known(self) -> list[tuple[int, LayerNorms]]:
        return list(self._known.items())


def _layer_norms(step: Step) -> LayerNorms:
    one, two = step.original, step.pruned
    assert isinstance(one, Affine)
    assert isinstance(two, Affine)
    original = one.norm(one.weight)
    if one.weight is None or two.weight is None or torch.equal(one.weight, two.weight):
        return LayerNorms(original, original, 0.0)
    removed = one.norm(two.weight - one.weight)
    # The triangle inequality may be tighter than a bound that is not exact, as for convolutions.
    pruned = min(two.norm(two.weight), (original + removed) * OUTWARDS)
    return LayerNorms(min(original, (pruned + removed) * OUTWARDS), pruned, removed)


@dataclass(frozen=True, eq=False)
class Size:
    """One value of the graph, for each centre: tensors (points,); centres (points, *shape); shares (layers, points)."""

    centre_original: Tensor
    centre_pruned: Tensor
    size_original: Tensor
    size_pruned: Tensor
    away_original: Tensor
    away_pruned: Tensor
    error: Tensor
    shares: Tensor

    @property
    def both(self) -> Tensor:
        """The sum of both networks' largest output norms: an error bound above it is vacuous."""
        return self.size_original + self.size_pruned


def lengths(values: Tensor) -> Tensor:
    """2-norms of a batch of values (points, *shape)."""
    return cast("Tensor", torch.linalg.vector_norm(values.flatten(1), dim=1))


def propagate(pair: Pair, region: Region, norms: Norms | None = None) -> list[Size]:
    """All values' sizes over the region."""
    norms = norms or Norms(pair)
    centres = [pair.run(region.centres, pruned) for pruned in (False, True)]
    radius = torch.full((region.points,), region.radius, dtype=torch.float64)
    zero = torch.zeros_like(radius)
    size = lengths(region.centres) + radius
    shares = torch.zeros(len(pair.steps), region.points, dtype=torch.float64)
    start = Size(region.centres, region.centres, size, size, radius, radius, zero, shares)
    values = [start]
    for number, step in enumerate(pair.steps):
        inputs = [values[index] for index in step.inputs]
        middle = (centres[0][number + 1], centres[1][number + 1])
        values.append(_capped(_step(number, step, inputs, norms), middle))
    return values


@dataclass(frozen=True, eq=False)
class _Raw:
    """A step's result before it is intersected with the bounds around the centre."""

    sizes: tuple[Tensor, Tensor]
    away: tuple[Tensor, Tensor]
    error: Tensor
    shares: Tensor


def _capped(raw: _Raw, middle: tuple[Tensor, Tensor]) -> Size:
    """Sizes and errors, lowered to what the centre and the deviations from it allow."""
    sizes = [torch.minimum(size, lengths(c) + away) for size, c, away in zip(raw.sizes, middle, raw.away)]
    cap = lengths(middle[1] - middle[0]) + raw.away[0] + raw.away[1]
    cap = torch.minimum(cap, sizes[0] + sizes[1])
    error = torch.minimum(raw.error, cap)
    shrink = torch.where(raw.error > 0, error / raw.error.clamp_min(1e-300), torch.ones_like(error))
    return Size(middle[0], middle[1], sizes[0], sizes[1], raw.away[0], raw.away[1], error, raw.shares * shrink)


def _step(number: int, step: Step, inputs: Sequence[Size], norms: Norms) -> _Raw:
    piece = step.original
    if isinstance(piece, Affine):
        assert isinstance(step.pruned, Affine)
        return _affine(number, piece, step.pruned, inputs[0], norms[number])
    if isinstance(piece, Join):
        return _join(piece, inputs)
    if isinstance(piece, ValueProduct):
        return _product(inputs[0], inputs[1])
    value = inputs[0]
    if isinstance(piece, Elementwise) and not math.isfinite(piece.lipschitz):
        return _local(piece, value)
    constant, offset = _lipschitz(piece, inputs[0].centre_original)
    sizes = (constant * value.size_original + offset, constant * value.size_pruned + offset)
    away = (constant * value.away_original, constant * value.away_pruned)
    return _Raw(sizes, away, constant * value.error, constant * value.shares)


def _known(values: Tensor) -> Tensor:
    """Infinite where nothing is known: infinity times zero."""
    return torch.where(torch.isnan(values), torch.full_like(values, math.inf), values)


def _local(piece: Elementwise, value: Size) -> _Raw:
    """A function without a global constant takes the steepest slope around the centre."""
    like = [1] * (value.centre_original.ndim - 1)
    ends = [
        (centre - away.reshape(-1, *like), centre + away.reshape(-1, *like))
        for centre, away in (
            (value.centre_original, value.away_original),
            (value.centre_pruned, value.away_pruned),
        )
    ]
    slopes = piece.slopes(torch.minimum(ends[0][0], ends[1][0]), torch.maximum(ends[0][1], ends[1][1]))
    constant = _known(torch.maximum(slopes[0].abs(), slopes[1].abs()).flatten(1)).amax(1)
    away = (_known(constant * value.away_original), _known(constant * value.away_pruned))
    infinite = torch.full_like(constant, math.inf)
    return _Raw((infinite, infinite), away, _known(constant * value.error), _known(constant * value.shares))


def _product(one: Size, two: Size) -> _Raw:
    """`xy - cd = (x - c) y + c (y - d)`, and `x'y' - xy = (x' - x) y' + x (y' - y)`."""

    def largest(centre: Tensor, away: Tensor) -> Tensor:
        return centre.abs().flatten(1).amax(1) + away

    away = []
    for left, right, off, other in (
        (one.centre_original, two.centre_original, one.away_original, two.away_original),
        (one.centre_pruned, two.centre_pruned, one.away_pruned, two.away_pruned),
    ):
        zero = torch.zeros_like(other)
        away.append(_known(off * largest(right, other)) + _known(largest(left, zero) * other))
    first, second = largest(two.centre_pruned, two.away_pruned), largest(one.centre_original, one.away_original)
    error = _known(one.error * first) + _known(second * two.error)
    shares = _known(one.shares * first) + _known(two.shares * second)
    sizes = (_known(one.size_original * two.size_original), _known(one.size_pruned * two.size_pruned))
    return _Raw(sizes, (away[0], away[1]), error, shares)


def _lipschitz(piece: Elementwise | Lipschitz, like: Tensor) -> tuple[float, float]:
    """The constant, and the 2-norm of the value at zero."""
    at_zero = piece.run(torch.zeros_like(like[:1]))
    constant = piece.lipschitz if isinstance(piece, Elementwise) else piece.constant
    return constant, float(torch.linalg.vector_norm(at_zero))


def _affine(number: int, one: Affine, two: Affine, value: Size, norm: LayerNorms) -> _Raw:
    bias = [torch.zeros(1, dtype=torch.float64) if piece.bias is None else piece.bias for piece in (one, two)]
    shift = bias[1] - bias[0]
    full = [_bias_length(piece, value) for piece in (one, two)]
    away = (norm.original * value.away_original, norm.pruned * value.away_pruned)
    sizes = (norm.original * value.size_original + full[0], norm.pruned * value.size_pruned + full[1])
    changed = norm.removed > 0 or bool(shift.any())
    if not changed:
        gain = norm.original
        return _Raw(sizes, away, gain * value.error, gain * value.shares)
    difference = _difference_weight(one, two)
    splits = []
    for gain, size, off, centre in (
        (norm.pruned, value.size_original, value.away_original, value.centre_original),
        (norm.original, value.size_pruned, value.away_pruned, value.centre_pruned),
    ):
        at_centre = shift if difference is None else one.apply(difference, centre) + shift
        if difference is None:
            at_centre = torch.zeros_like(one.apply(one.weight, centre)) + shift
        moved = lengths(at_centre) + norm.removed * off
        plain = norm.removed * size + lengths(at_centre * 0 + shift)
        inflow = torch.minimum(moved, plain)
        splits.append((gain * value.error + inflow, gain * value.shares, inflow))
    first = splits[0][0] <= splits[1][0]
    error = torch.where(first, splits[0][0], splits[1][0])
    shares = torch.where(first, splits[0][1], splits[1][1]).clone()
    shares[number] += torch.where(first, splits[0][2], splits[1][2])
    return _Raw(sizes, away, error, shares)


def _difference_weight(one: Affine, two: Affine) -> Tensor | None:
    if one.weight is None or two.weight is None:
        return None
    return two.weight - one.weight


def _bias_length(piece: Affine, value: Size) -> float:
    """The 2-norm of the bias, spread over all outputs."""
    if piece.bias is None:
        return 0.0
    like = piece.apply(piece.weight, torch.zeros_like(value.centre_original[:1]))
    return float(torch.linalg.vector_norm(like * 0 + piece.bias))


def _join(piece: Join, inputs: Sequence[Size]) -> _Raw:
    columns = [
        torch.stack([getattr(value, name) for value in inputs])
        for name in ("size_original", "size_pruned", "away_original", "away_pruned", "error")
    ]
    shares = torch.stack([value.shares for value in inputs]).sum(0)
    if piece.kind == "sum":
        sums = [column.sum(0) for column in columns]
        return _Raw((sums[0], sums[1]), (sums[2], sums[3]), sums[4], shares)
    roots = [torch.linalg.vector_norm(column, dim=0) for column in columns]
    total = columns[4].sum(0).clamp_min(1e-300)
    return _Raw((roots[0], roots[1]), (roots[2], roots[3]), roots[4], shares * roots[4] / total)
