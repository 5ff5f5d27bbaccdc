"""What theory predicts for a cell before it is run."""

from __future__ import annotations

import functools
import math
import re

from prunus.theory import order_statistics

_BANK = re.compile(r"balanced:(\d+)")
_NM = re.compile(r"(\d+):(\d+)")


@functools.lru_cache(maxsize=4096)
def predicted_energy(score: str, pattern: str, sparsity: float, total: int, law: str = "normal") -> float | None:
    """Share of the weight energy that pruning removes from a layer of independent weights of this law.

    Magnitude pruning: ledger B-2a for a free choice, B-3 for banks, mixed over the two counts that a balanced pattern
    alternates between. Random pruning removes the share `sparsity` on average. None where no result speaks of the case.
    """
    if score == "random":
        return sparsity
    if score != "magnitude":
        return None
    if pattern == "unstructured":
        return float(order_statistics.limit_energy(min(max(sparsity, 0.0), 1.0), law)["energy"])
    bank = _BANK.fullmatch(pattern)
    if bank:
        return _bank(int(bank[1]), sparsity, law)
    kept = _NM.fullmatch(pattern)
    if kept:
        return _bank(int(kept[2]), sparsity, law)
    return None


def _bank(size: int, sparsity: float, law: str) -> float:
    count = min(sparsity * size, float(size))
    low = math.floor(count + 1e-9)
    part = max(0.0, count - low)
    energy = order_statistics.bank_energy(size, low, law)
    return energy if low == size else (1 - part) * energy + part * order_statistics.bank_energy(size, low + 1, law)
