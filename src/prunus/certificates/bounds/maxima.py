"""Linear bounds on maxima over windows, for the backward relaxation.

One input of every window is chosen to lead, L. With the gaps g_t = x_t - x_L of the others, the maximum is
`x_L + max(0, g_t)`. A gap that is surely not positive drops out. Where one is left the maximum is x_L plus a ReLU of
that gap, bounded by the ReLU's lines; where several are left, the sum of their upper lines is an upper bound and one of
their lower lines a lower one. The gaps are bounded by rows of their own, which know how neighbours move together. The
difference of two networks' maxima is treated in the same way: `d_L` plus the difference of the ReLUs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.certificates.bounds.backward import Both
from prunus.certificates.bounds.intervals import Range, Ranges
from prunus.certificates.bounds.lines import Lines, choose, difference_lines, lines
from prunus.certificates.reading import activations

_RELU = activations.relu()


class Maxima:
    """The windows of one step on a batch of points: leaders, and ranges (points, outputs * taps) of the gaps."""

    def __init__(self, windows: Tensor, before: Ranges) -> None:
        self._windows, self._before = windows, before
        self._inputs = before.original.low[0].numel()
        total = before.original.low + before.original.high + before.pruned.low + before.pruned.high
        taken = self._taps(total, -math.inf)
        tap = torch.where(torch.isnan(taken), torch.full_like(taken, -1e300), taken).argmax(2, keepdim=True)
        self._leads = torch.zeros(taken.shape, dtype=torch.bool).scatter_(2, tap, True)
        self._leader = windows[None].expand(tap.shape[0], -1, -1).gather(2, tap).squeeze(2)
        self._still = self._leads | (windows < 0)[None]
        self._gaps = Ranges(*(self._apart(part) for part in (before.original, before.pruned, before.difference)))
        self._lines: tuple[Lines, Lines, Lines] | None = None

    def _taps(self, values: Tensor, fill: float) -> Tensor:
        taken = values.flatten(1)[:, self._windows.clamp_min(0)]
        return torch.where(self._windows >= 0, taken, torch.full_like(taken, fill))

    def _apart(self, part: Range) -> Range:
        """Ranges of the gaps from the ranges of the inputs; taps that lead or lie outside never exceed the leader."""
        low, high = self._taps(part.low, 0.0), self._taps(part.high, 0.0)
        lead_low, lead_high = (side.flatten(1).gather(1, self._leader)[:, :, None] for side in (part.low, part.high))
        slack = 1e-15 * (low.abs() + high.abs() + lead_low.abs() + lead_high.abs()) + 1e-300
        none = torch.zeros_like(low)
        bottom = torch.where(self._still, none, low - lead_high - slack)
        return Range(bottom.flatten(1), torch.where(self._still, none, high - lead_low + slack).flatten(1))

    def wanted(self) -> Tensor:
        """Numbers (points, count) of the gaps that may be positive in one network and negative or not in the other."""
        high = torch.maximum(self._gaps.original.high, self._gaps.pruned.high)
        low = torch.minimum(self._gaps.original.low, self._gaps.pruned.low)
        open_ = (high > 0) & ((low < 0) | (self._gaps.difference.low < self._gaps.difference.high))
        open_ &= ~self._still.flatten(1)
        count = int(open_.sum(1).max()) if open_.numel() else 0
        return open_.to(torch.uint8).topk(count, dim=1).indices

    def rows(self, chosen: Tensor) -> Tensor:
        """Rows (points, count, inputs) that give the chosen gaps."""
        taps = self._windows.shape[1]
        made = torch.zeros(*chosen.shape, self._inputs, dtype=torch.float64)
        other = self._windows.flatten()[chosen].clamp_min(0)
        made.scatter_add_(2, other[:, :, None], torch.ones(*chosen.shape, 1, dtype=torch.float64))
        lead = self._leader.gather(1, chosen // taps)
        return made.scatter_add_(2, lead[:, :, None], -torch.ones(*chosen.shape, 1, dtype=torch.float64))

    def learn(self, chosen: Tensor, original: Range, pruned: Range | None, difference: Range) -> None:
        """Take up tighter ranges of the chosen gaps."""
        parts = (self._gaps.original, self._gaps.pruned, self._gaps.difference)
        for part, found in zip(parts, (original, pruned, difference)):
            if found is None:
                continue
            still = self._still.flatten(1).gather(1, chosen)
            low = torch.maximum(part.low.gather(1, chosen), found.low)
            high = torch.minimum(part.high.gather(1, chosen), found.high)
            low, high = torch.minimum(low, high), torch.maximum(low, high)
            part.low.scatter_(1, chosen, torch.where(still, torch.zeros_like(low), low))
            part.high.scatter_(1, chosen, torch.where(still, torch.zeros_like(high), high))
        self._gaps = self._gaps.tightened()
        self._lines = None

    def _bounds(self) -> tuple[Lines, Lines, Lines]:
        """Lines on what a maximum adds to its leader: in both networks, and in their difference."""
        if self._lines is None:
            one, two = self._network(self._gaps.original), self._network(self._gaps.pruned)
            self._lines = one, two, self._change(one, two)
        return self._lines

    def _without_still(self, each: Lines) -> Lines:
        """Leaders and taps outside of the image add nothing."""
        keep = (~self._still).flatten(1).to(torch.float64)
        parts = (each.low_slope, each.low, each.high_slope, each.high, each.gap)
        return Lines(*(part * keep for part in parts))

    def _network(self, part: Range) -> Lines:
        each = self._without_still(lines(_RELU, part))
        shape = self._leads.shape
        # From below one gap at most may speak: the one that can be largest.
        best = part.high.reshape(shape).argmax(2, keepdim=True)
        speaks = torch.zeros(shape, dtype=torch.float64).scatter_(2, best, 1.0).flatten(1)
        one = Lines(each.low_slope * speaks, each.low * speaks, each.high_slope, each.high, each.gap)
        competitors = (part.high > 0).reshape(shape).sum(2)
        top = part.high.reshape(shape).amax(2).clamp_min(0.0)
        bottom = part.low.reshape(shape).amax(2).clamp_min(0.0)
        # A constant may be better than the sum of several upper lines.
        loose = (competitors > 1) & (top - bottom < each.gap.reshape(shape).sum(2))
        first = torch.zeros(shape, dtype=torch.float64)
        first[:, :, 0] = 1.0
        flat = loose[:, :, None].expand(shape).flatten(1)
        zero = torch.zeros_like(one.high)
        plain = Lines(one.low_slope, one.low, zero, (top[:, :, None] * first).flatten(1), one.gap)
        return choose(flat, plain, one)

    def _change(self, one: Lines, two: Lines) -> Lines:
        """Lines on max(0, g'_t) - max(0, g_t) in the gaps' differences."""
        gaps, shape = self._gaps, self._leads.shape
        alive = ((gaps.original.high > 0) | (gaps.pruned.high > 0)).reshape(shape)
        each = self._without_still(difference_lines(_RELU, gaps))
        moved = torch.where(alive.flatten(1), gaps.difference.high, 0.0).reshape(shape).amax(2).clamp_min(0.0)
        fallen = torch.where(alive.flatten(1), gaps.difference.low, 0.0).reshape(shape).amin(2).clamp_max(0.0)
        first = torch.zeros(shape, dtype=torch.float64)
        first[:, :, 0] = 1.0
        zero = torch.zeros_like(each.low)
        high, low = (moved[:, :, None] * first).flatten(1), (fallen[:, :, None] * first).flatten(1)
        plain = Lines(zero, low, zero, high, high - low)
        several = (alive.sum(2) > 1)[:, :, None].expand(shape).flatten(1)
        return choose(several, plain, each)

    def _spread(self, rows: Tensor, on_gaps: Tensor) -> Tensor:
        """Rows on leaders and gaps as rows on the inputs (points, rows, inputs)."""
        points, count, outputs = rows.shape
        taps = self._windows.shape[1]
        lead = rows - on_gaps.reshape(points, count, outputs, taps).sum(3)
        made = rows.new_zeros(points, count, self._inputs)
        made.scatter_add_(2, self._leader[:, None].expand(rows.shape), lead)
        places = self._windows.clamp_min(0).flatten()[None, None].expand(on_gaps.shape)
        return made.scatter_add_(2, places, on_gaps)

    def _through(self, bounds: Lines, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (points, rows, outputs) on what maxima add, as rows on the gaps, and the constants."""
        wide = rows.repeat_interleave(self._windows.shape[1], dim=2)
        up, down = wide.clamp_min(0.0), wide.clamp_max(0.0)
        on_gaps = up * bounds.high_slope[:, None] + down * bounds.low_slope[:, None]
        constant = (up @ bounds.high[:, :, None] + down @ bounds.low[:, :, None]).squeeze(2)
        return on_gaps, constant

    def back_one(self, found: Tensor, pruned: bool) -> tuple[Tensor, Tensor]:
        """Rows (points, rows, *output shape) on the maxima of one network as rows on its inputs, and the constants."""
        rows = found.flatten(2)
        on_gaps, constant = self._through(self._bounds()[int(pruned)], rows)
        return self._spread(rows, on_gaps), constant

    def back(self, found: Both, shape: tuple[int, ...]) -> tuple[Both, Tensor]:
        """The same for rows on the original and on the difference."""
        on_original, on_difference = (rows.flatten(2) for rows in found)
        one, _, change = self._bounds()
        gaps, first = self._through(one, on_original)
        moves, second = self._through(change, on_difference)
        original, difference = self._spread(on_original, gaps), self._spread(on_difference, moves)
        return (
            original.reshape(*original.shape[:2], *shape),
            difference.reshape(*difference.shape[:2], *shape),
        ), first + second
