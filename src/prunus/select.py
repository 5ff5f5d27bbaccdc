"""Exact selection: which entries are the smallest, counted exactly, ties by position.

Pruning drops the `count` smallest scores, private sparsification keeps the `count` largest gradients, and balanced
sparsity does the first inside every bank. One rule: entries are ordered by (score, position), so exactly the requested
number goes, those that a stable ascending sort puts first. -0.0 and 0.0 are equal.

Nothing here sorts all scores. A small sample gives a bracket that almost surely contains the threshold (ledger N-12,
item 4); one chunked pass counts what lies below and collects what lies inside, a second writes the answer. Where the
bracket misses or holds too many equal scores it is narrowed. The native module and the torch code agree bit by bit.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.native import load

__all__ = ["drop_smallest", "drop_smallest_in_banks", "top_indices"]
_CHUNK = 1 << 18  # scores per step: buffers stay in the cache
_SMALL = 1 << 17  # up to here all scores together are cheaper to select from than a sample and two passes
_SAMPLE = 1 << 17
_ROUNDS = 48  # narrowing usually takes one round, with heavy ties three or four
_NETWORK = 64  # largest bank that is sorted by a comparison network


@overload
def drop_smallest(scores: Tensor, count: int, *, absolute: bool = False) -> Tensor: ...
@overload
def drop_smallest(scores: Sequence[Tensor], count: int, *, absolute: bool = False) -> list[Tensor]: ...
def drop_smallest(scores: Tensor | Sequence[Tensor], count: int, *, absolute: bool = False) -> Tensor | list[Tensor]:
    """Masks that drop exactly the `count` smallest scores over all tensors together; True where kept.

    Among equal scores the earlier position is dropped first: tensors in the given order, row-major inside each.

    Args:
        scores: one floating-point tensor of any shape, or several; Inf is allowed, NaN is not.
        count: how many entries to drop, 0 to the number of all entries.
        absolute: compare magnitudes instead of values.

    Returns:
        A boolean tensor of the shape and device of `scores`, or a list of them.

    Example:
        >>> prunus.select.drop_smallest(torch.tensor([3.0, 1.0, 2.0]), 1)
        tensor([ True, False,  True])
    """
    tensors = [scores] if isinstance(scores, Tensor) else list(scores)
    flat = _flatten(tensors)
    count = _checked_count(count, sum(part.numel() for part in flat), "drop")
    masks = [torch.empty(part.shape, dtype=torch.bool, device=part.device) for part in flat]
    native = _native_for(flat)
    if native:
        places = [(part.data_ptr(), part.numel()) for part in flat]
        _require_order(native.drop_smallest(places, [mask.data_ptr() for mask in masks], absolute, count))
    else:
        threshold, ties = _threshold(flat, count, absolute)
        for part, mask in zip(flat, masks):
            for start, chunk in _chunks(part, absolute):
                ties = _mark(chunk, threshold, ties, mask[start : start + chunk.numel()])
    shaped = [mask.view(tensor.shape) for mask, tensor in zip(masks, tensors)]
    return shaped[0] if isinstance(scores, Tensor) else shaped


def top_indices(vector: Tensor, count: int, *, absolute: bool = True) -> Tensor:
    """Positions of the `count` largest entries of a vector, ascending: what `drop_smallest` would keep.

    Args:
        vector: floating point; a tensor of another shape is read in row-major order.
        count: how many to keep, 0 to the number of entries.
        absolute: compare magnitudes instead of values.

    Returns:
        (count,) int64 on the device of `vector`.

    Example:
        >>> prunus.select.top_indices(torch.tensor([1.0, -3.0, 2.0]), 2)
        tensor([1, 2])
    """
    (flat,) = _flatten([vector])
    count = _checked_count(count, flat.numel(), "keep")
    indices = torch.empty(count, dtype=torch.int64, device=flat.device)
    native = _native_for([flat])
    if native:
        _require_order(native.top_indices((flat.data_ptr(), flat.numel()), indices.data_ptr(), absolute, count))
        return indices
    threshold, ties = _threshold([flat], flat.numel() - count, absolute)
    kept = torch.empty(min(_CHUNK, flat.numel()), dtype=torch.bool, device=flat.device)
    done = 0
    for start, chunk in _chunks(flat, absolute):
        mask = kept[: chunk.numel()]
        ties = _mark(chunk, threshold, ties, mask)
        found = _positions(mask)
        torch.add(found, start, out=indices[done : done + found.numel()])
        done += found.numel()
    return indices


def drop_smallest_in_banks(
    scores: Tensor, drops: Sequence[int] | Tensor, bank: int, *, absolute: bool = False
) -> Tensor:
    """A mask that drops `drops[b]` entries from bank number b of every row; True where kept.

    Bank b of a row holds the columns b * bank to (b + 1) * bank - 1; the last one may be short. Inside a bank the
    smallest go first, and among equals the earlier column.

    Args:
        scores: (rows, columns), floating point.
        drops: one count for each bank of a row, 0 to the size of that bank.
        bank: columns in a bank, at least 1.
        absolute: compare magnitudes instead of values.

    Returns:
        (rows, columns) boolean, on the device of `scores`.

    Example:
        >>> prunus.select.drop_smallest_in_banks(torch.tensor([[1.0, 2.0, 4.0, 3.0]]), [1, 1], 2)
        tensor([[False,  True,  True, False]])
    """
    counts = _checked_banks(scores, drops, bank)
    rows, columns = scores.shape
    mask = torch.empty(rows, columns, dtype=torch.bool, device=scores.device)
    native = _native_for([scores])
    if native and rows and 0 < columns < 1 << 31:
        compact = scores.detach().resolve_neg().contiguous()
        place = compact.data_ptr(), rows, columns
        _require_order(native.drop_in_banks(*place, mask.data_ptr(), absolute, min(bank, columns), counts))
        return mask
    whole = columns // bank
    if rows and whole:
        _drop_in_equal_banks(scores[:, : whole * bank], counts[:whole], bank, absolute, mask[:, : whole * bank])
    if rows and columns % bank:
        tail = slice(whole * bank, columns)
        _drop_in_equal_banks(scores[:, tail], counts[whole:], columns % bank, absolute, mask[:, tail])
    return mask


# --- checks ----------------------------------------------------------------------------------------------------------


def _flatten(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous row-major vectors of the tensors (views where they are stored so), checked to be orderable."""
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise BadInput(f"Scores must be floating-point tensors, but tensor {number} is {what}; convert it first.")
    flat = [tensor.detach().resolve_neg().reshape(-1).contiguous() for tensor in tensors]
    if any(part.dtype == torch.float64 for part in flat):  # a threshold between two float32 numbers fits float64 only
        flat = [part.double() for part in flat]
    return flat


