"""The rounding of what really runs, in the 2-norm: how far a network in float32 (or bf16) is from its exact self."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import LIBRARY, UNITS, gamma, overflow, smallest
from prunus.certificates.bounds.recursion import Norms, lengths
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join


def rounding_terms(pair: Pair, norms: Norms, magnitudes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Distance (points,) that rounding may add to the difference of the outputs: both networks, and our float64 too.

    magnitudes: for every value, bounds on |entries| of the original and the pruned network, (points, *shape).
    """
    total = magnitudes[0][0].new_zeros(magnitudes[0][0].shape[0])
    for pruned in (False, True):
        for dtype in (pair.dtypes[int(pruned)], torch.float64):
            total = total + _one(pair, norms, magnitudes, pruned, dtype)
    return total


def value_drifts(pair: Pair, norms: Norms, magnitudes: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """For every value, how far (points,) what each network computes may be from the exact value, in the 2-norm."""
    one, two = (_drifts(pair, norms, magnitudes, pruned, pair.dtypes[int(pruned)]) for pruned in (False, True))
    return list(zip(one, two))


def _one(
    pair: Pair,
    norms: Norms,
    magnitudes: list[tuple[Tensor, Tensor]],
    pruned: bool,
    dtype: torch.dtype,
) -> Tensor:
    return _drifts(pair, norms, magnitudes, pruned, dtype)[-1]


def _drifts(
    pair: Pair, norms: Norms, magnitudes: list[tuple[Tensor, Tensor]], pruned: bool, dtype: torch.dtype
) -> list[Tensor]:
    drift = [magnitudes[0][0].new_zeros(magnitudes[0][0].shape[0])]
    for number, step in enumerate(pair.steps):
        incoming = [drift[index] for index in step.inputs]
        before = [magnitudes[index][int(pruned)] for index in step.inputs]
        after = magnitudes[number + 1][int(pruned)]
        drift.append(_after(number, step, norms, incoming, before, after, pruned, dtype))
    return drift


def _after(
    number: int,
    step: Step,
    norms: Norms,
    incoming: list[Tensor],
    before: list[Tensor],
    after: Tensor,
    pruned: bool,
    dtype: torch.dtype,
) -> Tensor:
    piece = step.pruned if pruned else step.original
    unit = UNITS.get(dtype, 2.0**-8)
    if isinstance(piece, Affine):
        gain = norms[number].pruned if pruned else norms[number].original
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
    if isinstance(piece, Elementwise):
        fresh = 0.0 if piece.piecewise_linear and piece.settings == (0.0,) else LIBRARY * unit
        tiny = LIBRARY * smallest(dtype) * after[0].numel() ** 0.5 if fresh else 0.0
        return piece.lipschitz * incoming[0] * (1 + fresh) + fresh * (lengths(after) + lengths(before[0])) + tiny
    fresh = 0.0 if piece.kind == "max pooling" else gamma(before[0][0].numel(), dtype) + LIBRARY * unit
    tiny = LIBRARY * smallest(dtype) * after[0].numel() ** 0.5 if fresh else 0.0
    return piece.constant * incoming[0] * (1 + fresh) + fresh * lengths(after) + tiny
