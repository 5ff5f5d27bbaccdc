"""How many weights each bank of a row loses in balanced sparsity."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence


@functools.lru_cache(maxsize=256)
def van_der_corput(count: int) -> tuple[float, ...]:
    """The first `count` terms of the base-2 sequence 0, 1/2, 1/4, 3/4, ...: equally spread however far one goes."""
    return tuple(int(f"{number:b}"[::-1], 2) / 2 ** max(1, number.bit_length()) for number in range(count))


def balanced_drops(lengths: Sequence[int], sparsity: float) -> list[int]:
    """floor(s B) + [u_b < frac(s B)] for bank number b of length B, with u the van der Corput sequence.

    The same for all rows, within 1 + log2(banks)/3 weights a row of the target, and growing with the sparsity in every
    bank, so that masks nest.
    """
    spread = van_der_corput(len(lengths))
    return [max(0, math.ceil(round(sparsity * length, 9) - u)) for length, u in zip(lengths, spread)]
