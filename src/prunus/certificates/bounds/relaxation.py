"""Linear relaxation of the stacked pair (ledger P-27), propagated backwards through the graph.

The pair is written as (y*, d): the original's values and the difference. A linear step is exact,
`d' = W d + D y* + shift`. An activation is replaced by linear bounds, entry by entry, in one of two ways, whichever
leaves the smaller gap: each network by its own lines (CROWN), or the difference by `d' = s d` with s among the slopes
its argument can have. Rows of coefficients run from a value back to the input, where the region gives their largest
value. Bounds before activations are first tightened in the same way, as far as the time allows: rows on one network run
through that network alone, which is a third of the work of rows on the difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.backward import (
    Both,
    back_affine,
    back_affine_one,
    back_join,
    concrete,
)
from prunus.certificates.bounds.bilinear import back_product, back_product_one, back_smooth, back_smooth_one
from prunus.certificates.bounds.intervals import Noise, Range, Ranges, computed_step, exact_step, joint, widened
from prunus.certificates.bounds.lines import Lines, Passage, choose, difference_lines, lines
from prunus.certificates.bounds.maxima import Maxima
from prunus.certificates.bounds.reach import linear_view, weighed
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz, ValueProduct

_SLACK = 1e-11
"""Relative rounding of the backward sums, taken of the sum of the magnitudes of all their terms."""

_CHUNK = 2**19
"""Coefficients held for one value at once: 4 MB, which fits a processor's cache."""


@dataclass(frozen=True, eq=False)
class Mixed:
    """An activation whose rows on the difference go in shares (points, rows, ...) through both networks' own lines."""

    one: Passage
    two: Passage
    change: Passage
    share: Tensor

    def back(self, found: Both) -> tuple[Both, Tensor, Tensor]:
        own = found[1] * self.share
        first, second, third = self.one.back(found[0] - own), self.two.back(own), self.change.back(found[1] - own)
        constant, magnitude = first[1] + second[1] + third[1], first[2] + second[2] + third[2]
        return (first[0] + second[0], second[0] + third[0]), constant, magnitude


