"""Affine forms propagated forwards: bounds before every activation of a large network, for a small neighbourhood.

A value is `m + G (x - c) + E e + b`: a middle, its derivative by the input, columns E for the errors of earlier
relaxations (each e in [-1, 1], followed one by one), and a box |b| <= box for errors beyond the affordable columns. A
linear step maps all of them; an activation is replaced by a slope and an error per entry (the zonotopes of Singh et
al., 2018). Both networks are treated alike, and the columns of the input are shared, so the difference of the outputs
keeps what they have in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range, Ranges
from prunus.certificates.bounds.lines import lines
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz, ValueProduct

_SLACK = 1e-9
_FEWEST_ERRORS = 2000
_ENTRIES = 2**27
"""Most entries of the columns of one value (1 GB)."""

_BLOCK = 2**19
"""Entries of the columns worked on at once: 4 MB, which fits a processor's cache."""


@dataclass(eq=False)
class Form:
    """middle and box (*shape); columns (inputs + errors, *shape), those of the input first.

    What an activation does to the columns waits until they are read: `slope` multiplies those stored, and `fresh`
    (entries, errors) are columns with one entry each.
    """

    middle: Tensor
    stored: Tensor
    box: Tensor
    slope: Tensor | None = None
    fresh: tuple[Tensor, Tensor] | None = None

    @property
    def count(self) -> int:
        return self.stored.shape[0] + (0 if self.fresh is None else self.fresh[0].numel())

    def block(self, start: int, stop: int) -> Tensor:
        """Columns start..stop; beyond the last they are zero."""
        own = self.stored[start : min(stop, self.stored.shape[0])]
        if self.slope is not None:
            own = own * self.slope
        missing = stop - start - own.shape[0]
        if missing == 0:
            return own
        rest = own.new_zeros(missing, *self.middle.shape)
        if self.fresh is not None:
            first = start + own.shape[0] - self.stored.shape[0]
            entries, errors = (part[first : first + missing] for part in self.fresh)
            rest.flatten(1)[torch.arange(entries.numel()), entries] = errors
        return torch.cat([own, rest])

    def blocks(self, count: int, at: int) -> Iterator[tuple[int, Tensor]]:
        """Pieces of the first `count` columns, cut also at column `at`."""
        size = max(1, _BLOCK // max(1, self.middle.numel()))
        for start, end in ((0, min(at, count)), (at, count)):
            for first in range(start, end, size):
                yield first, self.block(first, min(first + size, end))

    def reach(self, region: Region, inputs: int) -> Tensor:
        """How far an entry can be from its middle."""
        squares, far = torch.zeros_like(self.middle), self.box.clone()
        for start, part in self.blocks(self.count, inputs):
            if start >= inputs:
                far += part.abs().sum(0)
            elif region.half is None:
                squares += torch.linalg.vector_norm(part, dim=0) ** 2
            else:
                half = region.half.flatten()[start : start + part.shape[0]]
                far += torch.einsum("c...,c->...", part.abs(), half)
        if region.half is None:
            far += region.radius * squares.sqrt()
        return far + _SLACK * (far + self.middle.abs() + 1e-3)


class _Room:
    """Memory for columns, used again when a value is forgotten: fresh pages cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._taken: dict[int, Tensor] = {}

    def take(self, count: int, shape: Sequence[int]) -> Tensor:
        entries = count * math.prod(shape)
        fitting = [part for part in self._free if part.numel() >= entries]
        if fitting:
            best = min(fitting, key=Tensor.numel)
            self._free = [part for part in self._free if part is not best]
        else:
            self._free.clear()  # all too small, and what comes needs more rather than less
            best = torch.empty(entries + entries // 8, dtype=torch.float64)
        self._taken[best.data_ptr()] = best
        return best[:entries].reshape(count, *shape)

    def give(self, columns: Tensor) -> None:
        base = self._taken.pop(columns.data_ptr(), None)
        if base is not None:
            self._free.append(base)


def affordable(pair: Pair) -> bool:
    """Do the columns of the largest value fit, with some room for errors?"""
    inputs = int(torch.tensor(pair.input_shape).prod())
    largest = max(int(torch.tensor(step.shape).prod()) for step in pair.steps)
    return (inputs + _FEWEST_ERRORS) * largest <= _ENTRIES


def zonotope_ranges(
    pair: Pair, region: Region, ranges: Sequence[Ranges], deadline: float
) -> tuple[list[Ranges], Tensor] | None:
    """Tightened ranges, and bounds (outputs,) on each output's difference; None where the time runs out."""
    tightened, room = list(ranges), _Room()
    last: list[Form] = []
    inputs = int(region.centres[0].numel())
    for pruned in (False, True):
        forms = _Forms(pair, region, pruned, room)
        for number in range(len(pair.steps)):
            if time.monotonic() > deadline:
                return None
            _meet(tightened, number, forms, pruned)
            forms.advance(number, tightened)
        last.append(forms.values[len(pair.steps)])
    return tightened, _difference(last[0], last[1], region, inputs)


def _meet(ranges: list[Ranges], number: int, forms: _Forms, pruned: bool) -> None:
    """Before an activation, intersect the known range with the one the affine form implies."""
    step = forms.pair.steps[number]
    if not isinstance(step.original, Elementwise):
        return
    index = step.inputs[0]
    form = forms.values[index]
    far = form.reach(forms.region, forms.inputs)
    found = Range((form.middle - far)[None], (form.middle + far)[None])
    known = ranges[index]
    original, other = known.original, known.pruned
    if pruned:
        other = other.meet(found)
    else:
        original = original.meet(found)
    ranges[index] = Ranges(original, other, known.difference).tightened()


def _difference(one: Form, two: Form, region: Region, inputs: int) -> Tensor:
    first, second = one.block(0, one.count), two.block(0, two.count)
    columns = torch.cat([second[:inputs] - first[:inputs], first[inputs:], second[inputs:]])
    form = Form(two.middle - one.middle, columns, one.box + two.box)
    far = form.reach(region, inputs)
    return (form.middle.abs() + far).flatten() * (1 + 1e-12)


class _Forms:
    """The forms of one network; a value is forgotten after its last reader."""

    def __init__(self, pair: Pair, region: Region, pruned: bool, room: _Room) -> None:
        self.pair, self.region, self._pruned = pair, region, pruned
        centre = region.centres[0]
        self.inputs = int(centre.numel())
        columns = torch.eye(self.inputs, dtype=torch.float64).reshape(self.inputs, *centre.shape)
        self.values: dict[int, Form] = {0: Form(centre, columns, torch.zeros_like(centre))}
        self._errors = 0
        self._room = room
        self._last = {index: number for number, step in enumerate(pair.steps) for index in step.inputs}

    def advance(self, number: int, ranges: Sequence[Ranges]) -> None:
        step = self.pair.steps[number]
        self.values[number + 1] = self._step(step, number, ranges)
        for index in set(step.inputs):
            if self._last[index] == number:
                stored = self.values.pop(index).stored
                if all(form.stored is not stored for form in self.values.values()):
                    self._room.give(stored)

    def _step(self, step: Step, number: int, ranges: Sequence[Ranges]) -> Form:
        piece = step.pruned if self._pruned else step.original
        if isinstance(piece, Affine):
            return self._affine(piece, self.values[step.inputs[0]])
        if isinstance(piece, Join):
            return self._join(piece, [self.values[index] for index in step.inputs])
        part = ranges[number + 1].pruned if self._pruned else ranges[number + 1].original
        if isinstance(piece, (Lipschitz, ValueProduct)):
            none = torch.zeros(self.inputs + self._errors, *step.shape, dtype=torch.float64)
            return Form(part.middle[0], none, part.half[0] * (1 + 1e-12))
        before = ranges[step.inputs[0]].pruned if self._pruned else ranges[step.inputs[0]].original
        return self._activate(piece, self.values[step.inputs[0]], before, self._most_errors(number))

    def _affine(self, piece: Affine, form: Form) -> Form:
        middle = piece.run(form.middle[None])[0]
        columns = self._room.take(form.count, middle.shape)
        for start, part in form.blocks(form.count, form.count):
            columns[start : start + part.shape[0]] = piece.apply(piece.weight, part)
        return Form(middle, columns, piece.magnitude(form.box[None])[0] * (1 + 1e-12))

    def _join(self, piece: Join, forms: Sequence[Form]) -> Form:
        count = max(form.count for form in forms)
        single = Join(piece.kind, piece.axis)
        middle = single.run([form.middle[None] for form in forms])[0]
        box = single.run([form.box[None] for form in forms])[0]
        columns = self._room.take(count, middle.shape)
        size = max(1, _BLOCK // middle.numel())
        for start in range(0, count, size):
            stop = min(start + size, count)
            columns[start:stop] = single.run([form.block(start, stop) for form in forms])
        return Form(middle, columns, box)

    def _most_errors(self, number: int) -> int:
        """Error columns that the largest value still to come can carry."""
        largest = max(math.prod(step.shape) for step in self.pair.steps[number:])
        return _ENTRIES // largest - self.inputs

    def _activate(self, piece: Elementwise, form: Form, part: Range, most: int) -> Form:
        bounds = lines(piece, part)
        # One slope for both sides: the chord, which is the upper line of convex and the lower one of concave pieces.
        slope = torch.where(bounds.high.abs() > 0, bounds.high_slope, bounds.low_slope)[0]
        low, high = torch.minimum(bounds.low, bounds.high)[0], torch.maximum(bounds.low, bounds.high)[0]
        if piece.piecewise_linear:
            low, high = low.clamp_max(0.0), high.clamp_min(0.0)
        error = (high - low) / 2 * (1 + 1e-12)
        middle = slope * form.middle + (high + low) / 2
        box = form.box * slope.abs()
        crossing = torch.nonzero(error.flatten() > 0).flatten()
        room = max(0, most - self._errors)
        if crossing.numel() > room:
            order = error.flatten()[crossing].argsort(descending=True)
            crossing, rest = crossing[order[:room]], crossing[order[room:]]
            flat = box.flatten().clone()
            flat[rest] += error.flatten()[rest]
            box = flat.reshape(box.shape)
        # The error columns of all values are counted together: other branches may have some that this one lacks.
        missing = self.inputs + self._errors - form.count
        before = form.fresh if form.fresh is not None else (crossing[:0], error.flatten()[:0])
        blank = torch.zeros(missing, dtype=crossing.dtype), torch.zeros(missing, dtype=torch.float64)
        scaled = before[1] * slope.flatten()[before[0]]
        entries = torch.cat([before[0], blank[0], crossing])
        errors = torch.cat([scaled, blank[1], error.flatten()[crossing]])
        self._errors += crossing.numel()
        whole = slope if form.slope is None else form.slope * slope
        return Form(middle, form.stored, box, whole, (entries, errors))
