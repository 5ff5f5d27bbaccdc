"""Kernel terms of one layer, exactly and without the Jacobian of the whole network (ledger K-20).

A layer contributes J J^T, where the row of J that belongs to input a and output c is the masked sum over pixels t of
B[a, c, t] G[a, t]^T: G are the layer's inputs and B the derivatives of output c by the layer's outputs. A linear layer
has one pixel. All forms give the same numbers; `cheapest` picks by a count of operations.

    plain     no mask, one pixel: (B B^T) * (G G^T)
    entries   kept entries in chunks, J[:, (i, j)] = B[:, i] G[:, j], one product for each chunk
    rows      for each row i of the weights (B_i B_i^T) * (G_S G_S^T), S the kept columns: free of charge in outputs
    pairs     for each pair of inputs (B_a * B_b)^T M (G_a * G_b): symmetric, and for masks that keep much
    pixels    no mask, few pixels: (B B^T) * (G G^T) over all pairs of pixels
    filters   J itself for some filters at a time, columns that the mask drops left out
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

FORMS = ("plain", "entries", "rows", "pairs", "pixels", "filters")
# Operations of a matrix product that take as long as moving one number, measured for each form: numbers gathered and
# multiplied, numbers gathered, products of a row, inputs of a pair, backward vectors of a pair.
_ENTRY, _COLUMN, _ROW, _PAIR, _PAIR_BACK = 100, 80, 180, 300, 600


@dataclass(frozen=True, eq=False)
class Outer:
    """One weight matrix on a block of inputs: G (n, pixels, fan), B (n, outputs, pixels, rows).

    mask     (rows, fan), True where kept; None keeps all
    weight   what the term is multiplied by: squares of the layer's factor and of the mask's 1/sqrt(density)
    """

    inputs: Tensor
    backs: Tensor
    mask: Tensor | None
    weight: float

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """n, outputs, pixels, rows, fan."""
        n, outputs, pixels, rows = self.backs.shape
        return n, outputs, pixels, rows, self.inputs.shape[2]

    @cached_property
    def counts(self) -> Tensor:
        """(rows,), how many entries the mask keeps in each row."""
        _, _, _, rows, fan = self.sizes
        if self.mask is None:
            return torch.full((rows,), fan, device=self.inputs.device)
        # Sums of bytes into 32 bits have a quick path in torch, sums of booleans have none; a few rows stay in cache.
        parts = self.mask.view(torch.uint8).split(max(1, (1 << 16) // fan))
        return torch.cat([part.sum(1, dtype=torch.int32) for part in parts]).long()

    @cached_property
    def kept(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, eq=False)
class Direct:
    """A small parameter (a bias, the scale of a norm) with its derivatives written out: (n, outputs, size)."""

    jacobian: Tensor


Term = Outer | Direct


@dataclass(frozen=True)
class Request:
    """full: blocks for all pairs of outputs, else their sum over equal ones; `budget` in bytes; a form by name."""

    full: bool = False
    budget: int = 1 << 28
    form: str | None = None


def product(first: Term, second: Term, request: Request) -> Tensor:
    """The term's kernel: (n1, n2) summed over outputs, or (n1, outputs, n2, outputs) where `request.full`."""
    if isinstance(first, Direct) or isinstance(second, Direct):
        assert isinstance(first, Direct)
        assert isinstance(second, Direct)
        return _gram(first.jacobian, second.jacobian, request.full)
    form = cheapest(first, second, request)
    if first.kept == 0:
        n1, outputs, n2 = len(first.backs), first.backs.shape[1], len(second.backs)
        return first.backs.new_zeros((n1, outputs, n2, outputs) if request.full else (n1, n2))
    return _FORMS[form](first, second, request) * first.weight


