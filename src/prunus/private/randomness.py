"""Where the private draws get their bits: the operating system by default, a seeded generator when asked for.

Everything is drawn from uniform bytes by rejection, so that no draw carries the rounding of a float.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from prunus.errors import BadInput

Integers = NDArray[np.int64]


class Source:
    """Uniform integers and subsets from uniform bytes."""

    def __init__(self, read: Callable[[int], bytes], *, secure: bool) -> None:
        self.read = read
        self.secure = secure

    def words(self, count: int, dtype: type[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """`count` uniform words."""
        return np.frombuffer(self.read(count * np.dtype(dtype).itemsize), dtype=dtype)

    def bits(self, count: int) -> int:
        """A uniform integer of `count` bits."""
        size = -(-count // 8)
        return int.from_bytes(self.read(size), "little") >> (8 * size - count)

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), of any size."""
        width = (bound - 1).bit_length()
        while True:
            value = self.bits(width) if width else 0
            if value < bound:
                return value

    def uniform(self, count: int, bound: int) -> Integers:
        """`count` independent uniform integers in [0, bound), bound < 2^62; exactly uniform."""
        kept: list[Integers] = []
        missing = count
        while missing > 0:
            found = self._small(missing, bound) if bound <= 1 << 32 else self._large(missing, bound)
            kept.append(found)
            missing -= len(found)
        return kept[0] if len(kept) == 1 else np.concatenate(kept) if kept else np.empty(0, np.int64)

    def _small(self, count: int, bound: int) -> Integers:
        """Multiply and shift; products whose low half falls in the short remainder are dropped (Lemire 2019)."""
        product = self.words(count, np.uint32).astype(np.uint64) * np.uint64(bound)
        short = (1 << 32) % bound
        if short:
            product = product[(product & np.uint64(0xFFFFFFFF)) >= np.uint64(short)]
        return (product >> np.uint64(32)).astype(np.int64)

    def _large(self, count: int, bound: int) -> Integers:
        words = (self.words(count, np.uint64) >> np.uint64(64 - (bound - 1).bit_length())).astype(np.int64)
        return words[words < bound]

    def subset(self, count: int, bound: int) -> Integers:
        """A uniform `count`-subset of range(bound), ascending, in O(count) memory.

        The missing number is drawn, sorted, and duplicates dropped, until nothing is missing: it never overshoots, so
        the result is exactly uniform by symmetry (N-12, item 3).
        """
        if count > bound // 2:
            return complement(self.subset(bound - count, bound), bound)
        held = np.empty(0, np.int64)
        while len(held) < count:
            held = np.concatenate((held, self.uniform(count - len(held), bound)))
            held.sort()
            held = held[np.concatenate((np.ones(1, bool), held[1:] != held[:-1]))]
        return held


def complement(ascending: Integers, bound: int) -> Integers:
    """The members of range(bound) that are not in an ascending array."""
    mask = np.ones(bound, bool)
    mask[ascending] = False
    return np.flatnonzero(mask)


def source(insecure_seed: int | None = None) -> Source:
    """The operating system's generator; with a seed, a fast and repeatable one without any privacy."""
    if insecure_seed is None:
        return Source(os.urandom, secure=True)
    if isinstance(insecure_seed, bool) or not isinstance(insecure_seed, (int, np.integer)) or insecure_seed < 0:
        raise BadInput(f"insecure_seed must be a whole number of at least 0, got {insecure_seed!r}.")
    return Source(np.random.Generator(np.random.PCG64(int(insecure_seed))).bytes, secure=False)
