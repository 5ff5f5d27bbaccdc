"""The linear relaxation for every point of a domain: backwards in batches, or forwards for large networks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Ranges
from prunus.certificates.bounds.recursion import lengths
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.bounds.tuning import tune_outputs
from prunus.certificates.bounds.zonotopes import affordable, zonotope_ranges
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair

_ENTRIES = 2**13
"""Entries of the widest value of all points that are bounded together."""

BASIS_SLACK = 1 + 1e-10
"""Covers what a basis in float64 lacks of being orthonormal."""

_TUNED_OUTPUTS, _TUNING_STEPS = 64, 40
"""Slopes are tuned for networks of at most so many outputs, in so many steps."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """Bounds (points, outputs) on each output's difference, infinite for points that the time did not reach.

    rounding: the part of them that is rounding (points, outputs); infinite where a bound is about exact values.
    lengths: bounds (points,) on the 2-norm of the difference, rounding included; infinite where it was not asked for.
    """

    bounds: Tensor
    rounding: Tensor
    lengths: Tensor


def bound_relaxation(
    pair: Pair,
    region: Region,
    exact: Sequence[Ranges],
    computed: Sequence[Ranges],
    deadline: float,
    tell: Callable[[int, Sequence[Ranges]], None] | None = None,
    tune: bool = True,
    norm: int | str = "max",
) -> Relaxed:
    """The relaxation of every point; exact, computed: ranges of exact values and of what the networks compute.

    `tell` is called with the tightened ranges of every point, because other terms of a certificate gain from them too.
    Without `tune` the slopes stay as they are first chosen, which is several times faster. For the 2-norm the
    difference is also bounded along an orthonormal basis that begins with the difference at the centre: where that is
    large and changes little, it counts once instead of in every output.
    """
    found = torch.full((region.points, math.prod(pair.output_shape)), float("inf"), dtype=torch.float64)
    rounding, turned = torch.full_like(found, math.inf), torch.full_like(found[:, 0], math.inf)
    few = found.shape[1] <= _TUNED_OUTPUTS
    first = 0
    while first < region.points and time.monotonic() <= deadline:
        remaining = max(0.0, deadline - time.monotonic()) / (region.points - first)
        one = Relaxation(pair, region.part(first, first + 1), [value.part(first, first + 1) for value in computed])
        slow = one.forecast() > 0.5 * remaining
        last = min(region.points, first + (1 if slow else _points_at_once(pair)))
        until = time.monotonic() + remaining * (last - first)
        here = region.part(first, last)
        if slow:
            forms = _forwards(pair, here, [value.part(first, last) for value in exact], until)
            if forms is not None:
                found[first] = forms[0]
                if tell is not None:
                    tell(first, forms[1])
                first = last
                continue
        relaxation = Relaxation(pair, here, [value.part(first, last) for value in computed], computed=True)
        finished = relaxation.tighten(until)
        found[first:last] = relaxation.outputs()
        rounding[first:last] = relaxation.rounding
        basis = _basis(pair, here) if norm == 2 and few else None
        along = None if basis is None else relaxation.along(basis)
        if along is not None and bool((lengths(along) < lengths(found[first:last])).any()):
            if tune and finished:
                along = tune_outputs(relaxation, pair, along, _TUNING_STEPS, until, basis=basis)
            turned[first:last] = lengths(along) * BASIS_SLACK
        elif tune and finished and few:
            found[first:last] = tune_outputs(relaxation, pair, found[first:last], _TUNING_STEPS, until)
        if tell is not None:
            for point in range(first, last):
                tell(point, [value.part(point - first, point - first + 1) for value in relaxation.ranges])
        first = last
    return Relaxed(found, rounding, turned)


def _basis(pair: Pair, here: Region) -> Tensor:
    """`difference_basis` of the outputs at the centres."""
    one, two = pair.outputs(here.centres)
    return difference_basis(pair, two - one)


def difference_basis(pair: Pair, first: Tensor) -> Tensor:
    """Orthonormal rows (points, outputs, *output shape), the first along a difference of outputs (points, outputs)."""
    size = torch.linalg.vector_norm(first, dim=1, keepdim=True)
    first = torch.where(size > 0, first / size.clamp_min(1e-300), torch.eye(first.shape[1], dtype=torch.float64)[:1])
    # A reflection that takes the first unit to the difference, with the sign that loses no digits.
    away = first.clone()
    away[:, 0] += torch.where(first[:, 0] >= 0, 1.0, -1.0)
    away = away / torch.linalg.vector_norm(away, dim=1, keepdim=True)
    rows: Tensor = torch.eye(first.shape[1], dtype=torch.float64) - 2 * away[:, :, None] * away[:, None]
    return rows.reshape(-1, first.shape[1], *pair.output_shape)


def _points_at_once(pair: Pair) -> int:
    widest = max(math.prod(pair.input_shape), *(math.prod(step.shape) for step in pair.steps))
    return max(1, min(64, _ENTRIES // widest))


def _forwards(pair: Pair, here: Region, own: list[Ranges], deadline: float) -> tuple[Tensor, list[Ranges]] | None:
    """Large networks go forwards, which bounds all activations at once; exact values only."""
    forms = zonotope_ranges(pair, here, own, deadline) if affordable(pair) else None
    if forms is None:
        return None
    relaxation = Relaxation(pair, here, forms[0])
    relaxation.refresh()
    return torch.minimum(forms[1], relaxation.outputs()[0]), relaxation.ranges
