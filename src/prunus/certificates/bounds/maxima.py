"""Linear bounds on maxima over windows, for the backward relaxation.

One input of every window is chosen to lead, L. With the gaps g_t = x_t - x_L of the others, the maximum is
`x_L + max(0, g_t)`. A gap that is surely not positive drops out. Where one is left the maximum is x_L plus a ReLU of
that gap, bounded by the ReLU's lines; where several are left, the sum of their upper lines is an upper bound and one of
their lower lines a lower one. The gaps are bounded by rows of their own, which know how neighbours move together.

The difference of two networks' maxima goes one of two ways, whichever leaves the smaller gap: `d_L` plus the difference
of the ReLUs, or each network by its own lines, with a leader of its own. After heavy pruning another input leads, and
where that is sure in each network the second way is exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.certificates.bounds.backward import Both
from prunus.certificates.bounds.intervals import Range, Ranges, joint
from prunus.certificates.bounds.lines import Lines, choose, difference_lines, lines
from prunus.certificates.bounds.reach import GapBlocks, Slack, View, affordable, largest, saving
from prunus.certificates.reading import activations

_RELU = activations.relu()


class Leaders:
    """Windows (outputs, taps) of a batch of points, and the input that leads in each; gaps (points, outputs * taps)."""

    def __init__(self, windows: Tensor, middle: Tensor) -> None:
        self._windows, self._inputs = windows, middle[0].numel()
        taken = self._taps(middle, -math.inf)
        tap = torch.where(torch.isnan(taken), torch.full_like(taken, -1e300), taken).argmax(2, keepdim=True)
        self.shape = taken.shape
        self.place = windows[None].expand(tap.shape[0], -1, -1).gather(2, tap).squeeze(2)
        leads = torch.zeros(taken.shape, dtype=torch.bool).scatter_(2, tap, True)
        self.still = (leads | (windows < 0)[None]).flatten(1)
        """Taps that lead or lie outside of the image: they never exceed the leader."""

    def _taps(self, values: Tensor, fill: float) -> Tensor:
        taken = values.flatten(1)[:, self._windows.clamp_min(0)]
        return torch.where(self._windows >= 0, taken, torch.full_like(taken, fill))

    def apart(self, part: Range) -> Range:
        """Ranges of the gaps from the ranges of the inputs."""
        low, high = self._taps(part.low, 0.0), self._taps(part.high, 0.0)
        lead_low, lead_high = (side.flatten(1).gather(1, self.place)[:, :, None] for side in (part.low, part.high))
        slack = 1e-15 * (low.abs() + high.abs() + lead_low.abs() + lead_high.abs()) + 1e-300
        bottom, top = (low - lead_high - slack).flatten(1), (high - lead_low + slack).flatten(1)
        return Range(torch.where(self.still, 0.0, bottom), torch.where(self.still, 0.0, top))

    def rows(self, chosen: Tensor) -> Tensor:
        """Rows (points, count, inputs) that give the chosen gaps."""
        taps = self._windows.shape[1]
        made = torch.zeros(*chosen.shape, self._inputs, dtype=torch.float64)
        other = self._windows.flatten()[chosen].clamp_min(0)
        made.scatter_add_(2, other[:, :, None], torch.ones(*chosen.shape, 1, dtype=torch.float64))
        lead = self.place.gather(1, chosen // taps)
        return made.scatter_add_(2, lead[:, :, None], -torch.ones(*chosen.shape, 1, dtype=torch.float64))

    def learn(self, part: Range, chosen: Tensor, found: Range) -> None:
        """Intersect the known ranges of the chosen gaps with tighter ones."""
        still = self.still.gather(1, chosen)
        low = torch.maximum(part.low.gather(1, chosen), found.low)
        high = torch.minimum(part.high.gather(1, chosen), found.high)
        low, high = torch.minimum(low, high), torch.maximum(low, high)
        part.low.scatter_(1, chosen, torch.where(still, 0.0, low))
        part.high.scatter_(1, chosen, torch.where(still, 0.0, high))

    def without_still(self, each: Lines) -> Lines:
        keep = (~self.still).to(torch.float64)
        parts = (each.low_slope, each.low, each.high_slope, each.high, each.gap)
        return Lines(*(part * keep for part in parts))

    def network(self, part: Range) -> tuple[Lines, Tensor, Tensor]:
        """Lines on what a maximum adds to its leader, how far apart they are, and where the upper one is constant.

        The last two are (points, outputs).
        """
        each, shape = self.without_still(lines(_RELU, part)), self.shape
        # The lower bound uses one gap only: the one that can be largest.
        best = part.high.reshape(shape).argmax(2, keepdim=True)
        used = torch.zeros(shape, dtype=torch.float64).scatter_(2, best, 1.0).flatten(1)
        one = Lines(each.low_slope * used, each.low * used, each.high_slope, each.high, each.gap)
        competitors = (part.high > 0).reshape(shape).sum(2)
        top = part.high.reshape(shape).amax(2).clamp_min(0.0)
        bottom = part.low.reshape(shape).amax(2).clamp_min(0.0)
        total = each.gap.reshape(shape).sum(2) + torch.where(
            competitors > 1, part.low.reshape(shape).clamp_min(0.0).sum(2), 0.0
        )
        # A constant may be better than the sum of several upper lines.
        loose = (competitors > 1) & (top - bottom < total)
        plain = Lines(one.low_slope, one.low, *self._constant(top), one.gap)
        chosen = choose(loose[:, :, None].expand(shape).flatten(1), plain, one)
        return chosen, torch.where(loose, top - bottom, total), loose

    def _constant(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes and offsets of a constant (points, outputs): the first tap carries it."""
        first = torch.zeros(self.shape, dtype=torch.float64)
        first[:, :, 0] = 1.0
        return torch.zeros(self.still.shape, dtype=torch.float64), (value[:, :, None] * first).flatten(1)

    def change(self, gaps: Ranges) -> tuple[Lines, Tensor, Tensor]:
        """Lines on max(0, g'_t) - max(0, g_t) in the gaps' differences, how far apart, and where they are constant."""
        shape = self.shape
        alive = ((gaps.original.high > 0) | (gaps.pruned.high > 0)).reshape(shape)
        each = self.without_still(difference_lines(_RELU, gaps))
        moved = torch.where(alive.flatten(1), gaps.difference.high, 0.0).reshape(shape).amax(2).clamp_min(0.0)
        fallen = torch.where(alive.flatten(1), gaps.difference.low, 0.0).reshape(shape).amin(2).clamp_max(0.0)
        plain = Lines(*self._constant(fallen), *self._constant(moved), each.gap)
        several = alive.sum(2) > 1
        chosen = choose(several[:, :, None].expand(shape).flatten(1), plain, each)
        return chosen, torch.where(several, moved - fallen, each.gap.reshape(shape).sum(2)), several

    def gaps(self, values: Tensor) -> Tensor:
        """The gaps (points, outputs * taps) of given inputs."""
        taken = self._taps(values, 0.0) - values.flatten(1).gather(1, self.place)[:, :, None]
        return torch.where(self.still, 0.0, taken.flatten(1))

    def blocks(
        self,
        bounds: Lines,
        part: Range,
        constant: Tensor,
        counted: Tensor,
        centre: list[Tensor],
        slopes: tuple[Tensor, Tensor] | None,
        view: View,
        sides: tuple[bool, ...],
    ) -> GapBlocks | None:
        """What upper lines leave at the centre of a ball, and how fast a move of the input uses it up.

        For the difference of two networks, `slopes` are those that its ReLUs can have, and lower lines count too. A
        line over a range leaves a concave room above a convex function, so the room falls at most by its share of the
        way to the nearer end. A constant stands for all taps of its window, and a maximum moves at most as they do.
        """
        taps = self._windows.shape[1]
        fixed = constant[:, :, None].expand(self.shape).flatten(1)
        place = centre[-1] if slopes is None else centre[1] - centre[0]
        chosen = torch.nonzero(counted[0]).flatten()
        if not affordable(len(chosen), view.inputs):
            return None
        rows, drift = view.at_input(self.rows(chosen[None]), sides)
        window = chosen // taps
        size = torch.linalg.vector_norm(rows, dim=1)
        widest = torch.zeros(self.shape[1], dtype=torch.float64).scatter_reduce(0, window, size, "amax")
        scale = torch.where(fixed[0, chosen], widest[window], size).clamp_min(1e-30)
        scaled = rows / scale[:, None]
        slacks = []
        for sign in (1.0,) if slopes is None else (1.0, -1.0):
            line = (bounds.high_slope * place + bounds.high) if sign > 0 else (bounds.low_slope * place + bounds.low)
            if slopes is None:
                value = place.clamp_min(0.0)
            else:
                ends = slopes[0] * place, slopes[1] * place
                value = torch.maximum(*ends) if sign > 0 else torch.minimum(*ends)
            room = (sign * (line - value) - 1e-12 * (line.abs() + value.abs()))[0, chosen].clamp_min(0.0)
            near = torch.minimum(part.high - place, place - part.low)[0, chosen]
            single = ~fixed[0, chosen] & (near > 1e-12) & (room > 0)
            rate = room[single] / near[single]
            slacks.append(Slack(window[single], sign, room[single], rate * scale[single], rate * drift[single]))
            outputs = torch.nonzero(constant[0]).flatten()
            flat = torch.where(counted, sign * place, 0.0).reshape(self.shape)[0].amax(1).clamp_min(0.0)
            held = sign * (bounds.high if sign > 0 else bounds.low).reshape(self.shape)[0].sum(1)
            left = (held * (1 - 1e-12) - flat)[outputs].clamp_min(0.0)
            slip = torch.zeros(self.shape[1], dtype=torch.float64).scatter_add(0, window, drift)
            slacks.append(Slack(outputs, sign, left, widest[outputs].clamp_min(1e-30), slip[outputs]))
        return GapBlocks(tuple(slacks), scaled.T @ scaled)

    def through(self, bounds: Lines, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (points, rows, outputs) on maxima as rows on the inputs (points, rows, inputs), and the constants."""
        taps = self._windows.shape[1]
        wide = rows.repeat_interleave(taps, dim=2)
        up, down = wide.clamp_min(0.0), wide.clamp_max(0.0)
        on_gaps = up * bounds.high_slope[:, None] + down * bounds.low_slope[:, None]
        constant = (up @ bounds.high[:, :, None] + down @ bounds.low[:, :, None]).squeeze(2)
        lead = rows - on_gaps.reshape(*rows.shape, taps).sum(3)
        made = rows.new_zeros(*rows.shape[:2], self._inputs)
        made.scatter_add_(2, self.place[:, None].expand(rows.shape), lead)
        places = self._windows.clamp_min(0).flatten()[None, None].expand(on_gaps.shape)
        return made.scatter_add_(2, places, on_gaps), constant


class Maxima:
    """The windows of one step on a batch of points, in both networks and in their difference."""

    def __init__(self, windows: Tensor, before: Ranges) -> None:
        self.one = Leaders(windows, before.original.low + before.original.high)
        self.two = Leaders(windows, before.pruned.low + before.pruned.high)
        parts = (before.original, before.pruned, before.difference)
        self._gaps = Ranges(*(self.one.apart(part) for part in parts))
        self._own = self.two.apart(before.pruned)
        self._lines: tuple[Lines, Lines, Lines, Tensor] | None = None
        self._view: View | None = None
        self._reaches: list[tuple[GapBlocks, float]] = []
        """Of the original, the pruned network, their difference, and all of them: blocks, and norm times radius."""

    def wanted(self) -> Tensor:
        """Numbers (points, count) of the original's gaps that may be positive in a network and negative in one."""
        gaps = self._gaps
        high = torch.maximum(gaps.original.high, gaps.pruned.high)
        low = torch.minimum(gaps.original.low, gaps.pruned.low)
        open_ = (high > 0) & ((low < 0) | (gaps.difference.low < gaps.difference.high)) & ~self.one.still
        return _numbers(open_)

    def wanted_own(self) -> Tensor:
        """Numbers (points, count) of the pruned network's gaps that may be positive, where it has another leader."""
        other = (self.one.place != self.two.place)[:, :, None].expand(self.two.shape).flatten(1)
        return _numbers(other & (self._own.high > 0) & ~self.two.still)

    def learn(self, chosen: Tensor, original: Range, pruned: Range | None, difference: Range) -> None:
        """Remember tighter ranges of the chosen gaps."""
        parts = (self._gaps.original, self._gaps.pruned, self._gaps.difference)
        for part, found in zip(parts, (original, pruned, difference)):
            if found is not None:
                self.one.learn(part, chosen, found)
        self._gaps = self._gaps.tightened()
        self._lines = None

    def learn_own(self, chosen: Tensor, pruned: Range) -> None:
        """Remember tighter ranges of the pruned network's own gaps."""
        self.two.learn(self._own, chosen, pruned)
        self._lines = None

    def _bounds(self) -> tuple[Lines, Lines, Lines, Tensor]:
        """Lines in both networks and in their difference, and a 1 (points, 1, outputs) where that goes by both."""
        if self._lines is None:
            same = (self.one.place == self.two.place)[:, :, None].expand(self.two.shape).flatten(1)
            shared = self._gaps.pruned
            own = Range(
                torch.where(same, torch.maximum(self._own.low, shared.low), self._own.low),
                torch.where(same, torch.minimum(self._own.high, shared.high), self._own.high),
            )
            own = Range(torch.minimum(own.low, own.high), torch.maximum(own.low, own.high))
            (one, first, loose), (two, second, other) = self.one.network(self._gaps.original), self.two.network(own)
            change, third, several = self.one.change(self._gaps)
            self._lines = one, two, change, (first + second < third)[:, None].to(torch.float64)
            if self._view is not None:
                self._reaches = self._joint(self._view, own, (loose, other, several))
        return self._lines

    def see(self, view: View) -> None:
        """Take up how the windows' inputs come from a ball: what gaps cost together is counted then."""
        self._view = view
        self._lines = None

    def _joint(self, view: View, own: Range, constant: tuple[Tensor, Tensor, Tensor]) -> list[tuple[GapBlocks, float]]:
        assert self._lines is not None
        one, two, change, _ = self._lines
        gaps = self._gaps
        alive = (gaps.original.high > 0) | (gaps.pruned.high > 0)
        cases = (
            (self.one, one, (False,), gaps.original, constant[0], gaps.original.high > 0),
            (self.two, two, (True,), own, constant[1], own.high > 0),
            (self.one, change, (False, True), gaps.difference, constant[2], alive),
        )
        made = []
        for leaders, bounds, sides, part, fixed, counted in cases:
            centre = [leaders.gaps(view.centres[int(side)]) for side in sides]
            slopes = joint_slopes(gaps) if len(sides) == 2 else None
            made.append(leaders.blocks(bounds, part, fixed, counted & ~leaders.still, centre, slopes, view, sides))
        if any(block is None for block in made):
            return []
        found = [block for block in made if block is not None]
        return [(block, view.radius * largest([block])) for block in found] + [(found[0], view.radius * largest(found))]

    def back_one(self, found: Tensor, pruned: bool) -> tuple[Tensor, Tensor]:
        """Rows (points, rows, *output shape) on the maxima of one network as rows on its inputs, and the constants."""
        one, two, *_ = self._bounds()
        rows = found.flatten(2)
        made, constant = self.two.through(two, rows) if pruned else self.one.through(one, rows)
        if self._reaches:
            blocks, reach = self._reaches[int(pruned)]
            constant = constant - saving([(rows, blocks)], reach)
        return made, constant

    def back(self, found: Both, shape: tuple[int, ...]) -> tuple[Both, Tensor]:
        """The same for rows on the original and on the difference."""
        on_original, on_difference = (rows.flatten(2) for rows in found)
        one, two, change, share = self._bounds()
        own = on_difference * share
        parts = on_original - own, own, on_difference - own
        first, second = self.one.through(one, parts[0]), self.two.through(two, parts[1])
        third = self.one.through(change, parts[2])
        original, difference = first[0] + second[0], second[0] + third[0]
        made = original.reshape(*original.shape[:2], *shape), difference.reshape(*difference.shape[:2], *shape)
        constant = first[1] + second[1] + third[1]
        if self._reaches:
            constant = constant - saving(list(zip(parts, [blocks for blocks, _ in self._reaches])), self._reaches[3][1])
        return made, constant


def joint_slopes(gaps: Ranges) -> tuple[Tensor, Tensor]:
    """The slopes that the ReLUs of gaps can have between two networks."""
    both = joint(gaps)
    return _RELU.slopes(both.low, both.high)


def _numbers(open_: Tensor) -> Tensor:
    """The numbers (points, count) of what is True, as many for every point as the most of them has."""
    count = int(open_.sum(1).max()) if open_.numel() else 0
    return open_.to(torch.uint8).topk(count, dim=1).indices
