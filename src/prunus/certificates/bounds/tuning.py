"""Slopes chosen by gradient descent: the lower lines of ReLUs, and how a difference is split between two ways.

Below a ReLU any line through zero with a slope between its two sides is a bound, and a row on the difference may go in
any proportion through both networks' own lines or through the lines of the difference. Every row of outputs gets its
own slopes and proportions; whatever descent finds is a bound, so the best of all steps is kept (alpha-CROWN, Xu et al.
2021, on the pair).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.lines import Lines, Passage, difference_lines, lines
from prunus.certificates.bounds.relaxation import Mixed, Relaxation
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Elementwise

_RATE = 0.1


@dataclass(eq=False)
class _Knobs:
    """The free parameters of one activation, (points, rows, *shape) each, and the limits of the slopes."""

    one: Lines
    two: Lines
    change: Lines
    slopes: tuple[Tensor, Tensor]
    share: Tensor
    low: float
    high: float

    @property
    def all(self) -> list[Tensor]:
        return [*self.slopes, self.share]

    def mixed(self) -> Mixed:
        first, second = (
            Passage(bounds).with_low(slope, bounds.high_slope != bounds.low_slope)
            for bounds, slope in zip((self.one, self.two), self.slopes)
        )
        return Mixed(first, second, Passage(self.change), self.share)

    def limit_(self) -> None:
        with torch.no_grad():
            for slope in self.slopes:
                slope.clamp_(self.low, self.high)
            self.share.clamp_(0.0, 1.0)


def _knobs(relaxation: Relaxation, pair: Pair, rows: int) -> dict[int, _Knobs]:
    found = {}
    for number, step in enumerate(pair.steps):
        piece = step.original
        if not isinstance(piece, Elementwise) or not piece.piecewise_linear:
            continue
        ((_, left, right),) = piece.kinks
        if left > right:
            continue
        source = relaxation.ranges[step.inputs[0]]
        one, two, change = lines(piece, source.original), lines(piece, source.pruned), difference_lines(piece, source)

        def turned(start: Tensor) -> Tensor:
            return start[:, None].expand(-1, rows, *start.shape[1:]).clone().requires_grad_()

        share = turned((one.gap + two.gap < change.gap).to(torch.float64))
        slopes = turned(one.low_slope), turned(two.low_slope)
        found[number] = _Knobs(one, two, change, slopes, share, min(left, right), max(left, right))
    return found


def tune_outputs(
    relaxation: Relaxation,
    pair: Pair,
    known: Tensor,
    steps: int,
    deadline: float,
    split: bool = True,
    basis: Tensor | None = None,
) -> Tensor:
    """Bounds (points, outputs) at most `known`, after up to `steps` steps of descent on all outputs together.

    Without `split`, differences always go through both networks' own lines, as CROWN takes the difference network. With
    `basis` (points, rows, *output shape), the bounds are on the difference along these rows in place of the outputs.
    """
    points, outputs = known.shape
    if basis is None:
        units = torch.eye(outputs, dtype=torch.float64).reshape(1, outputs, *pair.output_shape)
        basis = units.expand(points, *[-1] * (units.ndim - 1))
    rows = torch.cat([basis, -basis], dim=1)
    knobs = _knobs(relaxation, pair, 2 * outputs)
    if not knobs:
        return known
    if not split:
        for part in knobs.values():
            part.share = torch.ones_like(part.share).requires_grad_()
    best = torch.full((points, 2 * outputs), torch.inf, dtype=torch.float64)
    turned = [knob for part in knobs.values() for knob in part.all]
    descent = torch.optim.Adam(turned, lr=_RATE)
    for number in range(steps):
        if time.monotonic() > deadline:
            break
        for group in descent.param_groups:
            group["lr"] = _RATE * (1 - number / steps) + 0.005
        with torch.enable_grad():
            relaxation.mixed = {place: part.mixed() for place, part in knobs.items()}
            found = relaxation.upper(len(pair.steps), torch.zeros_like(rows), rows)
            gradients = torch.autograd.grad(found.sum(), turned, allow_unused=True)
        best = torch.minimum(best, found.detach())
        for knob, gradient in zip(turned, gradients):
            knob.grad = gradient
        descent.step()
        for part in knobs.values():
            part.limit_()
            if not split:
                part.share.data.fill_(1.0)
    relaxation.mixed = {}
    both = best.reshape(points, 2, outputs).amax(1).clamp_min(0.0) * (1 + 1e-12)
    return torch.minimum(known, torch.where(torch.isnan(both), torch.full_like(both, torch.inf), both))
