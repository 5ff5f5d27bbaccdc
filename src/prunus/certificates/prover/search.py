"""Branch and bound: boxes of inputs are bounded in batches, settled where the bound suffices, and halved elsewhere.

Both sides work at once: bounds prove, and inputs tried in every box refute. The order depends on bounds alone, so the
answer after a number of boxes is always the same; the clock only stops the search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range, Ranges
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.prover.boxes import Boxes, axes, relax
from prunus.certificates.prover.goals import Goal
from prunus.certificates.prover.signs import costliest, halves

_ENTRIES = 2**23
"""Coefficients of one batch of boxes in the widest layer: 64 MB."""

_KNOWN = 2**23
"""Entries of all values of the boxes that wait, six numbers each: 400 MB."""

_FEW = 64
"""Inputs up to which boxes of them are halved."""

_ENDS = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class Found:
    """How a search ended: settled, refuted by `counterexample`, or out of boxes or time.

    bound: no input exceeds it; boxes: how many were bounded; each: (starts,) the largest bound left of every start box.
    """

    settled: bool
    bound: float
    boxes: int
    counterexample: Tensor | None
    each: Tensor


Confirm = Callable[[Tensor], Tensor | None]


def batch_size(goal: Goal) -> int:
    """Boxes bounded together: as many as fit the memory, at most 128."""
    widest = max(math.prod(step.shape) for step in goal.pair.steps)
    widest = max(widest, math.prod(goal.pair.input_shape))
    rows = 4 * min(widest, 256)
    return max(1, min(128, _ENTRIES // (rows * widest)))


def search(
    goal: Goal,
    start: Boxes,
    confirm: Confirm,
    most_boxes: int | None,
    deadline: float,
    progress: Callable[[int, int, float], None] | None = None,
) -> Found:
    """Settle all boxes, or find a counterexample.

    confirm is given a candidate input and returns the one that really counts (rounded, checked on the real modules), or
    None where it does not hold there. progress is called with boxes done, boxes waiting, and the largest
    bound.
    """
    waiting, worst = start, torch.full((len(start),), math.inf, dtype=torch.float64)
    owners, known = torch.arange(len(start)), _unknown(goal, len(start))
    each = torch.full((len(start),), -math.inf, dtype=torch.float64)
    settled_bound, done = -math.inf, 0
    size = batch_size(goal)
    while len(waiting):
        room = size if most_boxes is None else min(size, most_boxes - done)
        if room <= 0 or time.monotonic() > deadline:
            break
        order = torch.sort(worst, descending=True, stable=True).indices
        now, later = order[:room], order[room:]
        boxes, above, owner = waiting[now], worst[now], owners[now]
        bound, points, relaxation = _bounded(goal, boxes, [value.rows(now) for value in known])
        bound = torch.minimum(bound, above)  # a part is never worse than the whole
        done += len(boxes)
        refuted = _refuted(goal, boxes, points, confirm)
        if refuted is not None:
            return Found(False, math.inf, done, refuted, each)
        good = bound <= goal.limit if goal.limit > 0 else bound < goal.limit
        settled_bound = max(settled_bound, float(bound[good].max()) if bool(good.any()) else -math.inf)
        each.scatter_reduce_(0, owner[good], bound[good], "amax")
        open_rows = torch.nonzero(~good).flatten()
        waiting, worst, owners = waiting[later], worst[later], owners[later]
        known = [value.rows(later) for value in known]
        if open_rows.numel():
            parts, kept, fresh = _split(goal, boxes, relaxation, open_rows, bool(known))
            waiting = waiting.joined(parts)
            worst = torch.cat([worst, bound[kept]])
            owners = torch.cat([owners, owner[kept]])
            known = [value.joined(more) for value, more in zip(known, fresh)]
        if progress is not None:
            progress(done, len(waiting), float(worst.max()) if len(waiting) else settled_bound)
    if len(waiting) == 0:
        return Found(True, settled_bound, done, None, each)
    each.scatter_reduce_(0, owners, worst, "amax")
    return Found(False, max(settled_bound, float(worst.max())), done, None, each)


def _split(
    goal: Goal, boxes: Boxes, relaxation: Relaxation, rows: Tensor, carried: bool
) -> tuple[Boxes, Tensor, list[Ranges]]:
    """The halves of some of the boxes, from which box each comes, and what is known in it (if that is carried along).

    Boxes of few inputs are halved along an input, those of many, where margins are asked, by the sign of an activation.
    """
    pair = goal.pair
    if carried and goal.by_signs and boxes.low[0].numel() > _FEW:
        steps, entries = costliest(pair, relaxation)
        if bool((steps[rows] >= 0).all()):
            known = [value.rows(rows) for value in relaxation.ranges]
            origin = rows.repeat(2)
            return boxes[origin], origin, halves(pair, known, steps[rows], entries[rows])
    parts, kept = boxes[rows].split(axes(pair, boxes, relaxation)[rows])
    origin = rows[kept]
    return parts, origin, [value.rows(origin) for value in relaxation.ranges] if carried else []


def _unknown(goal: Goal, count: int) -> list[Ranges]:
    """Infinite ranges for every value and start box; an empty list where those of all boxes would fill the memory."""
    shapes = [goal.pair.input_shape, *(step.shape for step in goal.pair.steps)]
    if sum(math.prod(shape) for shape in shapes) * max(count, 2048) > _KNOWN:
        return []
    blank = [Range(*(torch.full((count, *shape), end, dtype=torch.float64) for end in _ENDS)) for shape in shapes]
    return [Ranges(part, part, part) for part in blank]


def _bounded(goal: Goal, boxes: Boxes, known: Sequence[Ranges]) -> tuple[Tensor, Tensor, Relaxation]:
    """Bounds (boxes,), inputs to try (centres, and corners at which the relaxation is largest), the relaxation."""
    with torch.no_grad():
        centres = boxes.inside(boxes.region.centres)
        relaxation = relax(goal.pair, boxes, known)
        bound = goal.bound(relaxation, goal.pair.outputs(centres))
        rows = relaxation.at_input
        if rows is None:
            return bound, centres, relaxation
        flat = rows.flatten(2)
        tries = [centres]
        for chosen in _steepest(flat):
            corner = torch.where(chosen > 0, boxes.high.flatten(1), boxes.low.flatten(1)).reshape(boxes.low.shape)
            tries.append(boxes.inside(corner))
    return bound, torch.cat(tries), relaxation


def _steepest(flat: Tensor) -> list[Tensor]:
    """The rows of coefficients (boxes, inputs) with the largest total, and their opposites."""
    top = flat.abs().sum(2).argmax(1)
    row = flat[torch.arange(flat.shape[0]), top]
    return [row, -row]


def _refuted(goal: Goal, boxes: Boxes, points: Tensor, confirm: Confirm) -> Tensor | None:
    with torch.no_grad():
        found = goal.measure(*goal.pair.outputs(points))
    for row in torch.sort(found, descending=True).indices[:3].tolist():
        if float(found[row]) <= max(goal.limit, 0.0):
            return None
        confirmed = confirm(points[row])
        if confirmed is not None:
            return confirmed
    return None
