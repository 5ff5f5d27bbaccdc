"""Banks of a weight: where they begin, and masks with given numbers of zeros in each."""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.layers import Weight
from prunus.select import drop_smallest_in_banks


def banks_of(weight: Weight, bank: int) -> list[tuple[int, int]]:
    """(start, length) of every bank along a row: inside each tap, or across taps where a tap has fewer channels."""
    _, taps, channels = weight.rows(weight.parameter.detach().to("meta")).shape
    segment, repeats = (channels, taps) if channels >= bank else (taps * channels, 1)
    inside = [(start, min(bank, segment - start)) for start in range(0, segment, bank)]
    return [(tap * segment + start, length) for tap in range(repeats) for start, length in inside]


def masks_by_segment(rows: Tensor, banks: list[tuple[int, int]], drops: list[int], bank: int, absolute: bool) -> Tensor:
    """Banks that follow each other without a short one between them go to the selection in one call."""
    parts, first = [], 0
    for number, (start, length) in enumerate(banks):
        if length < bank or number == len(banks) - 1:
            begin, end = banks[first][0], start + length
            parts.append(drop_smallest_in_banks(rows[:, begin:end], drops[first : number + 1], bank, absolute=absolute))
            first = number + 1
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
