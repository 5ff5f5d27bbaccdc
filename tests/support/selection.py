"""Selection: the stable-sort oracle, random cases with every kind of tie, and the checks all paths must pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunus import select

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
KINDS = ("normal", "levels", "signed constant", "equal", "infinite", "zeros", "tiny")


def kept_by_sorting(scores: Sequence[Tensor], count: int, absolute: bool) -> list[Tensor]:
    """The definition: drop what a stable ascending sort of all scores puts first. float64 holds every type exactly."""
    flat = torch.cat([part.detach().reshape(-1).double() for part in scores]) + 0.0
    order = (flat.abs() if absolute else flat).sort(stable=True).indices
    kept = torch.ones(flat.numel(), dtype=torch.bool)
    kept[order[:count]] = False
    parts = kept.split([part.numel() for part in scores])
    return [mask.view(part.shape) for mask, part in zip(parts, scores)]


def kept_in_banks_by_sorting(scores: Tensor, drops: Sequence[int], bank: int, absolute: bool) -> Tensor:
    pieces = []
    for drop, piece in zip(drops, scores.double().split(bank, dim=1)):
        values = (piece.abs() if absolute else piece) + 0.0
        ranks = values.sort(dim=1, stable=True).indices.argsort(dim=1)
        pieces.append(ranks >= drop)
    return torch.cat(pieces, dim=1)


def draw(kind: str, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if kind == "levels":
        values = (values * 2).round()  # with zeros of both signs
    elif kind == "signed constant":
        values = values.sign() * 0.25
    elif kind == "equal":
        values = torch.full_like(values, 0.5)
    elif kind == "infinite":
        values = torch.where(values > 0.8, torch.inf, torch.where(values < -0.8, -torch.inf, values))
    elif kind == "zeros":
        values = torch.where(values.abs() < 1.2, values.sign() * 0.0, values)
    elif kind == "tiny":
        values = values * torch.finfo(dtype).tiny  # subnormal numbers
    return values.to(dtype)


def pick(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (1,), generator=generator))


def laid_out(values: Tensor, generator: torch.Generator) -> Tensor:
    """The same values, sometimes transposed or strided in memory."""
    layout = pick(0, 3, generator)
    if layout == 0 and values.dim() == 2:
        return values.t().contiguous().t()
    if layout == 1:
        return torch.stack([values, -values], dim=-1)[..., 0]
    return values


def check_drop_smallest(seed: int, largest: int) -> None:
    """One random case: `drop_smallest` and `top_indices` against the oracle, bit by bit."""
    generator = torch.Generator().manual_seed(seed)
    dtype, kind = DTYPES[pick(0, 3, generator)], KINDS[seed % len(KINDS)]
    shapes = [
        [pick(0, largest // 16, generator), pick(1, 16, generator)]
        if pick(0, 1, generator)
        else [pick(0, largest, generator)]
        for _ in range(pick(1, 3, generator))
    ]
    scores = [laid_out(draw(kind, shape, dtype, generator), generator) for shape in shapes]
    total = sum(part.numel() for part in scores)
    count = (0, total, pick(0, total, generator), pick(0, total, generator))[pick(0, 3, generator)]
    absolute = bool(pick(0, 1, generator))
    case = f"seed {seed}: {kind} {dtype} {shapes} count {count} absolute {absolute}"
    expected = kept_by_sorting(scores, count, absolute)
    found = select.drop_smallest(scores, count, absolute=absolute)
    assert sum(int((~mask).sum()) for mask in found) == count, case
    assert all(torch.equal(mask, right) for mask, right in zip(found, expected)), case
    assert torch.equal(select.drop_smallest(scores[0], 0), torch.ones_like(expected[0])), case
    alone = kept_by_sorting(scores[:1], scores[0].numel() // 3, absolute)[0].reshape(-1)
    top = select.top_indices(scores[0], int(alone.sum()), absolute=absolute)
    assert torch.equal(top, alone.nonzero().view(-1)), case


def check_banks(seed: int, widest: int) -> None:
    """One random case of `drop_smallest_in_banks` against the oracle, bit by bit."""
    generator = torch.Generator().manual_seed(seed)
    dtype, kind = DTYPES[pick(0, 3, generator)], KINDS[seed % len(KINDS)]
    bank = (4, 8, 16, 32, 64, pick(1, 40, generator), pick(65, 300, generator))[pick(0, 6, generator)]
    columns = bank * pick(1, max(1, widest // bank), generator) + (pick(0, bank - 1, generator) if seed % 2 else 0)
    scores = laid_out(draw(kind, [pick(0, 40, generator), columns], dtype, generator), generator)
    sizes = [min(bank, columns - start) for start in range(0, columns, bank)]
    drops = [pick(0, size, generator) for size in sizes]
    absolute = bool(pick(0, 1, generator))
    found = select.drop_smallest_in_banks(scores, torch.tensor(drops), bank, absolute=absolute)
    expected = kept_in_banks_by_sorting(scores, drops, bank, absolute)
    assert torch.equal(found, expected), f"seed {seed}: {kind} {dtype} {tuple(scores.shape)} bank {bank} drops {drops}"
