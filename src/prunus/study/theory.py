"""What theory predicts for a cell before it is run."""

from __future__ import annotations

import functools
import math

from prunus.formulas import energy as energies
from prunus.pruning import patterns


@functools.lru_cache(maxsize=4096)
def predicted_energy(score: str, pattern: str, sparsity: float, total: int, law: str = "normal") -> float | None:
    """Share of the weight energy that pruning removes from a layer of independent weights of this law.

    Magnitude pruning: ledger B-2a for a free choice, B-3 for banks, mixed over the two counts that a balanced pattern
    alternates between. Random pruning removes the share `sparsity` on average. None where no result covers the case.
    """
    if score == "random":
        return sparsity
    if score != "magnitude":
        return None
    bank = patterns.bank_size(pattern)
    if bank is not None:
        return _bank(bank, sparsity, law)
    if isinstance(patterns.parse(pattern), patterns.Unstructured):
        return float(energies.limit_energy(min(max(sparsity, 0.0), 1.0), law)["energy"])
    return None


def _bank(size: int, sparsity: float, law: str) -> float:
    count = min(sparsity * size, float(size))
    low = math.floor(count + 1e-9)
    part = max(0.0, count - low)
    energy = energies.bank_energy(size, low, law)
    return energy if low == size else (1 - part) * energy + part * energies.bank_energy(size, low + 1, law)
