"""What a prover is asked: outputs within a tolerance, or equal labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import UNITS
from prunus.certificates.bounds.pointwise import BASIS_SLACK, difference_basis
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.prover.probabilities import (
    blame_margin,
    ends_in_softmax,
    margin_rows,
    probability_bounds,
    upper_margins,
)
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Lipschitz
from prunus.errors import BadInput

_TURNED_OUTPUTS = 64
"""Outputs up to which the 2-norm is also bounded along the difference at a box's centre."""


class Goal(Protocol):
    """A number for every input that must stay at or below a limit: bounded over boxes, and measured at points."""

    @property
    def limit(self) -> float: ...

    @property
    def pair(self) -> Pair: ...

    @property
    def by_signs(self) -> bool:
        """Whether boxes of many inputs are split by signs of activations: it helps margins, and not differences."""
        ...

    def bound(self, relaxation: Relaxation, centres: tuple[Tensor, Tensor]) -> Tensor:
        """(boxes,) upper bounds; centres are both networks' outputs at the boxes' centres."""
        ...

    def measure(self, one: Tensor, two: Tensor) -> Tensor:
        """(points,) the number at points, from both networks' outputs (points, outputs)."""
        ...


def blame(relaxation: Relaxation, pair: Pair, output: Tensor) -> None:
    """Note what gaps cost in the bound on one output's difference (boxes,)."""
    size = math.prod(pair.output_shape)
    row = torch.eye(size, dtype=torch.float64)[output].reshape(-1, 1, *pair.output_shape)
    both = torch.cat([row, -row], 1)
    relaxation.losses = {}
    relaxation.upper(len(pair.steps), torch.zeros_like(both), both)


@dataclass(frozen=True, eq=False)
class Close:
    """The outputs' difference in the max norm or the 2-norm."""

    pair: Pair
    limit: float
    norm: int | str

    @property
    def by_signs(self) -> bool:
        return ends_in_softmax(self.pair)

    def bound(self, relaxation: Relaxation, centres: tuple[Tensor, Tensor]) -> Tensor:
        outputs = relaxation.outputs()
        if ends_in_softmax(self.pair):
            outputs = torch.minimum(outputs, probability_bounds(self.pair, relaxation, centres[0].argmax(1)))
        found = outputs.amax(1) if self.norm == "max" else torch.linalg.vector_norm(outputs, dim=1) * (1 + 1e-12)
        if self.norm == 2 and outputs.shape[1] <= _TURNED_OUTPUTS:
            along = relaxation.along(difference_basis(self.pair, centres[1] - centres[0]))
            found = torch.fmin(found, torch.linalg.vector_norm(along, dim=1) * BASIS_SLACK)
        if not ends_in_softmax(self.pair):
            blame(relaxation, self.pair, outputs.argmax(1))
        return torch.where(torch.isnan(found), torch.full_like(found, math.inf), found)

    def measure(self, one: Tensor, two: Tensor) -> Tensor:
        off = two - one
        return off.abs().amax(1) if self.norm == "max" else torch.linalg.vector_norm(off, dim=1)


def no_label(shape: tuple[int, ...]) -> str | None:
    """Why outputs of a shape, without the batch, have no label: a single one, or several rows; None where they do."""
    if math.prod(shape) < 2:
        return "A label is the largest of several outputs, and this network has one."
    if sum(size > 1 for size in shape) > 1:
        return (
            f"The network's outputs have the shape {shape}, and a label is the largest of one row: wrap the network so "
            "that it returns that row."
        )
    return None


def check_labels(pair: Pair) -> None:
    """Refuse outputs that have no label."""
    reason = no_label(pair.output_shape)
    if reason is not None:
        raise BadInput(reason)


@dataclass(frozen=True, eq=False)
class SameLabel:
    """Equal labels: the number is how far another output comes up to the label's own, in the worse network.

    It must stay below zero, with a small margin for a softmax at the end, which may round two outputs to one.
    """

    pair: Pair
    limit: float = 0.0
    by_signs: bool = True

    @staticmethod
    def of(pair: Pair) -> SameLabel:
        """A softmax at the end is taken off: it does not change the order."""
        check_labels(pair)
        last = pair.steps[-1].original
        if isinstance(last, Lipschitz) and last.kind in ("softmax", "log softmax") and len(pair.steps) > 1:
            unit = max(UNITS.get(dtype, 2.0**-8) for dtype in pair.dtypes)
            shorter = replace(pair, steps=pair.steps[:-1])
            return SameLabel(shorter, -4 * (math.prod(pair.output_shape) + 100) * unit)
        return SameLabel(pair)

    def bound(self, relaxation: Relaxation, centres: tuple[Tensor, Tensor]) -> Tensor:
        one, two = centres
        label = one.argmax(1)
        found = upper_margins(relaxation, len(self.pair.steps), margin_rows(self.pair, label))
        found = found.scatter(1, label[:, None], -math.inf)
        blame_margin(relaxation, len(self.pair.steps), margin_rows(self.pair, label), found.argmax(1))
        worst = found.amax(1)
        worst = torch.where(torch.isnan(worst), torch.full_like(worst, math.inf), worst)
        return torch.where(two.argmax(1) == label, worst, torch.full_like(worst, math.inf))

    def measure(self, one: Tensor, two: Tensor) -> Tensor:
        """Positive where the labels differ; else minus the smaller margin."""
        label = one.argmax(1, keepdim=True)
        gaps = []
        for outputs in (one, two):
            others = outputs.scatter(1, label, -math.inf).amax(1)
            gaps.append(others - outputs.gather(1, label).squeeze(1))
        found = torch.maximum(*gaps)
        differ = one.argmax(1) != two.argmax(1)
        return torch.where(differ, found.abs() + 1e-300, found.clamp_max(0.0))
