"""Interval propagation of both networks and of their difference (ledger P-27).

Every value carries bounds on the original, on the pruned network and on the difference, entry by entry. A linear step
bounds the difference by both splits and by the bounds of the two networks, and intersects; an activation multiplies the
difference by the slopes its argument can have, so a ReLU keeps it where both networks are active and drops it where
both are not. The 2-norm recursion joins in: an entry moves by at most the norm of its row times the deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import noise
from prunus.certificates.bounds.recursion import Size, lengths
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz, ValueProduct

_UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Range:
    """Entrywise bounds low <= value <= high, tensors (points, *shape)."""

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def half(self) -> Tensor:
        return (self.high - self.low).clamp_min(0.0) / 2

    @property
    def magnitude(self) -> Tensor:
        return torch.maximum(self.low.abs(), self.high.abs())

    def meet(self, other: Range) -> Range:
        """The intersection; where rounding makes it empty, the bounds touch."""
        low, high = torch.maximum(self.low, other.low), torch.minimum(self.high, other.high)
        return Range(torch.minimum(low, high), torch.maximum(low, high))

    def minus(self, other: Range) -> Range:
        return _widened(self.low - other.high, self.high - other.low)


@dataclass(frozen=True, eq=False)
class Ranges:
    """One value: both networks and their difference, pruned minus original."""

    original: Range
    pruned: Range
    difference: Range

    def part(self, start: int, stop: int) -> Ranges:
        """The ranges of the points start..stop-1."""
        return self.rows(slice(start, stop))

    def rows(self, chosen: Tensor | slice) -> Ranges:
        """The ranges of some of the points."""
        return Ranges(*(Range(part.low[chosen], part.high[chosen]) for part in self._parts))

    def blank(self) -> Ranges:
        """Ranges of the same shape that say nothing."""
        part = Range(torch.full_like(self.original.low, -math.inf), torch.full_like(self.original.low, math.inf))
        return Ranges(part, part, part)

    def meet(self, other: Ranges) -> Ranges:
        """Both hold: the intersections."""
        return Ranges(
            self.original.meet(other.original), self.pruned.meet(other.pruned), self.difference.meet(other.difference)
        )

    def joined(self, other: Ranges) -> Ranges:
        """The points of the one, then those of the other."""
        pairs = zip(self._parts, other._parts)
        return Ranges(*(Range(torch.cat([one.low, two.low]), torch.cat([one.high, two.high])) for one, two in pairs))

    @property
    def _parts(self) -> tuple[Range, Range, Range]:
        return self.original, self.pruned, self.difference

    def tightened(self) -> Ranges:
        """Intersect `difference` with `pruned - original`."""
        return replace(self, difference=self.difference.meet(self.pruned.minus(self.original)))


def widened(part: Range) -> Range:
    """A range that also covers the rounding of one addition in each of its ends."""
    return _widened(part.low, part.high)


def _widened(low: Tensor, high: Tensor) -> Range:
    return Range(low - 4 * _UNIT * low.abs() - 1e-300, high + 4 * _UNIT * high.abs() + 1e-300)


def propagate_ranges(
    pair: Pair, region: Region, sizes: list[Size] | None = None, computed: bool = False
) -> list[Ranges]:
    """The ranges of all values; with `sizes`, intersected with what the 2-norms say.

    With `computed`, the ranges hold for the values that the networks compute in their own precision, and `sizes`, which
    bound exact values, must not be given.
    """
    reach = region.half if region.half is not None else torch.full((), region.radius, dtype=torch.float64)
    inputs = _widened(region.centres - reach, region.centres + reach)
    zero = Range(torch.zeros_like(region.centres), torch.zeros_like(region.centres))
    values = [Ranges(inputs, inputs, zero)]
    for number, step in enumerate(pair.steps):
        sources = [values[index] for index in step.inputs]
        found = computed_step(step, sources, pair.dtypes)[0] if computed else exact_step(step, sources)
        if sizes is not None:
            found = _meet_sizes(step, found, [sizes[index] for index in step.inputs], sizes[number + 1])
        values.append(found.tightened())
    return values


def error_of(ranges: Ranges) -> Tensor:
    """The 2-norm (points,) of the largest possible difference."""
    return lengths(ranges.difference.magnitude) * (1 + 1e-12)


def exact_step(step: Step, sources: list[Ranges]) -> Ranges:
    piece = step.original
    if isinstance(piece, Affine):
        assert isinstance(step.pruned, Affine)
        return _affine(piece, step.pruned, sources[0])
    if isinstance(piece, Join):
        return Ranges(
            _joined(piece, [source.original for source in sources]),
            _joined(piece, [source.pruned for source in sources]),
            _joined(piece, [source.difference for source in sources]),
        )
    if isinstance(piece, ValueProduct):
        return _product(sources[0], sources[1])
    if isinstance(piece, Elementwise):
        return _elementwise(piece, sources[0])
    return _lipschitz(piece, sources[0])


Noise = tuple[Tensor | None, Tensor | None]


def computed_step(step: Step, sources: list[Ranges], dtypes: tuple[torch.dtype, torch.dtype]) -> tuple[Ranges, Noise]:
    """The ranges of what both networks compute in their own precision, and how far each may be from the exact step."""
    exact = exact_step(step, sources)
    found: list[Tensor | None] = []
    for piece, dtype, pruned in ((step.original, dtypes[0], False), (step.pruned, dtypes[1], True)):
        before = [(source.pruned if pruned else source.original).magnitude for source in sources]
        after = (exact.pruned if pruned else exact.original).magnitude
        found.append(noise(piece, before, after, dtype))
    one, two = found

    def wider(part: Range, *extra: Tensor | None) -> Range:
        for amount in extra:
            if amount is not None:
                part = _widened(part.low - amount, part.high + amount)
        return part

    wide = Ranges(wider(exact.original, one), wider(exact.pruned, two), wider(exact.difference, one, two))
    return wide, (one, two)


def _image(piece: Affine, weight: Tensor | None, source: Range, bias: Tensor | None) -> Range:
    """The range of `weight x + bias` over a range of x, with the rounding of the evaluation added."""
    if weight is None and bias is None and piece.terms == 0:  # entries only move
        return Range(piece.apply(None, source.low), piece.apply(None, source.high))
    middle = piece.apply(weight, source.middle)
    slack = 4 * (piece.terms + 4) * _UNIT
    half = piece.apply(None if weight is None else weight.abs(), source.half + slack * source.magnitude)
    half = half * (1 + slack)
    if bias is not None:
        middle = middle + bias
        half = half + slack * bias.abs()
    return _widened(middle - half, middle + half)


def _affine(one: Affine, two: Affine, source: Ranges) -> Ranges:
    original = _image(one, one.weight, source.original, one.bias)
    pruned = _image(two, two.weight, source.pruned, two.bias)
    shift = None
    if one.bias is not None or two.bias is not None:
        zero = torch.zeros(1, dtype=torch.float64)
        shift = (zero if two.bias is None else two.bias) - (zero if one.bias is None else one.bias)
    if one.weight is None or two.weight is None or torch.equal(one.weight, two.weight):
        return Ranges(original, pruned, _image(one, one.weight, source.difference, shift))
    removed = two.weight - one.weight
    splits = []
    for weight, other in ((two.weight, source.original), (one.weight, source.pruned)):
        carried = _image(one, weight, source.difference, shift)
        fresh = _image(one, removed, other, None)
        splits.append(_widened(carried.low + fresh.low, carried.high + fresh.high))
    return Ranges(original, pruned, splits[0].meet(splits[1]))


def _joined(piece: Join, parts: list[Range]) -> Range:
    low, high = piece.run([part.low for part in parts]), piece.run([part.high for part in parts])
    return _widened(low, high) if piece.kind == "sum" else Range(low, high)


def slope_product(slopes: tuple[Tensor, Tensor], difference: Range) -> Range:
    """The range of s * d for slopes s and differences d in their ranges."""
    corners = torch.stack([s * d for s in slopes for d in (difference.low, difference.high)])
    return _widened(corners.amin(0), corners.amax(0))


def times(one: Range, two: Range) -> Range:
    """The range of a product of two numbers in their ranges."""
    return slope_product((one.low, one.high), two)


def _product(one: Ranges, two: Ranges) -> Ranges:
    """`x'y' - xy = x' dy + y dx = x dy + y' dx`."""
    original, pruned = times(one.original, two.original), times(one.pruned, two.pruned)
    splits = []
    for left, right in ((one.pruned, two.original), (one.original, two.pruned)):
        first, second = times(left, two.difference), times(right, one.difference)
        splits.append(_widened(first.low + second.low, first.high + second.high))
    return Ranges(original, pruned, splits[0].meet(splits[1]))


def joint(source: Ranges) -> Range:
    """An interval that holds the argument in both networks, and everything between."""
    low = torch.minimum(source.original.low, source.pruned.low)
    return Range(low, torch.maximum(source.original.high, source.pruned.high))


def _elementwise(piece: Elementwise, source: Ranges) -> Ranges:
    both = joint(source)
    return Ranges(
        Range(*piece.values(source.original.low, source.original.high)),
        Range(*piece.values(source.pruned.low, source.pruned.high)),
        slope_product(piece.slopes(both.low, both.high), source.difference),
    )


def _lipschitz(piece: Lipschitz, source: Ranges) -> Ranges:
    def network(part: Range) -> Range:
        centre = piece.run(part.middle)
        reach = (piece.constant * lengths(part.half)).reshape(-1, *[1] * (centre.ndim - 1)) * (1 + 1e-12) + 1e-14
        around = Range(centre - reach, centre + reach)
        if piece.bounds is None:
            return around
        return Range(*piece.bounds(part.low, part.high)).meet(around)

    original, pruned = network(source.original), network(source.pruned)
    moved = (piece.constant * lengths(source.difference.magnitude)).reshape(-1, *[1] * (original.low.ndim - 1))
    difference = Range((-moved).expand_as(original.low), moved.expand_as(original.low))
    if piece.change is not None:
        difference = difference.meet(Range(*piece.change(source.difference.low, source.difference.high)))
    return Ranges(original, pruned, difference)


# ------------------------------------------------------------------------------------------------- with the 2-norms


def row_lengths(piece: Affine, weight: Tensor | None) -> Tensor | None:
    """2-norms of the operator's rows, broadcastable to its output; None where they are not known."""
    if weight is None or piece.kind not in ("linear", "convolution"):
        return None
    if piece.kind == "linear":
        return cast("Tensor", torch.linalg.vector_norm(weight, dim=1) * (1 + 1e-12))
    geometry = piece.settings[0]
    reach = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], geometry.dilation)]
    if geometry.circular and any(span > size for span, size in zip(reach, geometry.image)):
        return None  # taps that wrap onto one pixel add up
    rows = torch.linalg.vector_norm(weight.flatten(1), dim=1) * (1 + 1e-12)
    return cast("Tensor", rows.reshape(-1, *[1] * (weight.ndim - 2)))


def _meet_sizes(step: Step, found: Ranges, before: list[Size], after: Size) -> Ranges:
    def around(centre: Tensor, reach: Tensor) -> Range:
        slack = 1e-11 * (reach + centre.abs())
        return Range(centre - reach - slack, centre + reach + slack)

    def spread(amount: Tensor, like: Tensor) -> Tensor:
        return amount.reshape(-1, *[1] * (like.ndim - 1))

    like = after.centre_original
    moves = [spread(after.away_original, like), spread(after.away_pruned, like)]
    error = spread(after.error, like)
    if isinstance(step.original, Affine) and isinstance(step.pruned, Affine) and len(before) == 1:
        aways = (before[0].away_original, before[0].away_pruned)
        for side, piece in enumerate((step.original, step.pruned)):
            rows = row_lengths(piece, piece.weight)
            if rows is not None:
                moves[side] = torch.minimum(moves[side], rows * spread(aways[side], like))
    difference = found.difference.meet(Range((-error).expand_as(like), error.expand_as(like)))
    return Ranges(
        found.original.meet(around(after.centre_original, moves[0])),
        found.pruned.meet(around(after.centre_pruned, moves[1])),
        difference,
    )
