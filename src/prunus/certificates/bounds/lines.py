"""Linear bounds on activations, entry by entry: of one network, and of the difference of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range, Ranges, joint
from prunus.certificates.reading.pieces import Elementwise


@dataclass(frozen=True)
class Lines:
    """`low_slope z + low <= s(z) <= high_slope z + high` over a range, and the largest gap between the two."""

    low_slope: Tensor
    low: Tensor
    high_slope: Tensor
    high: Tensor
    gap: Tensor


def lines(piece: Elementwise, part: Range) -> Lines:
    """Linear bounds on an activation over a range, entry by entry."""
    low, high = part.low, part.high
    width = (high - low).clamp_min(0.0)
    bottom, top = piece.slopes(low, high)
    flat = (top <= bottom) | (width <= 1e-14 * (1 + low.abs()))
    at_low, at_high = piece.function(low), piece.function(high)
    chord = torch.where(flat, bottom, ((at_high - at_low) / width.clamp_min(1e-300)))
    chord = torch.minimum(torch.maximum(chord, bottom), top)
    if piece.piecewise_linear:
        return _kinked_lines(piece, low, high, bottom, top, flat, chord)
    # Over [low, high] the function leaves its chord by at most this (slopes between bottom and top).
    spread = (top - bottom).clamp_min(1e-300)
    off = width * (top - chord) * (chord - bottom) / spread
    off = torch.where(flat, width * (top - bottom), off) * (1 + 1e-9) + 1e-13 * (1 + at_low.abs() + at_high.abs())
    base = at_low - chord * low
    return Lines(chord, base - off, chord, base + off, 2 * off)


def _kinked_lines(
    piece: Elementwise, low: Tensor, high: Tensor, bottom: Tensor, top: Tensor, flat: Tensor, chord: Tensor
) -> Lines:
    """ReLU and LeakyReLU: exact where stable; else the chord on one side and one of the two pieces on the other."""
    ((_, left, right),) = piece.kinks
    zero = torch.zeros_like(low)
    stable = torch.where(low >= 0, right * torch.ones_like(low), left * torch.ones_like(low))
    crossing = ~((low >= 0) | (high <= 0))
    base = torch.where(crossing, piece.function(low) - chord * low, zero)
    base = base + torch.where(crossing, 1e-14 * (base.abs() + 1e-300), zero)
    nearer = torch.where(high > -low, right * torch.ones_like(low), left * torch.ones_like(low))
    chord_slope = torch.where(crossing, chord, stable)
    piece_slope = torch.where(crossing, nearer, stable)
    gap = torch.where(crossing, base.abs(), zero)
    if right >= left:  # convex: the chord lies above
        return Lines(piece_slope, zero, chord_slope, base, gap)
    low_base = torch.where(crossing, piece.function(low) - chord * low, zero)
    return Lines(chord_slope, low_base - 1e-14 * low_base.abs(), piece_slope, zero, gap)


def difference_lines(piece: Elementwise, source: Ranges) -> Lines:
    """Linear bounds on `s(z* + d) - s(z*)` in d alone: d times a slope of the joint range."""
    both = joint(source)
    bottom, top = piece.slopes(both.low, both.high)
    low, high = source.difference.low, source.difference.high
    width = (high - low).clamp_min(1e-300)
    crossing = (low < 0) & (high > 0)
    rise = torch.where(crossing, (top * high - bottom * low) / width, torch.where(low >= 0, top, bottom))
    fall = torch.where(crossing, (bottom * high - top * low) / width, torch.where(low >= 0, bottom, top))
    zero = torch.zeros_like(low)
    above = torch.where(crossing, bottom * low - rise * low, zero)
    below = torch.where(crossing, top * low - fall * low, zero)
    slack = torch.where(crossing, 1e-14 * (above.abs() + below.abs()), zero)
    gap = (top - bottom) * torch.maximum(low.abs(), high.abs())
    return Lines(fall, below - slack, rise, above + slack, gap)


class Passage:
    """Lines in the form that rows of coefficients r run back through.

    A positive coefficient takes the upper line and a negative one the lower, so the slope is `middle r + half |r|`, and
    offsets alike: one multiplication for each instead of a choice for each entry.
    """

    def __init__(self, bounds: Lines) -> None:
        self._middle = ((bounds.high_slope + bounds.low_slope) / 2)[:, None]
        self._half = ((bounds.high_slope - bounds.low_slope) / 2)[:, None]
        high, low = bounds.high.flatten(1), bounds.low.flatten(1)
        self._offset = ((high + low) / 2)[:, :, None]
        self._spread = torch.stack([(high - low) / 2, torch.maximum(high.abs(), low.abs())], dim=2)

    def with_low(self, slope: Tensor, where: Tensor) -> Passage:
        """The same with other slopes (points, rows, ...) of the lower lines, where these pass through zero."""
        made = Passage.__new__(Passage)
        made._offset, made._spread = self._offset, self._spread
        high, low = self._middle + self._half, self._middle - self._half
        low = torch.where(where[:, None], slope, low)
        made._middle, made._half = (high + low) / 2, (high - low) / 2
        return made

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients on the argument, the constant, and its terms in magnitude; rows (points, rows, ...)."""
        size = rows.abs()
        sums = size.flatten(2) @ self._spread
        constant = (rows.flatten(2) @ self._offset).squeeze(2) + sums[:, :, 0]
        return torch.addcmul(rows * self._middle, size, self._half), constant, sums[:, :, 1]


def choose(where: Tensor, one: Lines, two: Lines) -> Lines:
    """Lines of the first where it is asked for, of the second elsewhere."""
    return Lines(
        torch.where(where, one.low_slope, two.low_slope),
        torch.where(where, one.low, two.low),
        torch.where(where, one.high_slope, two.high_slope),
        torch.where(where, one.high, two.high),
        torch.where(where, one.gap, two.gap),
    )