def cheapest(first: Outer, second: Outer, request: Request) -> str:
    """The form with the fewest operations, counting what gathering costs."""
    (n1, outputs, pixels, rows, fan), n2 = first.sizes, second.sizes[0]
    if pixels == 1 and first.mask is None:
        return "plain"
    if request.form is not None and _fits(request.form, first, request):
        return request.form
    if pixels > 1:
        pair_cost = float(pixels**2 * (rows * outputs + fan))
        few = first.mask is None and not request.full and pair_cost < float(outputs * rows * fan)
        return "pixels" if few else "filters"
    assert first.mask is not None
    kept, half = first.kept, 0.5 if first is second else 1.0
    many = outputs**2 if request.full else outputs
    triangle = 0.65 if first is second and n1 >= _SPLIT_FROM else 1.0
    costs = {
        "entries": kept * (2 * triangle * n1 * n2 * many + _ENTRY * (n1 + n2) / 2 * outputs),
        "pairs": half * n1 * n2 * (2 * rows * fan + _PAIR * (rows + fan) + (2 * many + _PAIR_BACK * outputs) * rows),
    }
    if not request.full:
        costs["rows"] = kept * (2 * n1 * n2 + _COLUMN * (n1 + n2) / 2) + rows * n1 * n2 * (2 * outputs + _ROW)
    return min(costs, key=lambda form: costs[form])


def _fits(form: str, term: Outer, request: Request) -> bool:
    one, dense = term.sizes[2] == 1, term.mask is None
    if form in ("entries", "pairs"):
        return one
    if form == "rows":
        return one and not request.full
    return (dense and not request.full) if form == "pixels" else form == "filters"


# --------------------------------------------------------------------------------------------------------------- forms


def _gram(j1: Tensor, j2: Tensor, full: bool) -> Tensor:
    """Products of (n, outputs, k) with (n, outputs, k)."""
    if full:
        (n1, outputs, _), n2 = j1.shape, len(j2)
        return (j1.flatten(0, 1) @ j2.flatten(0, 1).T).view(n1, outputs, n2, outputs)
    return j1.flatten(1) @ j2.flatten(1).T


def _plain(first: Outer, second: Outer, request: Request) -> Tensor:
    inputs = first.inputs[:, 0] @ second.inputs[:, 0].T
    backs = _gram(first.backs[:, :, 0], second.backs[:, :, 0], request.full)
    return backs * (inputs[:, None, :, None] if request.full else inputs)


_SPLIT_FROM = 512  # inputs from which a symmetric product is worked out by blocks of the upper triangle


