"""The rounding of what really runs, in the 2-norm: how far a network in float32 (or bf16) is from its exact self."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import LIBRARY, UNITS, gamma, largest_sums, overflow, smallest, steps_of
from prunus.certificates.bounds.intervals import Range, Ranges, propagate_ranges
from prunus.certificates.bounds.recursion import Norms, lengths
from prunus.certificates.domains import Region
from prunus.certificates.reading.pair import Pair
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Piece, ValueProduct


def rounding_terms(pair: Pair, norms: Norms, ranges: Sequence[Ranges]) -> Tensor:
    """Distance (points,) that rounding may add to the difference of the outputs: both networks, and our float64 too.

    ranges: bounds on the entries of every value.
    """
    total = ranges[0].original.low.new_zeros(ranges[0].original.low.shape[0])
    for pruned in (False, True):
        for column in drifts(pair, norms, ranges, pruned, (pair.dtypes[int(pruned)], torch.float64)):
            total = total + column[-1]
    return total


def value_drifts(pair: Pair, norms: Norms, ranges: Sequence[Ranges]) -> list[tuple[Tensor, Tensor]]:
    """For every value, how far (points,) what each network computes may be from the exact value, in the 2-norm."""
    one, two = (drifts(pair, norms, ranges, pruned, pair.dtypes[int(pruned) :][:1])[0] for pruned in (False, True))
    return list(zip(one, two))


def drifts(
    pair: Pair, norms: Norms, ranges: Sequence[Ranges], pruned: bool, dtypes: Sequence[torch.dtype]
) -> list[list[Tensor]]:
    """For every type, how far (points,) every value of one network may be from its exact self, in the 2-norm."""
    parts = [value.pruned if pruned else value.original for value in ranges]
    magnitudes = [part.magnitude for part in parts]
    found = [[parts[0].low.new_zeros(parts[0].low.shape[0])] for _ in dtypes]
    for number, step in enumerate(pair.steps):
        piece = step.pruned if pruned else step.original
        gain = 0.0
        if isinstance(piece, Affine):
            gain = norms[number].pruned if pruned else norms[number].original
        terms = _terms(piece, [magnitudes[index] for index in step.inputs], magnitudes[number + 1])
        before = [parts[index] for index in step.inputs]
        for drift, dtype in zip(found, dtypes):
            made = _after(piece, gain, [drift[index] for index in step.inputs], before, terms, dtype)
            drift.append(torch.where(torch.isnan(made), torch.full_like(made, math.inf), made))
    return found


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a step rounds, (points,) each: 2-norm of the terms, the largest sum in a type, the largest inputs."""

    length: Tensor
    largest: Callable[[torch.dtype], Tensor]
    inputs: list[Tensor]
    entries: int


def _terms(piece: Piece, before: list[Tensor], after: Tensor) -> _Terms:
    """before, after: bounds on the magnitudes of a step's inputs and result."""
    inputs: list[Tensor] = []
    if isinstance(piece, Affine):
        size = after
        if piece.terms or piece.bias is not None:
            size = piece.rounded(before[0])
    elif isinstance(piece, Join):
        size = after if piece.kind == "concatenation" else torch.stack(before).sum(0)
    else:
        size = after
        if isinstance(piece, ValueProduct):
            inputs = [part.flatten(1).amax(1) for part in before]
    length = lengths(size)
    if isinstance(piece, Elementwise) and not piece.relative:
        length = length + lengths(before[0])

    def largest(dtype: torch.dtype) -> Tensor:
        sums = largest_sums(piece, before[0], size, dtype) if isinstance(piece, Affine) else size
        return sums.flatten(1).amax(1)

    return _Terms(length, largest, inputs, size[0].numel())


def _after(
    piece: Piece, gain: float, incoming: list[Tensor], parts: list[Range], terms: _Terms, dtype: torch.dtype
) -> Tensor:
    unit, width = UNITS.get(dtype, 2.0**-8), math.sqrt(terms.entries)
    if isinstance(piece, Affine):
        if piece.terms == 0 and piece.bias is None:
            return gain * incoming[0]
        lost = float(piece.underflow.square().mean().sqrt())
        tiny = lost * smallest(dtype) * width + overflow(terms.largest(dtype), dtype)
        fresh = gamma(piece.terms, dtype, piece.roundings)
        # Drifted inputs are rounded too, through |W|: rows and columns bound its norm by those of W (Schur's test).
        through = 1.0 if piece.weight is None else math.sqrt(math.sqrt(piece.terms * piece.weight.numel()))
        return gain * incoming[0] * (1 + through * fresh) + fresh * terms.length + tiny
    if isinstance(piece, Join):
        if piece.kind == "concatenation":
            return cast("Tensor", torch.linalg.vector_norm(torch.stack(incoming), dim=0))
        total = torch.stack(incoming).sum(0) * (1 + len(parts) * unit)
        return total + gamma(len(parts), dtype) * terms.length + overflow(terms.largest(dtype), dtype)
    if isinstance(piece, ValueProduct):
        first, second = terms.inputs
        moved = second * incoming[0] + first * incoming[1] + incoming[0] * incoming[1]
        tiny = smallest(dtype) * width + overflow(terms.largest(dtype), dtype)
        return moved * (1 + unit) + 1.001 * unit * terms.length + tiny
    if isinstance(piece, Elementwise):
        if piece.beyond is not None:
            return incoming[0]
        fresh = 0.0 if piece.piecewise_linear and piece.settings == (0.0,) else LIBRARY * unit
        lost = (LIBRARY * smallest(dtype) if fresh else 0.0) + piece.jump
        slope = _steepest(piece, parts[0], incoming[0])
        range_left = overflow(steps_of(terms.largest(dtype), dtype), dtype) if fresh else 0.0
        return slope * incoming[0] * (1 + fresh) + fresh * terms.length + lost * width + range_left
    fresh = 0.0 if piece.kind == "max pooling" else gamma(parts[0].low[0].numel(), dtype) + LIBRARY * unit
    lost = LIBRARY * smallest(dtype) * width if fresh else 0.0
    return piece.constant * incoming[0] * (1 + fresh) + fresh * terms.length + lost


def _steepest(piece: Elementwise, part: Range, drift: Tensor) -> Tensor | float:
    """The Lipschitz constant on what the network computes: within `drift` of the range."""
    if piece.lipschitz <= 10.0:
        return piece.lipschitz
    wide = drift.reshape(-1, *[1] * (part.low.ndim - 1)) * (1 + 1e-12)
    bottom, top = piece.slopes(part.low - wide, part.high + wide)
    return torch.maximum(bottom.abs(), top.abs()).flatten(1).amax(1).clamp_max(piece.lipschitz)


def computed_ranges(pair: Pair, region: Region, norms: Norms, exact: Sequence[Ranges]) -> list[Ranges]:
    """Ranges of what both networks compute in their own precision, from those of exact values.

    Rounding is counted twice, entry by entry and in the 2-norm; the smaller one holds.
    """
    off = value_drifts(pair, norms, exact)
    fresh = propagate_ranges(pair, region, computed=True)
    found = []
    for value, other, (one, two) in zip(exact, fresh, off):
        wide = Ranges(_wider(value.original, one), _wider(value.pruned, two), _wider(value.difference, one + two))
        found.append(other.meet(wide))
    return found


def _wider(part: Range, amount: Tensor) -> Range:
    extra = amount.reshape(-1, *[1] * (part.low.ndim - 1)) * (1 + 1e-12)
    return Range(part.low - extra, part.high + extra)
