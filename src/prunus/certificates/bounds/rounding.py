"""The rounding of what really runs: how far a network in float32 (or bf16) is from its exact self.

The standard model of floating-point sums: a sum of n products differs from the exact one by at most
`gamma_n sum |w_i x_i|`, gamma_n = n u / (1 - n u), in whatever order and with or without fused steps. Half-precision
types are taken to accumulate in float32 and to round once at the end. Fast algorithms that recombine inputs (Winograd,
FFT convolutions) and TF32 are outside of this model. A result below the smallest normal number may lose that much
(gradual underflow, or flushing to zero), and where a sum may leave the type's range the rounding is infinite.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.certificates.bounds.recursion import Norms, lengths
from prunus.certificates.reading.pair import Pair, Step
from prunus.certificates.reading.pieces import Affine, Elementwise, Join

_UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_LIBRARY = 8.0
"""Units in the last place granted to activation functions of the math library."""


def gamma(terms: int, dtype: torch.dtype) -> float:
    """Relative error of one output that sums `terms` products."""
    unit = _UNITS.get(dtype, 2.0**-8)
    accumulate = max(min(unit, 2.0**-24), 2.0**-53)
    count = (terms + 2) * accumulate
    error = count / (1 - count) if count < 0.5 else float("inf")
    return error if unit <= 2.0**-24 else error + 1.001 * unit


def rounding_terms(pair: Pair, norms: Norms, magnitudes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Distance (points,) that rounding may add to the difference of the outputs: both networks, and our float64 too.

    magnitudes: for every value, bounds on |entries| of the original and the pruned network, (points, *shape).
    """
    total = magnitudes[0][0].new_zeros(magnitudes[0][0].shape[0])
    for pruned in (False, True):
        for dtype in (pair.dtypes[int(pruned)], torch.float64):
            total = total + _one(pair, norms, magnitudes, pruned, dtype)
    return total


def _one(
    pair: Pair,
    norms: Norms,
    magnitudes: list[tuple[Tensor, Tensor]],
    pruned: bool,
    dtype: torch.dtype,
) -> Tensor:
    drift = [magnitudes[0][0].new_zeros(magnitudes[0][0].shape[0])]
    for number, step in enumerate(pair.steps):
        incoming = [drift[index] for index in step.inputs]
        before = [magnitudes[index][int(pruned)] for index in step.inputs]
        after = magnitudes[number + 1][int(pruned)]
        drift.append(_after(number, step, norms, incoming, before, after, pruned, dtype))
    return drift[-1]


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
    unit = _UNITS.get(dtype, 2.0**-8)
    if isinstance(piece, Affine):
        gain = norms[number].pruned if pruned else norms[number].original
        if piece.terms == 0 and piece.bias is None:
            return gain * incoming[0]
        spread = piece.magnitude(before[0])
        if piece.bias is not None:
            spread = spread + (piece.bias.abs() if piece.bias_size is None else piece.bias_size)
        tiny = (piece.terms + 2) * _smallest(dtype) * spread[0].numel() ** 0.5 + _overflow(spread, dtype)
        fresh = gamma(piece.terms, dtype)
        # Drifted inputs are rounded too, through |W|: rows and columns bound its norm by those of W (Schur's test).
        through = 1.0 if piece.weight is None else (piece.terms * piece.weight.numel()) ** 0.25
        return gain * incoming[0] * (1 + through * fresh) + fresh * lengths(spread) + tiny
    if isinstance(piece, Join):
        if piece.kind == "concatenation":
            return torch.linalg.vector_norm(torch.stack(incoming), dim=0)
        total = torch.stack(incoming).sum(0)
        sums = torch.stack(before).sum(0)
        return total * (1 + len(before) * unit) + gamma(len(before), dtype) * lengths(sums) + _overflow(sums, dtype)
    if isinstance(piece, Elementwise):
        fresh = 0.0 if piece.piecewise_linear and piece.settings == (0.0,) else _LIBRARY * unit
        tiny = _LIBRARY * _smallest(dtype) * after[0].numel() ** 0.5 if fresh else 0.0
        return piece.lipschitz * incoming[0] * (1 + fresh) + fresh * (lengths(after) + lengths(before[0])) + tiny
    fresh = 0.0 if piece.kind == "max pooling" else gamma(before[0][0].numel(), dtype) + _LIBRARY * unit
    tiny = _LIBRARY * _smallest(dtype) * after[0].numel() ** 0.5 if fresh else 0.0
    return piece.constant * incoming[0] * (1 + fresh) + fresh * lengths(after) + tiny


def _smallest(dtype: torch.dtype) -> float:
    """The smallest normal number: what underflow can cost one operation."""
    return float(torch.finfo(dtype).tiny) if dtype in _UNITS else 1e-5


def _overflow(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Infinite for points where a sum of magnitudes may leave the range of the type."""
    largest = float(torch.finfo(dtype).max) / 2 if dtype in _UNITS else 6e4
    over = ~(sums.flatten(1).amax(1) <= largest)
    return torch.where(over, torch.full_like(over, math.inf, dtype=torch.float64), 0.0)
