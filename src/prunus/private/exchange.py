"""Exchange some of the true top coordinates for others, uniformly (N-12, item 3), in one vector or in many groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from prunus import select
from prunus.errors import BadInput
from prunus.private.randomness import Integers, Source

_ROWS = 1 << 14  # groups handled at once: buffers of a few tens of megabytes
Counts = Callable[[int, int, int, Source], Integers]  # (how many, kept, others, source) -> numbers of swaps


def top_set(vector: Tensor, m: int, absolute: bool = True) -> Tensor:
    """Positions of the m largest magnitudes, ascending; refuses NaN and infinities."""
    if vector.numel() == 0:
        raise BadInput("The vector to select from is empty.")
    try:
        top = select.top_indices(vector, m, absolute=absolute)
    except BadInput as error:
        if "NaN" in str(error):
            raise BadInput("The vector to select from contains NaN; leave the step out, or mend the values.") from None
        raise
    # An infinite entry is one of the largest, so looking at those is enough.
    if not bool(torch.isfinite(vector.detach().reshape(-1)[top]).all()):
        raise BadInput("The vector to select from contains infinite entries; leave the step out, or clip the values.")
    return top


def exchange(top: Integers, d: int, swaps: int, source: Source) -> Integers:
    """The ascending index set after `swaps` uniform swaps of the ascending set `top` in range(d); no O(d) array.

    A rank r among the other coordinates is the index r + #{top entries before it}. The result is in ascending order, so
    the order tells nothing about what was swapped.
    """
    if swaps == 0:
        return top
    leaving = source.subset(swaps, len(top))
    ranks = source.subset(swaps, d - len(top))
    ranks += np.searchsorted(top - np.arange(len(top)), ranks, side="right")
    kept = top.copy()
    kept[leaving] = ranks
    kept.sort()
    return kept


def in_groups(vector: Tensor, size: int, kept_of: Callable[[int], int], counts: Counts, source: Source) -> Tensor:
    """Independent draws in groups of `size` neighbouring coordinates (N-15); the last group may be shorter."""
    flat = vector.detach().reshape(-1)
    whole = flat.numel() // size
    parts = []
    for start in range(0, whole, _ROWS):
        stop = min(start + _ROWS, whole)
        rows = flat[start * size : stop * size].view(-1, size)
        parts.append(_draw_rows(rows, kept_of(size), counts, source) + start * size)
    if flat.numel() % size:
        rest = flat[whole * size :].view(1, -1)
        parts.append(_draw_rows(rest, kept_of(rest.shape[1]), counts, source) + whole * size)
    return torch.from_numpy(np.concatenate(parts)).to(vector.device)


def _draw_rows(rows: Tensor, m: int, counts: Counts, source: Source) -> Integers:
    """Flat positions kept in each row, ascending."""
    count, n = rows.shape
    if not bool(torch.isfinite(rows).all()):
        raise BadInput("The vector to select from contains NaN or infinite entries; leave the step out, or mend them.")
    mask = select.drop_smallest_in_banks(rows.contiguous(), [n - m], n, absolute=True).cpu().numpy()
    if m == n:
        return np.arange(count * n, dtype=np.int64)
    swaps = counts(count, m, n - m, source)
    order = _shuffled(mask, source)
    # In each row: true coordinates first, both parts in random order. The first `swaps` of each part change sides.
    chosen = np.zeros((count, n), bool)
    column = np.arange(n)[None, :]
    take = ((column >= swaps[:, None]) & (column < m)) | ((column >= m) & (column < m + swaps[:, None]))
    np.put_along_axis(chosen, order, take, axis=1)
    return np.flatnonzero(chosen)


def _shuffled(mask: np.ndarray, source: Source) -> Integers:
    """(rows, n) column numbers: the True ones first, each part in uniform random order.

    62-bit keys are sorted; a row with two equal keys is drawn again, so the order is exactly uniform.
    """
    count, n = mask.shape
    keys = (source.words(count * n, np.uint64) >> np.uint64(2)).reshape(count, n)
    keys = np.where(mask, keys, keys | np.uint64(1 << 63))
    order = np.argsort(keys, axis=1)
    ordered = np.take_along_axis(keys, order, axis=1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if tied.any():
        order[tied] = _shuffled(mask[tied], source)
    return order
