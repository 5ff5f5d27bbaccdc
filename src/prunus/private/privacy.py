"""The privacy of an index release in full: both readings of its privacy, the unit, and what is not covered."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from prunus.private.exchange import top_set

UNIT = "one client's whole vector, against whoever receives the message (local model)"
# Above this a pure epsilon protects nothing: any two vectors can be told apart with near certainty.
ENORMOUS = 20.0
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Privacy:
    """Privacy of the released index set; the two readings belong together (N-7, N-8).

    per_swap: metric privacy, the epsilon for each index by which two true top sets differ.
    at_distance: epsilon between vectors whose top sets differ in `swaps` indices.
    local: pure epsilon between any two vectors: the worst case.
    delta: 0, both guarantees are pure. unit: what one step protects, and from whom. warnings: what to keep in mind.

    Example:
        >>> found = prunus.private.NoisyTopK(k=0.1, theta=0.5).privacy(d=100, swaps=2)
        >>> found.per_swap, found.at_distance, found.local
        (1.0, 2.0, 10.0)
    """

    per_swap: float
    local: float
    swaps: int
    at_distance: float
    d: int
    m: int
    unit: str = UNIT
    values_private: bool = False
    delta: float = 0.0
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.per_swap:.4g} per swapped index (metric privacy), {self.local:.4g} in the worst case (pure local).",
            f"Unit: {self.unit}.",
            *self.warnings,
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def privacy_record(per_swap: float, local: float, swaps: int, at_distance: float, d: int, m: int) -> Privacy:
    """A `Privacy` with the warnings its numbers ask for."""
    warnings = ["The values sent with the indices are not private: add value noise, or send none."]
    if local > ENORMOUS:
        warnings.append(
            f"In the worst case epsilon is {local:.4g}, which is no protection at all: only vectors whose top sets "
            f"differ in few indices are hard to tell apart; call this metric privacy, not differential privacy."
        )
    if per_swap > ENORMOUS:
        warnings.append(f"Even one swapped index costs {per_swap:.4g}: no privacy is left.")
    return Privacy(per_swap, local, swaps, at_distance, d, m, warnings=tuple(warnings))


@dataclass(frozen=True)
class Energies:
    """Squares of a vector inside and outside its top set: sums and variances of the entries."""

    m: int
    others: int
    inside: float
    outside: float
    spread_inside: float
    spread_outside: float

    @property
    def slope(self) -> float:
        """N-3c: error added by one uniform swap."""
        return self.inside / self.m - (self.outside / self.others if self.others else 0.0)

    def mean(self, swaps: float) -> float:
        """N-5, for this vector: expected squared error at a mean number of swaps."""
        return self.outside + self.slope * swaps if self.others else 0.0

    def variance(self, mean: float, variance: float) -> float:
        """Variance of the squared error: of sums drawn without replacement given the swaps, and of the swaps."""
        square = variance + mean * mean
        total = self.slope**2 * variance
        for size, spread in ((self.m, self.spread_inside), (self.others, self.spread_outside)):
            if size > 1:
                total += spread * (size * mean - square) / (size - 1)
        return total


def energies(vector: Tensor, m: int) -> Energies:
    """Energies of a concrete vector, in float64 and in chunks."""
    flat = vector.detach().reshape(-1)
    kept = top_set(flat, m)
    top = flat[kept].double().square()
    inside, fourth_inside = float(top.sum()), float(top.square().sum())
    outside = fourth = 0.0
    edges = torch.searchsorted(kept, torch.arange(0, flat.numel() + _CHUNK, _CHUNK, device=kept.device)).tolist()
    for number, start in enumerate(range(0, flat.numel(), _CHUNK)):
        squares = flat[start : start + _CHUNK].double().square()
        squares[kept[edges[number] : edges[number + 1]] - start] = 0.0
        outside += float(squares.sum())
        fourth += float(squares.square().sum())
    others = flat.numel() - m
    spreads = _spread(inside, fourth_inside, m), _spread(outside, fourth, others)
    return Energies(m, others, inside, outside, *spreads)


def _spread(total: float, squares: float, count: int) -> float:
    return max(squares / count - (total / count) ** 2, 0.0) if count else 0.0
