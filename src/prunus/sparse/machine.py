"""What this machine could do at best: multiply-adds in a second, and bytes read from each level of memory.

A layer's limit is the larger of two times: its multiply-adds at the first rate, and its bytes at the second (the
roofline). Measured once in a process, on one thread, in some milliseconds.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch

from prunus.sparse._packed import kernels


@dataclass(frozen=True)
class Limits:
    """Floating-point operations in a second, and bytes in a second by the size of what is read."""

    flops: float
    bandwidth: tuple[tuple[int, float], ...]

    def bytes_per_second(self, size: int) -> float:
        """For data of `size` bytes that are read again and again."""
        for most, rate in self.bandwidth:
            if size <= most:
                return rate
        return self.bandwidth[-1][1]

    def seconds(self, flops: float, size: int) -> float:
        """The least time for this many operations on weights of this size."""
        return max(flops / self.flops, size / self.bytes_per_second(size))


def integer_instructions() -> str:
    """Those that the integer kernels use here ("avx2", "avx512-vnni", ...); empty without the compiled part."""
    module = kernels()
    return "" if module is None else str(module.integers())


@functools.cache
def limits() -> Limits:
    module = kernels()
    if module is None:
        return _plain_limits()
    rounds = 20_000
    once = min(_time(lambda: module.multiply(rounds)) for _ in range(7))
    rates = []
    for size in (16 << 10, 256 << 10, 4 << 20, 64 << 20):
        data = torch.zeros(size // 4)
        calls = max(1, (2 << 20) // size)
        read = min(_time(lambda d=data: module.read(d.data_ptr(), d.numel()), calls) for _ in range(5))
        rates.append((2 * size, size / read))
    return Limits(rounds * 12 * 2 * module.width() / once, tuple(rates))


def _plain_limits() -> Limits:
    """Without the compiled part: what torch's own product and sum reach."""
    a = torch.ones(512, 512)
    product = min(_time(lambda: a @ a) for _ in range(5))
    data = torch.ones(4 << 20)
    read = min(_time(lambda: data.sum()) for _ in range(5))
    return Limits(2 * 512**3 / product, ((1 << 62, data.nbytes / read),))


def _time(run: object, calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()  # type: ignore[operator]
    return (time.perf_counter() - start) / calls
