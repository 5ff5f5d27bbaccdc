"""The rounding of what really runs, in the 2-norm: how far a network in float32 (or bf16) is from its exact self."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import LIBRARY, UNITS, gamma, overflow, smallest
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
        for dtype in (pair.dtypes[int(pruned)], torch.float64):
            total = total + drifts(pair, norms, ranges, pruned, dtype)[-1]
    return total


def value_drifts(pair: Pair, norms: Norms, ranges: Sequence[Ranges]) -> list[tuple[Tensor, Tensor]]:
    """For every value, how far (points,) what each network computes may be from the exact value, in the 2-norm."""
    one, two = (drifts(pair, norms, ranges, pruned, pair.dtypes[int(pruned)]) for pruned in (False, True))
    return list(zip(one, two))


def drifts(pair: Pair, norms: Norms, ranges: Sequence[Ranges], pruned: bool, dtype: torch.dtype) -> list[Tensor]:
    """How far (points,) every value of one network may be from its exact self, in the 2-norm."""
    parts = [value.pruned if pruned else value.original for value in ranges]
    drift = [parts[0].low.new_zeros(parts[0].low.shape[0])]
    for number, step in enumerate(pair.steps):
        piece = step.pruned if pruned else step.original
        incoming = [drift[index] for index in step.inputs]
        before = [parts[index] for index in step.inputs]
        gain = 0.0
        if isinstance(piece, Affine):
            gain = norms[number].pruned if pruned else norms[number].original
        found = _after(piece, gain, incoming, before, parts[number + 1].magnitude, dtype)
        drift.append(torch.where(torch.isnan(found), torch.full_like(found, math.inf), found))
    return drift


def _after(
    piece: Piece, gain: float, incoming: list[Tensor], parts: list[Range], after: Tensor, dtype: torch.dtype
) -> Tensor:
    unit = UNITS.get(dtype, 2.0**-8)
    before = [part.magnitude for part in parts]
    if isinstance(piece, Affine):
        if piece.terms == 0 and piece.bias is None:
            return gain * incoming[0]
        spread = piece.magnitude(before[0])
        if piece.bias is not None:
            spread = spread + (piece.bias.abs() if piece.bias_size is None else piece.bias_size)
        tiny = (piece.terms + 2) * smallest(dtype) * spread[0].numel() ** 0.5 + overflow(spread, dtype)
        fresh = gamma(piece.terms, dtype)
        # Drifted inputs are rounded too, through |W|: rows and columns bound its norm by those of W (Schur's test).
        through = 1.0 if piece.weight is None else (piece.terms * piece.weight.numel()) ** 0.25
        return cast("Tensor", gain * incoming[0] * (1 + through * fresh) + fresh * lengths(spread) + tiny)
    if isinstance(piece, Join):
        if piece.kind == "concatenation":
            return cast("Tensor", torch.linalg.vector_norm(torch.stack(incoming), dim=0))
        total = torch.stack(incoming).sum(0)
        sums = torch.stack(before).sum(0)
        return total * (1 + len(before) * unit) + gamma(len(before), dtype) * lengths(sums) + overflow(sums, dtype)
    if isinstance(piece, ValueProduct):
        largest = [size.flatten(1).amax(1) for size in before]
        moved = largest[1] * incoming[0] + largest[0] * incoming[1] + incoming[0] * incoming[1]
        tiny = smallest(dtype) * after[0].numel() ** 0.5 + overflow(after, dtype)
        return cast("Tensor", moved * (1 + unit) + 1.001 * unit * lengths(after) + tiny)
    if isinstance(piece, Elementwise):
        fresh = 0.0 if piece.piecewise_linear and piece.settings == (0.0,) else LIBRARY * unit
        tiny = (LIBRARY * smallest(dtype) if fresh else 0.0) + piece.jump
        sizes = lengths(after) if piece.relative else lengths(after) + lengths(before[0])
        slope = _steepest(piece, parts[0], incoming[0])
        return cast("Tensor", slope * incoming[0] * (1 + fresh) + fresh * sizes + tiny * after[0].numel() ** 0.5)
    fresh = 0.0 if piece.kind == "max pooling" else gamma(before[0][0].numel(), dtype) + LIBRARY * unit
    tiny = LIBRARY * smallest(dtype) * after[0].numel() ** 0.5 if fresh else 0.0
    return piece.constant * incoming[0] * (1 + fresh) + fresh * lengths(after) + tiny


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
