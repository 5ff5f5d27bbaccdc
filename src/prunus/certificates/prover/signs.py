"""Splitting over activations: one half has the argument of an activation at or above its kink, the other at or below.

For many inputs halving a box is useless, while the sign of one argument makes that activation exact. A half keeps the
whole box of inputs and carries the sign as a range of the value before the activation; all that follows is bounded
under that condition. The ranges are about the numbers that the networks compute, and every such number is at or above
zero or at or below it, so the two halves together miss nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range, Ranges
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Elementwise


def costliest(pair: Pair, relaxation: Relaxation) -> tuple[Tensor, Tensor]:
    """(boxes,) the step and the entry of the activation with one kink at zero whose gap costs most; -1 for none."""
    count = relaxation.ranges[0].original.low.shape[0]
    most = torch.zeros(count, dtype=torch.float64)
    steps, entries = (torch.full((count,), -1) for _ in range(2))
    for number, loss in (relaxation.losses or {}).items():
        piece, index = pair.steps[number].original, pair.steps[number].inputs[0]
        if not isinstance(piece, Elementwise) or not piece.piecewise_linear or index == 0:
            continue
        source = relaxation.ranges[index]
        may_cross = (_crosses(source.original) | _crosses(source.pruned)).flatten(1)
        top, place = torch.where(may_cross & torch.isfinite(loss.flatten(1)), loss.flatten(1), 0.0).max(1)
        better = top > most
        most = torch.where(better, top, most)
        steps, entries = torch.where(better, number, steps), torch.where(better, place, entries)
    return steps, entries


def _crosses(part: Range) -> Tensor:
    return (part.low < 0) & (part.high > 0)


def halves(pair: Pair, known: Sequence[Ranges], steps: Tensor, entries: Tensor) -> list[Ranges]:
    """The ranges of the halves at or above zero, then of those at or below; known: of the boxes to be split.

    The original's sign is split first, and the pruned network's where that is known.
    """
    made = [value.joined(value) for value in known]
    count = len(steps)
    for row, (number, entry) in enumerate(zip(steps.tolist(), entries.tolist())):
        value = made[pair.steps[number].inputs[0]]
        parts = [[part.low.flatten(1), part.high.flatten(1)] for part in (value.original, value.pruned)]
        change = [side.flatten(1)[row, entry] for side in (value.difference.low, value.difference.high)]
        first = 0 if bool(parts[0][0][row, entry] < 0 < parts[0][1][row, entry]) else 1
        if first == 1:
            change = [-change[1], -change[0]]
        for half, side in ((row, 0), (row + count, 1)):
            tighter = torch.maximum if side == 0 else torch.minimum
            parts[first][side][half, entry] = 0.0
            parts[1 - first][side][half, entry] = tighter(parts[1 - first][side][half, entry], change[side])
    return made