def _add_gram(kernel: Tensor, left: Tensor, right: Tensor, symmetric: bool) -> None:
    """kernel += left^T right for (k, n) factors; of a symmetric one only the upper blocks."""
    if not symmetric or len(kernel) < _SPLIT_FROM:
        kernel.addmm_(left.T, right)
        return
    size = -(-len(kernel) // 4)
    for start in range(0, len(kernel), size):
        kernel[start : start + size, start:].addmm_(left[:, start : start + size].T, right[:, start:])


def _mirror(kernel: Tensor, symmetric: bool) -> Tensor:
    return torch.triu(kernel) + torch.triu(kernel, 1).T if symmetric and len(kernel) >= _SPLIT_FROM else kernel


def _entries(first: Outer, second: Outer, request: Request) -> Tensor:
    n1, outputs, _, _, _ = first.sizes
    n2, same = second.sizes[0], first is second
    mask = _mask(first)
    rows, columns = mask.nonzero(as_tuple=True)
    # (rows, n * outputs) and (fan, n * outputs): a kept entry then gathers two runs of neighbouring numbers.
    back1, input1 = _by_row(first).flatten(1), first.inputs[:, 0].T.contiguous()
    back2, input2 = (back1, input1) if same else (_by_row(second).flatten(1), second.inputs[:, 0].T.contiguous())
    wide = outputs if request.full else 1
    kernel = first.backs.new_zeros(wide * n1, wide * n2)
    numbers = outputs * (n1 if same else n1 + n2)
    chunk = max(64, request.budget // 4 // (numbers * kernel.element_size()))
    chunk = min(chunk, max(2048, (1 << 18) // numbers))  # a chunk that stays in the cache is quicker
    work1 = _Workspace(back1, chunk, outputs)
    work2 = work1 if same else _Workspace(back2, chunk, outputs)
    for start in range(0, len(rows), chunk):
        i, j = rows[start : start + chunk], columns[start : start + chunk]
        left = work1.jacobian(back1, input1, i, j, request.full)
        right = left if same else work2.jacobian(back2, input2, i, j, request.full)
        _add_gram(kernel, left, right, same)
    kernel = _mirror(kernel, same)
    return kernel.view(outputs, n1, outputs, n2).permute(1, 0, 3, 2) if request.full else kernel


class _Workspace:
    """Memory that chunk after chunk is gathered into: fresh memory costs ten times what the gathering does."""

    def __init__(self, like: Tensor, chunk: int, outputs: int) -> None:
        self.outputs = outputs
        self.backs = like.new_empty(chunk, like.shape[1])
        self.inputs = like.new_empty(chunk, like.shape[1] // outputs)

    def jacobian(self, back: Tensor, inputs: Tensor, i: Tensor, j: Tensor, full: bool) -> Tensor:
        """(entries, outputs * n) for all blocks, (entries * outputs, n) for their sum."""
        torch.index_select(back, 0, i, out=self.backs[: len(i)])
        torch.index_select(inputs, 0, j, out=self.inputs[: len(j)])
        part = self.backs[: len(i)].view(len(i), self.outputs, -1)
        part *= self.inputs[: len(j), None]
        return part.flatten(1) if full else part.flatten(0, 1)


def _rows(first: Outer, second: Outer, request: Request) -> Tensor:
    n1, outputs, _, _, fan = first.sizes
    n2, same = second.sizes[0], first is second
    back1, input1 = _by_row(first), _padded(first.inputs[:, 0].T)
    back2, input2 = (back1, input1) if same else (_by_row(second), _padded(second.inputs[:, 0].T))
    kernel = first.backs.new_zeros(n1, n2)
    longest = int(first.counts.max())
    a_row = 2 * n1 * n2 + (n1 + n2) * (longest + outputs)
    within = request.budget // 4 // (kernel.element_size() * a_row)
    chunk = max(1, min(within, max(8, (1 << 19) // a_row)))  # small enough for the caches
    # Memory that is used again for each chunk, as in _Workspace.
    lefts, rights = kernel.new_empty(chunk * longest, n1), kernel.new_empty(0 if same else chunk * longest, n2)
    inners = kernel.new_empty(chunk, n1, n2)
    for rows, columns in _row_groups(first, chunk, fan):
        left = _gathered(input1, columns, lefts)
        right = left if same else _gathered(input2, columns, rights)
        inner = torch.bmm(left.transpose(1, 2), right, out=inners[: len(rows)])
        backs = back1[rows]
        inner *= torch.bmm(backs.transpose(1, 2), backs if same else back2[rows])
        kernel += inner.sum(0)
    return kernel


def _by_row(term: Outer) -> Tensor:
    """Backward vectors of a layer of one pixel as (rows, outputs, n)."""
    return term.backs[:, :, 0].permute(2, 1, 0).contiguous()


def _padded(table: Tensor) -> Tensor:
    """One row of zeros more, for rows of the mask that keep fewer than their neighbours."""
    return torch.cat((table, table.new_zeros(1, table.shape[1])))


def _gathered(table: Tensor, columns: Tensor, out: Tensor) -> Tensor:
    """(rows, count, n): the table's rows that `columns` (rows, count) names, written into `out`."""
    out = out[: columns.numel()]
    torch.index_select(table, 0, columns.flatten(), out=out)
    return out.view(*columns.shape, -1)


def _row_groups(term: Outer, chunk: int, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in groups of like counts, with their kept columns (rows, count) filled up with `pad`."""
    counts = term.counts
    starts = counts.cumsum(0) - counts
    kept = _mask(term).nonzero(as_tuple=True)[1].to(torch.int32)
    order = counts.argsort(stable=True)
    order = order[counts[order] > 0]
    for rows in order.split(chunk):
        own = counts[rows][:, None]
        position = torch.arange(int(own[-1]), device=rows.device)  # the last has most
        columns = kept.take((starts[rows][:, None] + position).clamp_(max=len(kept) - 1))
        yield rows, columns.masked_fill_(position >= own, pad)


def _pairs(first: Outer, second: Outer, request: Request) -> Tensor:
    n1, outputs, _, rows, fan = first.sizes
    n2, same = second.sizes[0], first is second
    weights = _mask(first).to(first.inputs.dtype).T
    device = weights.device
    a, b = torch.triu_indices(n1, n2, device=device) if same else _all_pairs(n1, n2, device)
    shape = (n1, n2, outputs, outputs) if request.full else (n1, n2)
    kernel = first.backs.new_zeros(shape)
    wide = outputs * rows * 2 if request.full else 2 * rows
    chunk = max(1, min(4096, request.budget // 4 // ((2 * fan + rows + wide) * kernel.element_size())))
    for i, j in zip(a.split(chunk), b.split(chunk)):
        mixed = (first.inputs[i, 0] * second.inputs[j, 0]) @ weights
        back1, back2 = first.backs[i, :, 0], second.backs[j, :, 0]
        if request.full:
            values = (back1 * mixed[:, None]) @ back2.transpose(1, 2)
        else:
            values = (back1.mul_(back2).sum(1) * mixed).sum(1)  # indexing made a copy
        kernel[i, j] = values
        if same:
            kernel[j, i] = values.transpose(-1, -2) if request.full else values
    return kernel.permute(0, 2, 1, 3) if request.full else kernel


def _all_pairs(n1: int, n2: int, device: torch.device) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(n1 * n2, device=device)
    return numbers // n2, numbers % n2


def _mask(term: Outer) -> Tensor:
    if term.mask is not None:
        return term.mask
    _, _, _, rows, fan = term.sizes
    return torch.ones(rows, fan, dtype=torch.bool, device=term.inputs.device)


def _pixels(first: Outer, second: Outer, request: Request) -> Tensor:
    pixels, n2 = first.sizes[2], second.sizes[0]
    input2, back2 = second.inputs.flatten(0, 1), second.backs.transpose(1, 2).flatten(2).flatten(0, 1)
    chunk = max(1, request.budget // 8 // (pixels * n2 * pixels * input2.element_size()))
    parts = []
    for inputs, backs in zip(first.inputs.split(chunk), first.backs.split(chunk)):
        both = inputs.flatten(0, 1) @ input2.T
        both *= backs.transpose(1, 2).flatten(2).flatten(0, 1) @ back2.T
        parts.append(both.view(len(inputs), pixels, n2, pixels).sum((1, 3)))
    return torch.cat(parts)


def _filters(first: Outer, second: Outer, request: Request) -> Tensor:
    n1, outputs, _, rows, fan = first.sizes
    n2, same = second.sizes[0], first is second
    kernel = first.backs.new_zeros((n1, outputs, n2, outputs) if request.full else (n1, n2))
    chunk = max(1, request.budget // 4 // ((n1 + n2) * outputs * fan * kernel.element_size()))
    for start in range(0, rows, chunk):
        part = slice(start, start + chunk)
        kept = None if first.mask is None else first.mask[part].flatten().nonzero()[:, 0]
        left = _filter_jacobian(first, part, kept)
        kernel += _gram(left, left if same else _filter_jacobian(second, part, kept), request.full)
    return kernel


def _filter_jacobian(term: Outer, part: slice, kept: Tensor | None) -> Tensor:
    """(n, outputs, kept entries of these filters)."""
    n, outputs, pixels, _, _ = term.sizes
    backs = term.backs[..., part].transpose(2, 3)  # (n, outputs, filters, pixels)
    whole = (backs.reshape(n, -1, pixels) @ term.inputs).view(n, outputs, -1)
    return whole if kept is None else whole[:, :, kept]


_FORMS = {
    "plain": _plain,
    "entries": _entries,
    "rows": _rows,
    "pairs": _pairs,
    "pixels": _pixels,
    "filters": _filters,
}
