"""Affine forms propagated forwards: bounds before every activation of a large network, for a small neighbourhood.

A value is `m + G (x - c) + E e + b`: a middle, its derivative by the input, columns E for the errors of earlier
relaxations (each e in [-1, 1], followed one by one), and a box |b| <= box for errors beyond the affordable columns. A
linear step maps all of them; an activation is replaced by a slope and an error per entry (the zonotopes of Singh et
al., 2018). Both networks are treated alike, and the columns of the input are shared, so the difference of the outputs
keeps what they have in common.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.domains import Region
from prunus.certificates.graph import Pair, Step
from prunus.certificates.intervals import Range, Ranges
from prunus.certificates.pieces import Affine, Elementwise, Join, Lipschitz
from prunus.certificates.relaxation import lines

_SLACK = 1e-9
_MOST_ERRORS = 3000
_ENTRIES = 2**27
"""Most entries of the columns of one value (1 GB)."""


@dataclass(frozen=True, eq=False)
class Form:
    """middle and box (*shape); columns (inputs + errors, *shape), those of the input first."""

    middle: Tensor
    columns: Tensor
    box: Tensor

    def reach(self, region: Region, inputs: int) -> Tensor:
        """How far an entry can be from its middle."""
        own, errors = self.columns[:inputs], self.columns[inputs:]
        if region.half is None:
            far = region.radius * torch.linalg.vector_norm(own, dim=0)
        else:
            far = torch.einsum("c...,c->...", own.abs(), region.half.flatten())
        far = far + errors.abs().sum(0) + self.box
        return far + _SLACK * (far + self.middle.abs() + 1e-3)


def affordable(pair: Pair) -> bool:
    """Do the columns of the largest value fit?"""
    inputs = int(torch.tensor(pair.input_shape).prod())
    largest = max(int(torch.tensor(step.shape).prod()) for step in pair.steps)
    return (inputs + _MOST_ERRORS) * largest <= _ENTRIES


def forward_forms(
    pair: Pair, region: Region, ranges: Sequence[Ranges], deadline: float
) -> tuple[list[Ranges], float] | None:
    """Tightened ranges, and a bound on the 2-norm of the output's difference; None where the time runs out."""
    tightened = list(ranges)
    last: list[Form] = []
    inputs = int(region.centres[0].numel())
    for pruned in (False, True):
        forms = _Forms(pair, region, pruned)
        for number in range(len(pair.steps)):
            if time.monotonic() > deadline:
                return None
            _meet(tightened, number, forms, pruned)
            forms.advance(number, tightened)
        last.append(forms.values[len(pair.steps)])
    return tightened, _difference(last[0], last[1], region, inputs)


def _meet(ranges: list[Ranges], number: int, forms: _Forms, pruned: bool) -> None:
    """Before an activation, let the form speak."""
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


def _difference(one: Form, two: Form, region: Region, inputs: int) -> float:
    shared = two.columns[:inputs] - one.columns[:inputs]
    errors = torch.cat([one.columns[inputs:], two.columns[inputs:]])
    form = Form(two.middle - one.middle, torch.cat([shared, errors]), one.box + two.box)
    far = form.reach(region, inputs)
    return float(torch.linalg.vector_norm(form.middle.abs() + far)) * (1 + 1e-12)


class _Forms:
    """The forms of one network; a value is forgotten after its last reader."""

    def __init__(self, pair: Pair, region: Region, pruned: bool) -> None:
        self.pair, self.region, self._pruned = pair, region, pruned
        centre = region.centres[0]
        self.inputs = int(centre.numel())
        columns = torch.eye(self.inputs, dtype=torch.float64).reshape(self.inputs, *centre.shape)
        self.values: dict[int, Form] = {0: Form(centre, columns, torch.zeros_like(centre))}
        self._errors = 0
        self._last = {index: number for number, step in enumerate(pair.steps) for index in step.inputs}

    def advance(self, number: int, ranges: Sequence[Ranges]) -> None:
        step = self.pair.steps[number]
        self.values[number + 1] = self._step(step, number, ranges)
        for index in set(step.inputs):
            if self._last[index] == number:
                del self.values[index]

    def _step(self, step: Step, number: int, ranges: Sequence[Ranges]) -> Form:
        piece = step.pruned if self._pruned else step.original
        if isinstance(piece, Affine):
            return self._affine(piece, self.values[step.inputs[0]])
        if isinstance(piece, Join):
            return self._join(piece, [self.values[index] for index in step.inputs])
        part = ranges[number + 1].pruned if self._pruned else ranges[number + 1].original
        if isinstance(piece, Lipschitz):
            none = torch.zeros(self.inputs + self._errors, *step.shape, dtype=torch.float64)
            return Form(part.middle[0], none, part.half[0] * (1 + 1e-12))
        before = ranges[step.inputs[0]].pruned if self._pruned else ranges[step.inputs[0]].original
        return self._activate(piece, self.values[step.inputs[0]], before)

    def _affine(self, piece: Affine, form: Form) -> Form:
        middle = piece.run(form.middle[None])[0]
        parts = [piece.apply(piece.weight, part) for part in form.columns.split(256)]
        return Form(middle, torch.cat(parts), piece.magnitude(form.box[None])[0] * (1 + 1e-12))

    def _padded(self, form: Form, count: int) -> Tensor:
        missing = count - form.columns.shape[0]
        if missing == 0:
            return form.columns
        return torch.cat([form.columns, form.columns.new_zeros(missing, *form.middle.shape)])

    def _join(self, piece: Join, forms: Sequence[Form]) -> Form:
        count = max(form.columns.shape[0] for form in forms)
        columns = [self._padded(form, count) for form in forms]
        single = Join(piece.kind, piece.axis)
        middle = single.run([form.middle[None] for form in forms])[0]
        box = single.run([form.box[None] for form in forms])[0]
        return Form(middle, single.run(columns), box)

    def _activate(self, piece: Elementwise, form: Form, part: Range) -> Form:
        bounds = lines(piece, part)
        # One slope for both sides: the chord, which is the upper line of convex and the lower one of concave pieces.
        slope = torch.where(bounds.high.abs() > 0, bounds.high_slope, bounds.low_slope)[0]
        low, high = torch.minimum(bounds.low, bounds.high)[0], torch.maximum(bounds.low, bounds.high)[0]
        if piece.piecewise_linear:
            low, high = low.clamp_max(0.0), high.clamp_min(0.0)
        error = (high - low) / 2 * (1 + 1e-12)
        middle = slope * form.middle + (high + low) / 2
        columns = form.columns * slope
        box = form.box * slope.abs()
        crossing = torch.nonzero(error.flatten() > 0).flatten()
        room = max(0, _MOST_ERRORS - self._errors)
        if crossing.numel() > room:
            order = error.flatten()[crossing].argsort(descending=True)
            crossing, rest = crossing[order[:room]], crossing[order[room:]]
            flat = box.flatten().clone()
            flat[rest] += error.flatten()[rest]
            box = flat.reshape(box.shape)
        if crossing.numel() == 0:
            return Form(middle, columns, box)
        start = self.inputs + self._errors
        fresh = torch.zeros(crossing.numel(), error.numel(), dtype=torch.float64)
        fresh[torch.arange(crossing.numel()), crossing] = error.flatten()[crossing]
        columns = torch.cat([self._padded(Form(middle, columns, box), start), fresh.reshape(-1, *error.shape)])
        self._errors += crossing.numel()
        return Form(middle, columns, box)
