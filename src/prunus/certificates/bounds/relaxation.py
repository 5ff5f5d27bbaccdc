"""Linear relaxation of the stacked pair (ledger P-27), propagated backwards through the graph.

The pair is written as (y*, d): the original's values and the difference. A linear step is exact,
`d' = W d + D y* + shift`. An activation is replaced by linear bounds, entry by entry, in one of two ways, whichever
leaves the smaller gap: each network by its own lines (CROWN), or the difference by `d' = s d` with s among the slopes
its argument can have. Rows of coefficients run from a value back to the input, where the region gives their largest
value. Bounds before activations are first tightened in the same way, as far as the time allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Noise, Range, Ranges, computed_step, exact_step, joint, widened
from prunus.certificates.bounds.maxima import back_maxima
from prunus.certificates.bounds.recursion import Size
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz

_SLACK = 1e-11
"""Relative rounding of the backward sums, taken of the sum of the magnitudes of all their terms."""

_CHUNK = 2**24
"""Coefficients held for one value at once (128 MB)."""


@dataclass(frozen=True)
class Lines:
    """`low_slope z + low <= s(z) <= high_slope z + high` over a range, and the largest gap between the two."""

    low_slope: Tensor
    low: Tensor
    high_slope: Tensor
    high: Tensor
    gap: Tensor


def lines(piece: Elementwise, part: Range) -> Lines:
    """Linear bounds on an activation over a range, entry by entry."""
    low, high = part.low, part.high
    width = (high - low).clamp_min(0.0)
    bottom, top = piece.slopes(low, high)
    flat = (top <= bottom) | (width <= 1e-14 * (1 + low.abs()))
    at_low, at_high = piece.function(low), piece.function(high)
    chord = torch.where(flat, bottom, ((at_high - at_low) / width.clamp_min(1e-300)))
    chord = torch.minimum(torch.maximum(chord, bottom), top)
    if piece.piecewise_linear:
        return _kinked_lines(piece, low, high, bottom, top, flat, chord)
    # Over [low, high] the function leaves its chord by at most this (slopes between bottom and top).
    spread = (top - bottom).clamp_min(1e-300)
    off = width * (top - chord) * (chord - bottom) / spread
    off = torch.where(flat, width * (top - bottom), off) * (1 + 1e-9) + 1e-13 * (1 + at_low.abs() + at_high.abs())
    base = at_low - chord * low
    return Lines(chord, base - off, chord, base + off, 2 * off)


def _kinked_lines(
    piece: Elementwise, low: Tensor, high: Tensor, bottom: Tensor, top: Tensor, flat: Tensor, chord: Tensor
) -> Lines:
    """ReLU and LeakyReLU: exact where stable; else the chord on one side and one of the two pieces on the other."""
    ((_, left, right),) = piece.kinks
    zero = torch.zeros_like(low)
    stable = torch.where(low >= 0, right * torch.ones_like(low), left * torch.ones_like(low))
    crossing = ~((low >= 0) | (high <= 0))
    base = torch.where(crossing, piece.function(low) - chord * low, zero)
    base = base + torch.where(crossing, 1e-14 * (base.abs() + 1e-300), zero)
    nearer = torch.where(high > -low, right * torch.ones_like(low), left * torch.ones_like(low))
    chord_slope = torch.where(crossing, chord, stable)
    piece_slope = torch.where(crossing, nearer, stable)
    gap = torch.where(crossing, base.abs(), zero)
    if right >= left:  # convex: the chord lies above
        return Lines(piece_slope, zero, chord_slope, base, gap)
    low_base = torch.where(crossing, piece.function(low) - chord * low, zero)
    return Lines(chord_slope, low_base - 1e-14 * low_base.abs(), piece_slope, zero, gap)


def difference_lines(piece: Elementwise, source: Ranges) -> Lines:
    """Linear bounds on `s(z* + d) - s(z*)` in d alone: d times a slope of the joint range."""
    both = joint(source)
    bottom, top = piece.slopes(both.low, both.high)
    low, high = source.difference.low, source.difference.high
    width = (high - low).clamp_min(1e-300)
    crossing = (low < 0) & (high > 0)
    rise = torch.where(crossing, (top * high - bottom * low) / width, torch.where(low >= 0, top, bottom))
    fall = torch.where(crossing, (bottom * high - top * low) / width, torch.where(low >= 0, bottom, top))
    zero = torch.zeros_like(low)
    above = torch.where(crossing, bottom * low - rise * low, zero)
    below = torch.where(crossing, top * low - fall * low, zero)
    slack = torch.where(crossing, 1e-14 * (above.abs() + below.abs()), zero)
    gap = (top - bottom) * torch.maximum(low.abs(), high.abs())
    return Lines(fall, below - slack, rise, above + slack, gap)


class Relaxation:
    """Bounds for a batch of points or boxes: `ranges` are tightened in place of the list, step by step.

    With `lean`, only the original and the difference are tightened by rows of their own; the pruned network follows as
    their sum, which is a third less work. With `computed`, everything is about the values that the networks compute in
    their own precision: every step may be off by its rounding, which runs through the same relaxation.
    """

    def __init__(
        self, pair: Pair, region: Region, ranges: Sequence[Ranges], lean: bool = False, computed: bool = False
    ) -> None:
        self._pair, self._region, self._lean, self._computed = pair, region, lean, computed
        self._noise: dict[int, Noise] = {}
        self.ranges = list(ranges)
        self.at_input: Tensor | None = None
        self._lines: dict[int, tuple[Lines, Lines, Lines]] = {}
        self._sources: dict[int, Ranges] = {}

    def tighten(self, deadline: float = math.inf) -> bool:
        """Tighten the bounds before every activation; False where the time ran out on the way."""
        steps = self._pair.steps
        done = True
        for number, step in enumerate(steps):
            if number:
                self._renew(number - 1)
            if not isinstance(step.original, (Elementwise, Lipschitz)):
                continue
            index = step.inputs[0]
            source = self.ranges[index]
            if isinstance(step.original, Lipschitz):
                wanted = torch.ones_like(source.original.low, dtype=torch.bool)
            else:
                both = joint(source)
                bottom, top = step.original.slopes(both.low, both.high)
                wanted = top > bottom
            wanted = wanted.flatten(1)
            count = int(wanted.sum(1).max())
            if count == 0 or index == 0:
                continue
            if time.monotonic() + self._seconds(index, count * wanted.shape[0]) > deadline:
                done = False
                continue
            self._tighten_value(index, wanted.to(torch.uint8).topk(count, dim=1).indices)
        if steps:
            self._renew(len(steps) - 1)
        return done

    def refresh(self) -> None:
        """Push the known ranges through every step."""
        for number in range(len(self._pair.steps)):
            self._renew(number)

    def _renew(self, number: int) -> None:
        """Push the tightened ranges of its inputs through one step."""
        step = self._pair.steps[number]
        known = self.ranges[number + 1]
        sources = [self.ranges[index] for index in step.inputs]
        if self._computed:
            fresh, self._noise[number] = computed_step(step, sources, self._pair.dtypes)
        else:
            fresh = exact_step(step, sources)
        self.ranges[number + 1] = Ranges(
            known.original.meet(fresh.original),
            known.pruned.meet(fresh.pruned),
            known.difference.meet(fresh.difference),
        ).tightened()

    def _seconds(self, index: int, rows: int) -> float:
        """A cautious forecast: multiplications of all rows through all steps before the value."""
        work = 0.0
        for step in self._pair.steps[:index]:
            piece = step.original
            if isinstance(piece, Affine) and piece.weight is not None:
                outputs = float(math.prod(step.shape))
                work += 3.0 * outputs * piece.terms
        return 6.0 * rows * work / 5e9

    def forecast(self) -> float:
        """Seconds that tightening every value would take if half of the entries needed it."""
        total = 0.0
        for step in self._pair.steps:
            if isinstance(step.original, Elementwise):
                total += self._seconds(step.inputs[0], math.prod(step.shape) // 2)
        return total

    def _tighten_value(self, index: int, rows: Tensor) -> None:
        """Bounds by rows of their own for the entries `rows` (points, count) of one value."""
        source = self.ranges[index]
        points, shape = rows.shape[0], source.original.low.shape[1:]
        size = math.prod(shape)
        biggest = max(int(value.original.low[0].numel()) for value in self.ranges[: index + 1])
        step = max(1, _CHUNK // (6 * biggest * points))
        parts = (source.original, source.difference) if self._lean else _parts(source)
        flat = [[part.low.flatten(1).clone(), part.high.flatten(1).clone()] for part in parts]
        for start in range(0, rows.shape[1], step):
            chosen = rows[:, start : start + step]
            units = torch.zeros(points, chosen.shape[1], size, dtype=torch.float64)
            units.scatter_(2, chosen[:, :, None], 1.0)
            units = units.reshape(points, -1, *shape)
            none = torch.zeros_like(units)
            # original: y*; pruned: y* + d; difference: d. Each upwards and downwards.
            if self._lean:
                on_original = torch.cat([units, -units, none, none], dim=1)
                on_difference = torch.cat([none, none, units, -units], dim=1)
            else:
                on_original = torch.cat([units, -units, units, -units, none, none], dim=1)
                on_difference = torch.cat([none, none, units, -units, units, -units], dim=1)
            highest = self.upper(index, on_original, on_difference).reshape(points, len(parts), 2, -1)
            for place, (low, high) in enumerate(flat):
                high.scatter_(1, chosen, torch.minimum(high.gather(1, chosen), highest[:, place, 0]))
                low.scatter_(1, chosen, torch.maximum(low.gather(1, chosen), -highest[:, place, 1]))
        made = [
            Range(torch.minimum(lo, hi).reshape(points, *shape), torch.maximum(lo, hi).reshape(points, *shape))
            for lo, hi in flat
        ]
        if self._lean:
            original, difference = made
            total = Range(original.low + difference.low, original.high + difference.high)
            made = [original, source.pruned.meet(widened(total)), difference]
        self.ranges[index] = Ranges(*made).tightened()

    def outputs(self) -> Tensor:
        """Bounds (points, outputs) on the magnitude of each output's difference."""
        index = len(self._pair.steps)
        shape = self._pair.output_shape
        size = int(torch.tensor(shape).prod())
        known = self.ranges[index].difference.magnitude.flatten(1).clone()
        points = known.shape[0]
        biggest = max(int(value.original.low.numel()) for value in self.ranges)
        step = max(1, _CHUNK // (2 * biggest))
        for start in range(0, size, step):
            units = torch.eye(size, dtype=torch.float64)[start : start + step].reshape(1, -1, *shape)
            rows = torch.cat([units, -units], dim=1).expand(points, *[-1] * (units.ndim - 1))
            found = self.upper(index, torch.zeros_like(rows), rows).reshape(points, 2, -1).amax(1)
            known[:, start : start + step] = torch.minimum(known[:, start : start + step], found.clamp_min(0.0))
        return known * (1 + 1e-12)

    def upper(self, index: int, on_original: Tensor, on_difference: Tensor) -> Tensor:
        """Upper bounds (1, rows) on `on_original . y* + on_difference . d` at value `index`; rows (1, rows, *shape)."""
        rows: dict[int, tuple[Tensor, Tensor]] = {index: (on_original, on_difference)}
        total = torch.zeros(on_original.shape[:2], dtype=torch.float64)
        terms = torch.zeros_like(total)
        for number in range(index - 1, -1, -1):
            if number + 1 not in rows:
                continue
            found = rows.pop(number + 1)
            constant, magnitude = self._back(number, self._pair.steps[number], found, rows)
            total, terms = total + constant, terms + magnitude
            for part, amount in zip((found[0] - found[1], found[1]), self._noise.get(number, (None, None))):
                if amount is not None:
                    total = total + (part.abs().flatten(2) @ amount.flatten(1)[:, :, None]).squeeze(2)
        coefficients = rows[0][0] if 0 in rows else None
        self.at_input = coefficients
        if coefficients is not None:
            centre = self._region.centres.flatten(1)
            flat = coefficients.flatten(2)
            total = total + torch.einsum("prn,pn->pr", flat, centre) + self._region.spread(coefficients)
            terms = terms + torch.einsum("prn,pn->pr", flat.abs(), centre.abs()) + self._region.spread(coefficients)
        return total + _SLACK * terms

    def _back(
        self, number: int, step: Step, found: tuple[Tensor, Tensor], rows: dict[int, tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        piece = step.original
        if isinstance(piece, Affine):
            assert isinstance(step.pruned, Affine)
            shape = self.ranges[step.inputs[0]].original.low.shape[1:]
            original, difference, constant, magnitude = _back_affine(piece, step.pruned, found, shape)
            _add(rows, step.inputs[0], original, difference)
            return constant, magnitude
        if isinstance(piece, Join):
            _back_join(piece, step, found, rows, self.ranges)
            zero = torch.zeros(found[0].shape[:2], dtype=torch.float64)
            return zero, zero
        if isinstance(piece, Lipschitz) and piece.windows is not None:
            original, difference, constant = back_maxima(
                piece.windows, found, self.ranges[step.inputs[0]], self.ranges[number + 1]
            )
            _add(rows, step.inputs[0], original, difference)
            return constant, constant.abs()
        if isinstance(piece, Lipschitz):
            constant = _concrete(found[0], self.ranges[number + 1].original)
            constant = constant + _concrete(found[1], self.ranges[number + 1].difference)
            return constant, constant.abs()
        source = self.ranges[step.inputs[0]]
        if number not in self._lines or source is not self._sources.get(number):
            self._lines[number] = (
                lines(piece, source.original),
                lines(piece, source.pruned),
                difference_lines(piece, source),
            )
            self._sources[number] = source
        original, difference, constant, magnitude = _back_elementwise(found, self._lines[number])
        _add(rows, step.inputs[0], original, difference)
        return constant, magnitude


def _parts(ranges: Ranges) -> tuple[Range, Range, Range]:
    return ranges.original, ranges.pruned, ranges.difference


def _add(rows: dict[int, tuple[Tensor, Tensor]], index: int, original: Tensor, difference: Tensor) -> None:
    if index in rows:
        known = rows[index]
        rows[index] = (known[0] + original, known[1] + difference)
    else:
        rows[index] = (original, difference)


def _concrete(coefficients: Tensor, part: Range) -> Tensor:
    """The largest value of rows of coefficients over a range."""
    flat = coefficients.flatten(2)
    low, high = part.low.flatten(1)[:, :, None], part.high.flatten(1)[:, :, None]
    return (flat.clamp_min(0) @ high + flat.clamp_max(0) @ low).squeeze(2)


def transpose(piece: Affine, weight: Tensor | None, rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The transposed operator applied to rows (1, rows, *output shape)."""
    if piece.kind == "linear" and weight is not None:
        return rows @ weight
    flat = rows.flatten(0, 1)
    with torch.enable_grad():
        start = torch.zeros(flat.shape[0], *shape, dtype=torch.float64, requires_grad=True)
        output = piece.apply(weight, start)
        (back,) = torch.autograd.grad(output, start, flat.reshape(output.shape))
    return back.reshape(*rows.shape[:2], *shape)


def _back_affine(
    one: Affine, two: Affine, found: tuple[Tensor, Tensor], shape: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    on_original, on_difference = found
    original = transpose(one, one.weight, on_original, shape)
    difference = transpose(two, two.weight, on_difference, shape)
    if one.weight is not None and two.weight is not None and not torch.equal(one.weight, two.weight):
        original = original + transpose(one, two.weight - one.weight, on_difference, shape)
    constant = torch.zeros(on_original.shape[:2], dtype=torch.float64)
    magnitude = torch.zeros_like(constant)
    zero = torch.zeros(1, dtype=torch.float64)
    first = zero if one.bias is None else one.bias
    shift = (zero if two.bias is None else two.bias) - first
    for rows, bias in ((on_original, first), (on_difference, shift)):
        if bool(bias.any()):
            product = (rows * bias).flatten(2)
            constant = constant + product.sum(2)
            magnitude = magnitude + product.abs().sum(2)
    return original, difference, constant, magnitude


def _back_join(
    piece: Join,
    step: Step,
    found: tuple[Tensor, Tensor],
    rows: dict[int, tuple[Tensor, Tensor]],
    ranges: Sequence[Ranges],
) -> None:
    if piece.kind == "sum":
        for index in step.inputs:
            _add(rows, index, found[0], found[1])
        return
    axis = piece.axis + 1  # rows carry one more dimension in front
    sizes = [int(ranges[index].original.low.shape[piece.axis]) for index in step.inputs]
    for index, original, difference in zip(step.inputs, found[0].split(sizes, axis), found[1].split(sizes, axis)):
        _add(rows, index, original, difference)


def _back_elementwise(
    found: tuple[Tensor, Tensor], bounds: tuple[Lines, Lines, Lines]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each entry's difference goes the way with the smaller gap: through its own lines, or through both networks'."""
    one, two, change = bounds
    separate = (one.gap + two.gap < change.gap)[:, None].to(torch.float64)
    on_original, on_difference = found
    to_pruned = separate * on_difference
    first = _through(one, on_original - to_pruned)
    second = _through(two, to_pruned)
    third = _through(change, (1 - separate) * on_difference)
    constant = first[1] + second[1] + third[1]
    magnitude = first[2] + second[2] + third[2]
    return first[0] + second[0], second[0] + third[0], constant, magnitude


def _through(bounds: Lines, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients on the argument, the constant, and the sum of its terms' magnitudes."""
    up, down = rows.clamp_min(0.0), rows.clamp_max(0.0)
    slopes = up * bounds.high_slope[:, None] + down * bounds.low_slope[:, None]
    offsets = (up * bounds.high[:, None] + down * bounds.low[:, None]).flatten(2)
    return slopes, offsets.sum(2), offsets.abs().sum(2)


def bound_relaxation(
    pair: Pair,
    region: Region,
    sizes: Sequence[Size],
    ranges: Sequence[Ranges],
    deadline: float,
    tell: Callable[[int, Sequence[Ranges]], None] | None = None,
) -> Tensor:
    """Bounds (points, outputs) on each output's difference, infinite for points that the time did not reach.

    `tell` is called with the tightened ranges of every point: other terms of a certificate gain from them too.
    """
    found = torch.full((region.points, math.prod(pair.output_shape)), float("inf"), dtype=torch.float64)
    for point in range(region.points):
        if time.monotonic() > deadline:
            break
        here = region.part(point, point + 1)
        own = [
            Ranges(*(Range(part.low[point : point + 1], part.high[point : point + 1]) for part in _parts(value)))
            for value in ranges
        ]
        remaining = max(0.0, deadline - time.monotonic()) / (region.points - point)
        found[point], tightened = _one_point(pair, here, own, sizes, time.monotonic() + remaining)
        if tell is not None:
            tell(point, tightened)
    return found


def _one_point(
    pair: Pair, here: Region, own: list[Ranges], sizes: Sequence[Size], deadline: float
) -> tuple[Tensor, list[Ranges]]:
    """Large networks go forwards, which bounds all activations at once; others backwards as far as time allows."""
    from prunus.certificates.bounds.zonotopes import affordable, zonotope_ranges

    relaxation = Relaxation(pair, here, own)
    if relaxation.forecast() > 0.5 * (deadline - time.monotonic()) and affordable(pair):
        forms = zonotope_ranges(pair, here, own, deadline)
        if forms is not None:
            relaxation = Relaxation(pair, here, forms[0])
            relaxation.refresh()
            return torch.minimum(forms[1], relaxation.outputs()[0]), relaxation.ranges
    relaxation.tighten(deadline)
    return relaxation.outputs()[0], relaxation.ranges
