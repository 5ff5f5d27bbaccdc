"""Bounds for a batch of input boxes at once: the linear relaxation of the pair on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Ranges, propagate_ranges
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair

_TRIED = 32
"""Inputs of a box that are compared before it is halved."""


@dataclass(frozen=True, eq=False)
class Clipped(Region):
    """Boxes of which only the part inside a ball counts: `balls` (boxes, *shape) are the balls' centres."""

    balls: Tensor | None = None
    reach: float = 0.0

    def spread(self, rows: Tensor) -> Tensor:
        """Largest `rows . (x - c)`: the box allows one value, the ball another, and the smaller one holds."""
        inside = super().spread(rows)
        if self.balls is None:
            return inside
        flat = rows.flatten(2)
        shift = torch.einsum("prn,pn->pr", flat, (self.balls - self.centres).flatten(1))
        ball = shift + self.reach * torch.linalg.vector_norm(flat, dim=2) * (1 + 1e-12)
        return torch.minimum(inside, ball + 1e-12 * shift.abs())


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes low <= x <= high, tensors (boxes, *input shape); with `balls`, only what is within `reach` of these."""

    low: Tensor
    high: Tensor
    balls: Tensor | None = None
    reach: float = 0.0

    def __len__(self) -> int:
        return int(self.low.shape[0])

    def __getitem__(self, rows: Tensor | slice) -> Boxes:
        return Boxes(self.low[rows], self.high[rows], None if self.balls is None else self.balls[rows], self.reach)

    def joined(self, other: Boxes) -> Boxes:
        balls = None if self.balls is None or other.balls is None else torch.cat([self.balls, other.balls])
        return Boxes(torch.cat([self.low, other.low]), torch.cat([self.high, other.high]), balls, self.reach)

    @property
    def half(self) -> Tensor:
        return (self.high - self.low) / 2

    @property
    def region(self) -> Clipped:
        """Centres and half-widths, widened by the rounding of the midpoint."""
        centre = (self.low + self.high) / 2
        half = torch.maximum(self.high - centre, centre - self.low) * (1 + 1e-15) + 1e-300
        longest = float(torch.linalg.vector_norm(half.flatten(1), dim=1).max()) * (1 + 1e-12)
        return Clipped(centre, longest, half, self.balls, self.reach)

    def inside(self, points: Tensor) -> Tensor:
        """The nearest points of the boxes (and balls) to given ones, one for each box."""
        points = torch.minimum(torch.maximum(points, self.low), self.high)
        if self.balls is None:
            return points
        move = points - self.balls
        length = torch.linalg.vector_norm(move.flatten(1), dim=1).reshape(-1, *[1] * (move.ndim - 1))
        return cast("Tensor", self.balls + move * (self.reach / length.clamp_min(1e-300)).clamp_max(1.0))

    def contain(self, points: Tensor) -> Tensor:
        """True where a point lies in its box and ball."""
        found = ((points >= self.low) & (points <= self.high)).flatten(1).all(1)
        if self.balls is not None:
            found &= torch.linalg.vector_norm((points - self.balls).flatten(1), dim=1) <= self.reach
        return found

    def split(self, axes: Tensor) -> tuple[Boxes, Tensor]:
        """Each box halved along its own axis (boxes,) of the flattened input, and from which box each half comes.

        Halves outside their ball are dropped.
        """
        low, high = self.low.flatten(1), self.high.flatten(1)
        rows = torch.arange(len(self))
        middle = (low[rows, axes] + high[rows, axes]) / 2
        left, right = high.clone(), low.clone()
        left[rows, axes] = middle
        right[rows, axes] = middle
        shape = self.low.shape[1:]
        balls = None if self.balls is None else torch.cat([self.balls, self.balls])
        halves = Boxes(
            torch.cat([low, right]).reshape(-1, *shape), torch.cat([left, high]).reshape(-1, *shape), balls, self.reach
        )
        origin = rows.repeat(2)
        if balls is None:
            return halves, origin
        nearest = torch.minimum(torch.maximum(balls, halves.low), halves.high)
        distance = torch.linalg.vector_norm((nearest - balls).flatten(1), dim=1)
        kept = torch.nonzero(distance <= self.reach * (1 + 1e-12)).flatten()
        return halves[kept], origin[kept]


def relax(pair: Pair, boxes: Boxes, known: Sequence[Ranges] = ()) -> Relaxation:
    """The tightened relaxation of a batch of boxes, about the values that both networks really compute.

    known: ranges that hold in these boxes because they hold in larger ones; activations that were settled there stay so
    and cost nothing here.
    """
    region = boxes.region
    with torch.no_grad():
        ranges = propagate_ranges(pair, region, computed=True)
        if known:
            ranges = [one.meet(two) for one, two in zip(ranges, known, strict=True)]
        relaxation = Relaxation(pair, region, ranges, lean=True, computed=True)
        relaxation.tighten()
    return relaxation


def axes(pair: Pair, boxes: Boxes, relaxation: Relaxation) -> Tensor:
    """(boxes,) the input along which halving each box should gain most, of the flattened input.

    A bound is loose where activations have a gap, and a gap shrinks with the range before it. An input's score is what
    the gaps cost (`relaxation.losses`), each times the squared share of the range before it that this input makes,
    measured between two opposite faces of the box. Of many inputs only those that move the outputs most are tried.
    """
    half = boxes.half.flatten(1)
    count, size = half.shape
    strength = _sensitivities(pair, boxes)
    tried = strength.topk(min(size, _TRIED), dim=1).indices
    with torch.no_grad():
        moves = torch.zeros(count, tried.shape[1], size, dtype=torch.float64)
        moves.scatter_(2, tried[:, :, None], half.gather(1, tried)[:, :, None])
        centre = boxes.region.centres.flatten(1)[:, None]
        faces = torch.cat([centre - moves, centre + moves]).reshape(-1, *boxes.low.shape[1:])
        values = pair.run(faces, pruned=False)
        # Where no gap costs anything: the input that moves the outputs most.
        score = 1e-12 * strength.gather(1, tried)
        for number, loss in (relaxation.losses or {}).items():
            index = pair.steps[number].inputs[0]
            below, above = values[index].reshape(2, count, tried.shape[1], -1)
            part = relaxation.ranges[index].original
            width = (part.high - part.low).flatten(1).clamp_min(1e-300)[:, None]
            share = ((above - below).abs() / width).clamp_max(1.0)
            score = score + (share.square() @ loss.flatten(1)[:, :, None]).squeeze(2)
        score = torch.where(torch.isfinite(score), score, 0.0)
        return tried.gather(1, score.argmax(1, keepdim=True)).squeeze(1)


def _sensitivities(pair: Pair, boxes: Boxes) -> Tensor:
    """(boxes, inputs): how strongly both networks' outputs move with each input at the centre, times its half-width."""
    centre = boxes.region.centres.clone().requires_grad_()
    total = torch.zeros(centre.shape[0], centre[0].numel(), dtype=torch.float64)
    with torch.enable_grad():
        one, two = pair.outputs(centre)
        for column in range(min(one.shape[1], 16)):
            for output in (one, two - one):
                (back,) = torch.autograd.grad(output[:, column].sum(), centre, retain_graph=True)
                total = total + back.flatten(1).abs()
    # Where all gradients are zero no direction is best: then the widest input.
    return (total.detach() + 1e-12) * boxes.half.flatten(1)