class Relaxation:
    """Bounds for a batch of points or boxes: `ranges` are tightened in place of the list, step by step.

    With `lean`, only the original and the difference are tightened by rows of their own; the pruned network follows as
    their sum. With `computed`, everything is about the values that the networks compute in their own precision: every
    step may be off by its rounding, which runs through the same relaxation. Where `losses` is set to a dictionary, rows
    note in it what the gap of each activation costs them, (points, *shape) by step.
    """

    def __init__(
        self, pair: Pair, region: Region, ranges: Sequence[Ranges], lean: bool = False, computed: bool = False
    ) -> None:
        self._pair, self._region, self._lean, self._computed = pair, region, lean, computed
        self._noise: dict[int, Noise] = {}
        self.ranges = list(ranges)
        self.at_input: Tensor | None = None
        self.rounding = self._drift = torch.zeros(0)
        self._passages: dict[int, tuple[Passage, Passage, Passage, Tensor]] = {}
        self._sources: dict[int, Ranges] = {}
        self._maxima: dict[int, Maxima] = {}
        self.mixed: dict[int, Mixed] = {}
        self.losses: dict[int, Tensor] | None = None
        self._gaps: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    # ------------------------------------------------------------------------------------------------------ tightening

    def tighten(self, deadline: float = math.inf) -> bool:
        """Tighten the bounds before every activation; False where the time ran out on the way."""
        steps = self._pair.steps
        done, tight = True, set[int]()
        for number, step in enumerate(steps):
            if number:
                self._renew(number - 1)
            if isinstance(step.original, (Affine, Join)):
                continue
            for index in step.inputs[:1] if isinstance(step.original, Elementwise) else step.inputs:
                done &= self._tighten_before(index, step, deadline, tight)
            if isinstance(step.original, Lipschitz) and step.original.windows is not None:
                done &= self._tighten_maxima(number, step.original.windows, deadline)
        if steps:
            self._renew(len(steps) - 1)
        return done

    def _tighten_before(self, index: int, step: Step, deadline: float, tight: set[int]) -> bool:
        """Entries that were only moved are tightened where they come from."""
        way = []
        while index and _only_moves(self._pair.steps[index - 1]):
            way.append(index - 1)
            index = self._pair.steps[index - 1].inputs[0]
        source = self.ranges[index]
        if isinstance(step.original, Elementwise) and not way:
            both = joint(source)
            bottom, top = step.original.slopes(both.low, both.high)
            wanted = ~(top <= bottom)
        else:
            wanted = torch.ones_like(source.original.low, dtype=torch.bool)
        wanted = wanted.flatten(1)
        count = int(wanted.sum(1).max())
        if count == 0 or index == 0 or index in tight:
            return True
        if time.monotonic() + self._seconds(index, count * wanted.shape[0]) > deadline:
            return False
        self._tighten_value(index, wanted.to(torch.uint8).topk(count, dim=1).indices)
        tight.add(index)
        for number in reversed(way):
            self._renew(number)
        return True

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
        self.ranges[number + 1] = known.meet(fresh).tightened()

    def _seconds(self, index: int, rows: int) -> float:
        """A cautious forecast: multiplications of all rows through all steps before the value."""
        work = 0.0
        for step in self._pair.steps[:index]:
            piece = step.original
            if isinstance(piece, Affine) and piece.weight is not None:
                outputs = float(math.prod(step.shape))
                work += 3.0 * outputs * piece.terms
        return 3.0 * rows * work / 5e9

    def forecast(self) -> float:
        """Seconds that tightening every value would take if half of the entries needed it."""
        total = 0.0
        for step in self._pair.steps:
            if isinstance(step.original, Elementwise):
                total += self._seconds(step.inputs[0], math.prod(step.shape) // 2)
        return total

    def _rows_at_once(self, index: int) -> int:
        """How many rows of every point fit the memory on their way from a value to the input."""
        biggest = max(int(value.original.low.numel()) for value in self.ranges[: index + 1])
        return max(1, _CHUNK // (2 * biggest))

    def _tighten_value(self, index: int, rows: Tensor) -> None:
        """Bounds by rows of their own for the entries `rows` (points, count) of one value."""
        source = self.ranges[index]
        points, shape = rows.shape[0], source.original.low.shape[1:]
        size = math.prod(shape)
        parts = [source.original, source.pruned, source.difference]
        flat = [[part.low.flatten(1).clone(), part.high.flatten(1).clone()] for part in parts]
        step = self._rows_at_once(index)
        for start in range(0, rows.shape[1], step):
            chosen = rows[:, start : start + step]
            units = torch.zeros(points, chosen.shape[1], size, dtype=torch.float64)
            units.scatter_(2, chosen[:, :, None], 1.0)
            for (low, high), found in zip(flat, self.bounds(index, units.reshape(points, -1, *shape))):
                if found is not None:
                    high.scatter_(1, chosen, torch.minimum(high.gather(1, chosen), found.high))
                    low.scatter_(1, chosen, torch.maximum(low.gather(1, chosen), found.low))
        made = [
            Range(torch.minimum(lo, hi).reshape(points, *shape), torch.maximum(lo, hi).reshape(points, *shape))
            for lo, hi in flat
        ]
        if self._lean:
            total = Range(made[0].low + made[2].low, made[0].high + made[2].high)
            made[1] = made[1].meet(widened(total))
        self.ranges[index] = Ranges(*made).tightened()

    def bounds(self, index: int, units: Tensor) -> tuple[Range, Range | None, Range]:
        """The ranges of `units . value` (points, rows) in the original, the pruned network and their difference."""
        found: list[Range | None] = []
        for pruned in (False, True):
            if pruned and self._lean:
                found.append(None)
                continue
            found.append(self._range_one(index, units, pruned))
        none = torch.zeros_like(units)
        high, low = self.upper(index, torch.cat([none, none], dim=1), torch.cat([units, -units], dim=1)).chunk(2, 1)
        assert found[0] is not None
        return found[0], found[1], Range(-low, high)

    def _range_one(self, index: int, units: Tensor, pruned: bool) -> Range:
        """The range of `units . value` (points, rows) in one network."""
        high, low = self.upper_one(index, torch.cat([units, -units], dim=1), pruned).chunk(2, dim=1)
        return Range(-low, high)

    def _tighten_maxima(self, number: int, windows: Tensor, deadline: float) -> bool:
        """Bounds on how far other inputs of a window come up to the one that leads."""
        index = self._pair.steps[number].inputs[0]
        maxima = Maxima(windows, self.ranges[index])
        self._maxima[number] = maxima
        pairs, own = maxima.wanted(), maxima.wanted_own()
        if index == 0:
            return True
        if time.monotonic() + self._seconds(index, pairs.numel() + own.numel()) > deadline:
            return False
        step = self._rows_at_once(index)
        shape = self.ranges[index].original.low.shape[1:]
        for start in range(0, pairs.shape[1], step):
            chosen = pairs[:, start : start + step]
            units = maxima.one.rows(chosen).reshape(*chosen.shape, *shape)
            maxima.learn(chosen, *self.bounds(index, units))
        for start in range(0, own.shape[1], step):
            chosen = own[:, start : start + step]
            units = maxima.two.rows(chosen).reshape(*chosen.shape, *shape)
            maxima.learn_own(chosen, self._range_one(index, units, True))
        view = linear_view(self._pair, self._region, index, self._noise)
        if view is not None:
            maxima.see(view)
        return True

    # --------------------------------------------------------------------------------------------------------- outputs

    def outputs(self) -> Tensor:
        """Bounds (points, outputs) on the magnitude of each output's difference."""
        shape = self._pair.output_shape
        size = math.prod(shape)
        known = self.ranges[-1].difference.magnitude.flatten(1).clone()
        units = (
            torch.eye(size, dtype=torch.float64).reshape(1, size, *shape).expand(len(known), *[-1] * (len(shape) + 1))
        )
        return torch.minimum(known, self.along(units)) * (1 + 1e-12)

    def along(self, rows: Tensor) -> Tensor:
        """Bounds (points, rows) on the magnitude of the outputs' difference along rows (points, rows, *shape)."""
        index = len(self._pair.steps)
        points, count = rows.shape[:2]
        found = torch.zeros(points, count, dtype=torch.float64)
        self.rounding = torch.zeros_like(found)
        step = self._rows_at_once(index)
        for start in range(0, count, step):
            part = rows[:, start : start + step]
            both = torch.cat([part, -part], dim=1)
            upper = self.upper(index, torch.zeros_like(both), both).reshape(points, 2, -1).amax(1)
            found[:, start : start + step] = upper.clamp_min(0.0)
            self.rounding[:, start : start + step] = self._drift.reshape(points, 2, -1).amax(1)
        return found

    # ------------------------------------------------------------------------------------------------------- backwards

    def upper(self, index: int, on_original: Tensor, on_difference: Tensor) -> Tensor:
        """Upper bounds (points, rows) on `on_original . y* + on_difference . d`; rows (points, rows, *shape)."""
        rows: dict[int, Both] = {index: (on_original, on_difference)}
        total = torch.zeros(on_original.shape[:2], dtype=torch.float64)
        terms, drift = torch.zeros_like(total), torch.zeros_like(total)
        for number in range(index - 1, -1, -1):
            if number + 1 not in rows:
                continue
            found = rows.pop(number + 1)
            constant, magnitude = self._back(number, self._pair.steps[number], found, rows)
            total, terms = total + constant, terms + magnitude
            for part, amount in zip((found[0] - found[1], found[1]), self._noise.get(number, (None, None))):
                if amount is not None:
                    drift = drift + weighed(part, amount)
        self._drift = drift
        return self._at_region(rows[0][0] if 0 in rows else None, total + drift, terms)

    def upper_one(self, index: int, wanted: Tensor, pruned: bool) -> Tensor:
        """Upper bounds (points, rows) on `wanted . y` in one of the networks; rows (points, rows, *shape)."""
        rows: dict[int, Tensor] = {index: wanted}
        total = torch.zeros(wanted.shape[:2], dtype=torch.float64)
        terms = torch.zeros_like(total)
        for number in range(index - 1, -1, -1):
            if number + 1 not in rows:
                continue
            found = rows.pop(number + 1)
            constant, magnitude = self._back_one(number, self._pair.steps[number], found, rows, pruned)
            total, terms = total + constant, terms + magnitude
            amount = self._noise.get(number, (None, None))[int(pruned)]
            if amount is not None:
                total = total + weighed(found, amount)
        return self._at_region(rows.get(0), total, terms)

    def _at_region(self, coefficients: Tensor | None, total: Tensor, terms: Tensor) -> Tensor:
        self.at_input = coefficients
        if coefficients is not None:
            centre = self._region.centres.flatten(1)[:, :, None]
            flat = coefficients.flatten(2)
            spread = self._region.spread(coefficients)
            total = total + (flat @ centre).squeeze(2) + spread
            terms = terms + (flat.abs() @ centre.abs()).squeeze(2) + spread
        found = total + _SLACK * terms
        return torch.where(torch.isnan(found), torch.full_like(found, math.inf), found)

    def _passage(self, number: int, piece: Elementwise) -> tuple[Passage, Passage, Passage, Tensor]:
        """How rows pass an activation: original, pruned, difference, and where the difference goes as pruned."""
        source = self.ranges[self._pair.steps[number].inputs[0]]
        if source is not self._sources.get(number):
            one, two = lines(piece, source.original), lines(piece, source.pruned)
            change: Lines = difference_lines(piece, source)
            separate = one.gap + two.gap < change.gap
            second = Passage(choose(separate, two, change))
            self._passages[number] = (Passage(one), Passage(two), second, separate[:, None].to(torch.float64))
            self._gaps[number] = (one.gap, two.gap, torch.minimum(change.gap, one.gap + two.gap))
            self._sources[number] = source
        return self._passages[number]

    def _note(self, number: int, rows: Tensor, part: int) -> None:
        """What the gap at an activation costs, the most of all rows; part: original, pruned, difference."""
        if self.losses is not None:
            most = rows.abs().amax(1) * self._gaps[number][part]
            self.losses[number] = most + self.losses[number] if number in self.losses else most

    def _shape(self, index: int) -> tuple[int, ...]:
        return tuple(self.ranges[index].original.low.shape[1:])

    def _back_one(
        self, number: int, step: Step, found: Tensor, rows: dict[int, Tensor], pruned: bool
    ) -> tuple[Tensor, Tensor]:
        piece = step.pruned if pruned else step.original
        if isinstance(piece, Join):
            sizes = [self._shape(index)[piece.axis - 1] if piece.kind != "sum" else 0 for index in step.inputs]
            for index, part in zip(step.inputs, back_join(piece, found, sizes)):
                _add_one(rows, index, part)
            zero = torch.zeros(found.shape[:2], dtype=torch.float64)
            return zero, zero
        index = step.inputs[0]
        sides = [value.pruned if pruned else value.original for value in (self.ranges[i] for i in step.inputs)]
        if isinstance(piece, ValueProduct):
            *both, constant, magnitude = back_product_one(found, sides[0], sides[1])
            for place, part in zip(step.inputs, both):
                _add_one(rows, place, part)
            return constant, magnitude
        after = self.ranges[number + 1].pruned if pruned else self.ranges[number + 1].original
        if isinstance(piece, Affine):
            made, constant, magnitude = back_affine_one(piece, found, self._shape(index))
        elif isinstance(piece, Elementwise):
            one, two, *_ = self._passage(number, piece)
            self._note(number, found, int(pruned))
            made, constant, magnitude = (two if pruned else one).back(found)
        elif number in self._maxima:
            made, constant = self._maxima[number].back_one(found, pruned)
            magnitude = constant.abs()
            made = made.reshape(*made.shape[:2], *self._shape(index))
        elif piece.bend is not None:
            made, constant, magnitude = back_smooth_one(piece, found, sides[0], after)
        else:
            constant = concrete(found, after)
            return constant, constant.abs()
        _add_one(rows, index, made)
        return constant, magnitude

    def _back(self, number: int, step: Step, found: Both, rows: dict[int, Both]) -> tuple[Tensor, Tensor]:
        piece = step.original
        if isinstance(piece, Join):
            sizes = [self._shape(index)[piece.axis - 1] if piece.kind != "sum" else 0 for index in step.inputs]
            for index, *part in zip(step.inputs, back_join(piece, found[0], sizes), back_join(piece, found[1], sizes)):
                _add(rows, index, (part[0], part[1]))
            zero = torch.zeros(found[0].shape[:2], dtype=torch.float64)
            return zero, zero
        index = step.inputs[0]
        if isinstance(piece, ValueProduct):
            first, second = (self.ranges[place] for place in step.inputs)
            *pairs, constant, magnitude = back_product(found, first, second)
            for place, pair in zip(step.inputs, pairs):
                _add(rows, place, pair)
            return constant, magnitude
        if isinstance(piece, Affine):
            assert isinstance(step.pruned, Affine)
            made, constant, magnitude = back_affine(piece, step.pruned, found, self._shape(index))
        elif isinstance(piece, Elementwise):
            made, constant, magnitude = self._back_elementwise(number, piece, found)
        elif number in self._maxima:
            made, constant = self._maxima[number].back(found, self._shape(index))
            magnitude = constant.abs()
        elif piece.bend is not None:
            made, constant, magnitude = back_smooth(piece, found, self.ranges[index], self.ranges[number + 1])
        else:
            after = self.ranges[number + 1]
            constant = concrete(found[0], after.original) + concrete(found[1], after.difference)
            return constant, constant.abs()
        _add(rows, index, made)
        return constant, magnitude

    def _back_elementwise(self, number: int, piece: Elementwise, found: Both) -> tuple[Both, Tensor, Tensor]:
        """Each entry's difference goes the way with the smaller gap: through its own lines, or both networks'."""
        if number in self.mixed:
            return self.mixed[number].back(found)
        one, _, second, separate = self._passage(number, piece)
        on_original, on_difference = found
        self._note(number, on_original, 0)
        self._note(number, on_difference, 2)
        first = one.back(torch.addcmul(on_original, on_difference, separate, value=-1.0))
        third = second.back(on_difference)
        original = torch.addcmul(first[0], third[0], separate)
        return (original, third[0]), first[1] + third[1], first[2] + third[2]


def _only_moves(step: Step) -> bool:
    return isinstance(step.original, Affine) and step.original.kind in ("gather", "reshape")


def _add(rows: dict[int, Both], index: int, made: Both) -> None:
    known = rows.get(index)
    rows[index] = made if known is None else (known[0] + made[0], known[1] + made[1])


def _add_one(rows: dict[int, Tensor], index: int, made: Tensor) -> None:
    known = rows.get(index)
    rows[index] = made if known is None else known + made