def _checked_count(count: int, total: int, verb: str) -> int:
    if not isinstance(count, numbers.Integral) or not 0 <= count <= total:
        raise BadInput(f"Cannot {verb} {count} of {total} scores; ask for a whole number from 0 to {total}.")
    return int(count)


def _checked_banks(scores: Tensor, drops: Sequence[int] | Tensor, bank: int) -> list[int]:
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.dim() != 2:
        raise BadInput("Scores to select from in banks must be a floating-point tensor of shape (rows, columns).")
    if bank < 1:
        raise BadInput(f"A bank must hold at least 1 column, not {bank}.")
    columns = scores.shape[1]
    counts = [int(drop) for drop in (drops.tolist() if isinstance(drops, Tensor) else drops)]
    banks = -(-columns // bank)
    if len(counts) != banks:
        raise BadInput(f"{columns} columns make {banks} banks of {bank}, but {len(counts)} counts were given.")
    for number, drop in enumerate(counts):
        size = min(bank, columns - number * bank)
        if not 0 <= drop <= size:
            raise BadInput(f"Cannot drop {drop} of the {size} columns in bank {number}; ask for 0 to {size}.")
    return counts


def _require_order(ordered: bool) -> None:
    if not ordered:
        raise BadInput("The scores contain NaN, which has no place in an order; replace or mask it first.")


def _refuse_nan(values: Tensor) -> None:
    _require_order(not bool(torch.isnan(values).any()))


# --- the native module -----------------------------------------------------------------------------------------------


class _Native(NamedTuple):
    """The native functions for one type of score; each returns False where it met NaN."""

    drop_smallest: Callable[..., bool]
    top_indices: Callable[..., bool]
    drop_in_banks: Callable[..., bool]


_FORMATS = {torch.float32: (False, 0x7F800000), torch.float16: (True, 0x7C00), torch.bfloat16: (True, 0x7F80)}
_LEVEL = ""  # instruction set to use; empty: the one the module chose


def _native_for(tensors: Sequence[Tensor]) -> _Native | None:
    """The native functions where they can serve all these tensors: one type of at most 32 bits, in main memory."""
    module = load("_select")
    kinds = {(tensor.dtype, tensor.device.type) for tensor in tensors}
    if module is None or len(kinds) != 1:
        return None
    ((dtype, device),) = kinds
    if device != "cpu" or dtype not in _FORMATS:
        return None
    half, infinity = _FORMATS[dtype]
    keywords = {"half": half, "infinity": infinity, "level": _LEVEL}
    functions = (module.drop_smallest, module.top_indices, module.drop_in_banks)
    return _Native(*(functools.partial(function, **keywords) for function in functions))


# --- chunks ----------------------------------------------------------------------------------------------------------


def _chunks(flat: Tensor, absolute: bool) -> Iterator[tuple[int, Tensor]]:
    """(start, chunk as it is compared): half precision widened exactly, magnitudes where asked, memory reused."""
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    buffer = torch.empty(min(_CHUNK, flat.numel()), dtype=wide, device=flat.device)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        if chunk.dtype != wide:
            chunk = buffer[: chunk.numel()].copy_(chunk)
        yield start, torch.abs(chunk, out=buffer[: chunk.numel()]) if absolute else chunk


def _mark(chunk: Tensor, threshold: float, ties: int, out: Tensor) -> int:
    """Write where the chunk is kept, drop up to `ties` scores equal to the threshold, and return how many are left."""
    if ties == 0:
        torch.ge(chunk, threshold, out=out)
        return 0
    torch.gt(chunk, threshold, out=out)
    equal = _positions(chunk == threshold)
    out[equal[ties:]] = True
    return max(ties - equal.numel(), 0)


def _words(mask: Tensor) -> Tensor | None:
    """The mask read eight entries at a time, (n/8,) int64, where its length and place in memory allow."""
    if mask.numel() % 8 or mask.storage_offset() % 8:
        return None
    return mask.view(torch.int64)


def _positions(mask: Tensor) -> Tensor:
    """Positions of the True entries, ascending. Few are expected, so whole words are searched first."""
    words = _words(mask)
    if words is None:
        return mask.nonzero().view(-1)
    hits = words.nonzero().view(-1)
    inner = mask.view(-1, 8)[hits].nonzero()
    return hits[inner[:, 0]].mul_(8).add_(inner[:, 1])


def _count(mask: Tensor) -> int:
    """Number of True entries; sums of up to 128 words cannot carry from one byte into the next."""
    words = _words(mask)
    if words is None or words.numel() % 128:
        return int(mask.sum())
    return int(words.view(128, -1).sum(0).view(torch.uint8).sum())


# --- the threshold ---------------------------------------------------------------------------------------------------


def _threshold(flat: Sequence[Tensor], count: int, absolute: bool) -> tuple[float, int]:
    """(t, ties): dropping all scores below t and the first `ties` scores equal to t drops exactly `count`."""
    total = sum(part.numel() for part in flat)
    if count == 0 or total <= _SMALL:
        return _threshold_of_all(flat, count, absolute)
    limit = max(_SMALL, total // 32)
    low, high = -math.inf, math.inf  # the answer lies between, both included;
    below, inside = 0, total  # so many scores lie under low, and so many from low to high
    for attempt in range(_ROUNDS):
        bottom, top = _bracket(flat, (low, high), (count - below) / inside, attempt, absolute)
        under, within, values = _scan(flat, bottom, top, limit, absolute)
        if count <= under:
            high, inside = _next(flat, bottom, -math.inf), under - below
        elif count > under + within:
            low = _next(flat, top, math.inf)
            below, inside = under + within, below + inside - under - within
        elif bottom == top:
            return bottom, count - under
        elif values is not None:
            return _select(values, count - under)
        else:
            low, high, below, inside = bottom, top, under, within
    return _threshold_of_all(flat, count, absolute)


def _threshold_of_all(flat: Sequence[Tensor], count: int, absolute: bool) -> tuple[float, int]:
    for part in flat:
        for _, chunk in _chunks(part, absolute):
            _refuse_nan(chunk)
    if count == 0:
        return -math.inf, 0
    device = flat[0].device
    values = torch.cat([chunk.to(device, copy=True) for part in flat for _, chunk in _chunks(part, absolute)])
    return _select(values, count)


def _select(values: Tensor, count: int) -> tuple[float, int]:
    """The count-th smallest value (count >= 1), and how many of the count smallest equal it."""
    threshold = values.kthvalue(count).values
    return float(threshold), count - int((values < threshold).sum())


def _bracket(
    flat: Sequence[Tensor], limits: tuple[float, float], fraction: float, attempt: int, absolute: bool
) -> tuple[float, float]:
    """Two scores that hold the wanted one between them with near certainty, from a sample inside `limits`.

    The rank of the wanted score in the sample is binomial; five standard deviations to each side miss once in a
    million. Every second attempt bets on one value instead: after a bracket that held too many, ties are likely.
    """
    sample = _sample(flat, attempt, absolute)
    low, high = limits
    sample = sample[(sample >= low) & (sample <= high)].sort().values
    size = sample.numel()
    if size == 0:
        return limits
    if attempt % 2:
        pivot = float(sample[min(int(fraction * size), size - 1)])
        return pivot, pivot
    spread = 5 * math.sqrt(size * fraction * (1 - fraction)) + 5
    first, last = math.floor(fraction * size - spread), math.ceil(fraction * size + spread)
    return (float(sample[first]) if first >= 0 else low, float(sample[last]) if last < size else high)


def _sample(flat: Sequence[Tensor], seed: int, absolute: bool) -> Tensor:
    """Scores at random positions. Fixed seeds suffice: the sample decides how long it takes, never what comes out."""
    sizes = torch.tensor([part.numel() for part in flat])
    ends = sizes.cumsum(0)
    places = torch.randint(int(ends[-1]), (_SAMPLE,), generator=torch.Generator().manual_seed(seed)).sort().values
    owners = torch.searchsorted(ends, places, right=True)
    parts = []
    for number, part in enumerate(flat):
        local = places[owners == number] - (ends[number] - sizes[number])
        parts.append(part[local.to(part.device)].to("cpu", torch.float64))
    sample = torch.cat(parts)
    return sample.abs() if absolute else sample


def _scan(
    flat: Sequence[Tensor], bottom: float, top: float, limit: int, absolute: bool
) -> tuple[int, int, Tensor | None]:
    """(scores below bottom, scores from bottom to top, those scores, or None where there are more than `limit`)."""
    under = within = 0
    found: list[Tensor] = []
    for part in flat:
        flags = torch.empty(3, min(_CHUNK, part.numel()), dtype=torch.bool, device=part.device)
        for _, chunk in _chunks(part, absolute):
            less, more, middle = (flag[: chunk.numel()] for flag in flags)
            torch.lt(chunk, bottom, out=less)
            torch.gt(chunk, top, out=more)
            torch.eq(less, more, out=middle)  # neither: inside the bracket, or NaN
            dropped = _count(less)
            under += dropped
            values = chunk[_positions(middle)]
            _refuse_nan(values)
            within += values.numel()
            if within <= limit and bottom < top:
                found.append(values)
    if within > limit or bottom == top:
        return under, within, None
    return under, within, torch.cat([values.to(flat[0].device) for values in found])


def _next(flat: Sequence[Tensor], value: float, toward: float) -> float:
    """The neighbour of a score in the type that scores are compared in."""
    wide = torch.float64 if flat[0].dtype == torch.float64 else torch.float32
    return float(torch.nextafter(torch.tensor(value, dtype=wide), torch.tensor(toward, dtype=wide)))


# --- banks -----------------------------------------------------------------------------------------------------------


def _drop_in_equal_banks(scores: Tensor, drops: Sequence[int], bank: int, absolute: bool, mask: Tensor) -> None:
    """Fill `mask` (rows, banks * bank) for banks of one size, some rows at a time."""
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    rows, columns = scores.shape
    wanted = torch.tensor(drops, device=scores.device)
    step = min(rows, max(1, _CHUNK // columns))
    held = torch.empty(step, columns, dtype=wide, device=scores.device)
    room = torch.empty(step * columns, dtype=wide, device=scores.device)
    for start in range(0, rows, step):
        chunk = held[: min(step, rows - start)].copy_(scores[start : start + step].detach())
        chunk = (chunk.abs_() if absolute else chunk).view(-1, len(drops), bank)
        ascending = _sorted_columns(chunk, room)
        _refuse_nan(ascending[-1])  # NaN is carried to the end
        limit = torch.full(chunk.shape[:2], -math.inf, dtype=wide, device=chunk.device)
        tied = (wanted == 0).expand_as(limit)  # where nothing goes, -Inf stays too
        for drop in set(drops) - {0}:
            here = wanted == drop
            limit = torch.where(here, ascending[drop - 1], limit)
            if drop < bank:
                tied = tied | (here & (ascending[drop - 1] == ascending[drop]))
        kept = mask[start : start + step].unflatten(1, (len(drops), bank))
        torch.gt(chunk, limit.unsqueeze(2), out=kept)
        _settle_ties(chunk, limit, kept, bank - wanted, tied)


def _settle_ties(chunk: Tensor, limit: Tensor, kept: Tensor, keep: Tensor, tied: Tensor) -> None:
    """In the banks marked in `tied` (rows, banks), keep the last scores equal to the limit until `keep` are kept."""
    where = tied.nonzero(as_tuple=True)
    if where[0].numel() == 0:
        return
    missing = keep[where[1]] - kept[where].sum(1)
    equal = chunk[where] == limit[where].unsqueeze(1)
    later = equal.flip(1).cumsum(1).flip(1)  # this one and the equal ones after it
    kept[where] |= equal & (later <= missing.unsqueeze(1))


def _sorted_columns(chunk: Tensor, room: Tensor) -> list[Tensor]:
    """The scores (rows, banks, bank) of every bank in ascending order: `bank` tensors (rows, banks), kept in `room`."""
    bank = chunk.shape[2]
    if bank > _NETWORK:
        return list(chunk.sort(2).values.unbind(2))
    across = room[: chunk.numel()].view(bank, -1).copy_(chunk.view(-1, bank).t())
    lanes = list(across.view(bank, *chunk.shape[:2]).unbind(0))
    spare = torch.empty_like(lanes[0])
    for i, j in _network(bank):
        torch.minimum(lanes[i], lanes[j], out=spare)
        torch.maximum(lanes[i], lanes[j], out=lanes[j])
        lanes[i], spare = spare, lanes[i]
    return lanes


@functools.cache
def _network(size: int) -> tuple[tuple[int, int], ...]:
    """Comparisons that sort `size` values: merge exchange (Batcher 1968; Knuth, The Art of Computer Programming 3)."""
    pairs = []
    rounds = max(size - 1, 0).bit_length()
    for p in (1 << k for k in reversed(range(rounds))):
        q, offset, gap = 1 << (rounds - 1) if rounds else 0, 0, p
        while True:
            pairs += [(i, i + gap) for i in range(size - gap) if i & p == offset]
            if q == p:
                break
            gap, q, offset = q - p, q // 2, p
    return tuple(pairs)
