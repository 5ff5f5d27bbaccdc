"""How far many gaps can be off together inside a ball.

Linear bounds take every activation at its own worst input. In a ball no single input is the worst for all of them:
where activation u can exceed its line's value at the centre by at most `c_u ||G_u m||` after a move m of the input, all
of them together exceed it by at most `||c|| ||G|| r`, G with the G_u as its blocks of rows (Cauchy and Schwarz). The
blocks are scaled first, so that small ones do not pay for large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.backward import back_affine_one
from prunus.certificates.bounds.intervals import Noise
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Affine

_OUT = 1 + 1e-9
"""Covers the rounding of norms and sums in float64."""

_COVER = 1 + 1e-6
"""The rounding of float32 that rows count, a hair larger: it covers the rounding of the rows in float64 too."""

_MOST_ROWS, _MOST_INPUTS = 8192, 4096


def weighed(rows: Tensor, amount: Tensor) -> Tensor:
    """What rounding of at most `amount` (points, *shape) adds to rows of coefficients, (points, rows)."""
    return (rows.abs().flatten(2) @ amount.flatten(1)[:, :, None]).squeeze(2) * _COVER


@dataclass(frozen=True, eq=False)
class View:
    """How a value comes from one ball, by linear steps alone.

    centres: the value in both networks at the ball's centre. back: `back(rows, pruned)` gives rows (1, count, ...) on
    the value as rows (count, inputs) on the ball, and what rounding adds to each.
    """

    centres: tuple[Tensor, Tensor]
    radius: float
    inputs: int
    back: Callable[[Tensor, bool], tuple[Tensor, Tensor]]

    def at_input(self, rows: Tensor, sides: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
        """Rows on the value as rows on the ball, in one network or in the difference of both, and their rounding."""
        found = [self.back(rows, side) for side in sides]
        if len(found) == 1:
            return found[0]
        return found[1][0] - found[0][0], found[0][1] + found[1][1]


def linear_view(pair: Pair, region: Region, index: int, noise: Mapping[int, Noise]) -> View | None:
    """How a value comes from one ball by linear steps alone, if it does."""
    steps, place = pair.steps, index
    while place and isinstance(steps[place - 1].original, Affine):
        place = steps[place - 1].inputs[0]
    if place or type(region) is not Region or region.half is not None or region.points > 1:
        return None
    shapes = [pair.input_shape, *(step.shape for step in steps)]
    centres = [pair.run(region.centres, pruned)[index] for pruned in (False, True)]
    slip = 1e-12 * (float(region.centres.abs().max()) + max(float(centre.abs().max()) for centre in centres))

    def back(rows: Tensor, pruned: bool) -> tuple[Tensor, Tensor]:
        found, value = rows.reshape(1, -1, *shapes[index]), index
        drift = slip * found.abs().flatten(2)[0].sum(1)
        while value:
            step = steps[value - 1]
            piece = step.pruned if pruned else step.original
            assert isinstance(piece, Affine)
            amount = noise.get(value - 1, (None, None))[int(pruned)]
            if amount is not None:
                drift = drift + weighed(found, amount)[0]
            value = step.inputs[0]
            found = back_affine_one(piece, found, shapes[value])[0]
            drift = drift + slip * found.abs().flatten(2)[0].sum(1)
        return found.flatten(2)[0], drift

    return View((centres[0], centres[1]), region.radius, region.centres[0].numel(), back)


@dataclass(frozen=True, eq=False)
class Slack:
    """Units of one point whose upper lines (lower ones, with `sign` -1) leave room at the centre.

    windows: to which output each unit belongs (units,). room: how far its line is from the function at the centre.
    rate: by how much of that the function may use for a move of the input of length 1, scaled. drift: what rounding
    takes of it.
    """

    windows: Tensor
    sign: float
    room: Tensor
    rate: Tensor
    drift: Tensor


@dataclass(frozen=True, eq=False)
class GapBlocks:
    """Rows at the input (rows, inputs) of some units, scaled, with a Gram matrix to take norms of several together."""

    slacks: tuple[Slack, ...]
    gram: Tensor


def largest(blocks: Sequence[GapBlocks]) -> float:
    """An upper bound on the 2-norm of all rows of several blocks."""
    total = torch.stack([block.gram for block in blocks]).sum(0)
    top = float(torch.linalg.eigvalsh(total)[-1].clamp_min(0.0))
    return math.sqrt(top * _OUT + 1e-12 * float(total.trace())) * _OUT


def affordable(rows: int, inputs: int) -> bool:
    return 0 < rows <= _MOST_ROWS and inputs <= _MOST_INPUTS


def saving(parts: Sequence[tuple[Tensor, GapBlocks]], reach: float) -> Tensor:
    """What rows (1, rows, outputs) of coefficients may take off their constants; reach: norm of all blocks x radius."""
    first = parts[0][0]
    room = torch.zeros(first.shape[:2], dtype=torch.float64)
    drift, square = torch.zeros_like(room), torch.zeros_like(room)
    for rows, blocks in parts:
        for slack in blocks.slacks:
            share = (rows[:, :, slack.windows] * slack.sign).clamp_min(0.0)
            room = room + share @ slack.room
            drift = drift + share @ slack.drift
            square = square + (share * slack.rate).square().sum(2)
    together = reach * torch.sqrt(square + 1e-300) * _OUT + drift * _OUT
    return (room * (1 - 1e-9) - together).clamp_min(0.0)
