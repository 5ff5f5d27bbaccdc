"""Linear bounds on maxima over windows, for the backward relaxation.

A maximum is at least any of its inputs, so from below it is the input with the highest lower bound. Where that input is
the largest for sure, the maximum is this input; elsewhere it is bounded from above by its range. The difference of two
networks' maxima is the difference at that input where it is the largest for sure in both, and else lies in its range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.certificates.bounds.intervals import Range, Ranges


def back_maxima(
    windows: Tensor, found: tuple[Tensor, Tensor], before: Ranges, after: Ranges
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (points, rows, *output shape) on the maxima as rows on their inputs, and the constants (points, rows)."""
    shape = before.original.low.shape[1:]
    on_original, on_difference = (rows.flatten(2) for rows in found)
    chosen, sure = _leader(windows, before.original)
    both = sure & _is_leader(windows, before.pruned, chosen)
    sure, both = sure[:, None].to(torch.float64), both[:, None].to(torch.float64)
    up, down = on_original.clamp_min(0.0), on_original.clamp_max(0.0)
    through = down + up * sure
    high = after.original.high.flatten(1)[:, :, None]
    constant = ((up * (1 - sure)) @ high).squeeze(2)
    rest = on_difference * (1 - both)
    low_off, high_off = (side.flatten(1)[:, :, None] for side in (after.difference.low, after.difference.high))
    constant = constant + (rest.clamp_min(0.0) @ high_off + rest.clamp_max(0.0) @ low_off).squeeze(2)
    size = before.original.low[0].numel()
    spread = [
        _scattered(rows, chosen, size).reshape(*rows.shape[:2], *shape) for rows in (through, on_difference * both)
    ]
    return spread[0], spread[1], constant


def _scattered(rows: Tensor, chosen: Tensor, size: int) -> Tensor:
    blank = rows.new_zeros(*rows.shape[:2], size)
    return blank.scatter_add_(2, chosen[:, None].expand(rows.shape), rows)


def _windowed(windows: Tensor, values: Tensor) -> Tensor:
    """(points, outputs, taps); taps outside of the image are never the largest."""
    taken = values.flatten(1)[:, windows.clamp_min(0)]
    return torch.where(windows >= 0, taken, torch.full_like(taken, -torch.inf))


def _leader(windows: Tensor, part: Range) -> tuple[Tensor, Tensor]:
    """The input (points, outputs) with the highest lower bound, and whether it is the largest for sure."""
    tap = _windowed(windows, part.low).argmax(2)
    chosen = windows[None].expand(tap.shape[0], -1, -1).gather(2, tap[:, :, None]).squeeze(2)
    return chosen, _is_leader(windows, part, chosen)


def _is_leader(windows: Tensor, part: Range, chosen: Tensor) -> Tensor:
    """True where the chosen input's lower bound is at least every other input's upper bound."""
    highs = _windowed(windows, part.high)
    others = torch.where(windows[None] == chosen[:, :, None], torch.full_like(highs, -torch.inf), highs).amax(2)
    return part.low.flatten(1).gather(1, chosen) >= others
