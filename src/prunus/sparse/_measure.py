"""Dense against packed, measured in turn for the shapes a layer really sees. Results are kept for the process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prunus.sparse._packed import kernels

NOISE = 0.03  # a layer must gain at least this much to be replaced


@dataclass(frozen=True)
class Timing:
    """Median seconds of one call, on one input of this shape."""

    dense: float
    ours: float
    shape: tuple[int, ...]

    @property
    def gain(self) -> float:
        return self.dense / self.ours

    @property
    def gains(self) -> bool:
        return self.ours < (1 - NOISE) * self.dense


_known: dict[Any, Timing] = {}


def compare(dense: nn.Module, ours: nn.Module, shape: tuple[int, ...], key: Any = None) -> Timing:
    """Times of both modules on the same random input; `key` finds an earlier measurement of the same pair of kinds."""
    level = kernels().level() if kernels() is not None else "torch"
    full_key = (key, shape, torch.get_num_threads(), level)
    if key is not None and full_key in _known:
        return _known[full_key]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    with torch.no_grad():
        seconds = in_turn([lambda: dense(x), lambda: ours(x)])
    timing = Timing(seconds[0], seconds[1], shape)
    if key is not None:
        _known[full_key] = timing
    return timing


def in_turn(runs: list[Callable[[], Any]], repeats: int = 9, least: float = 5e-4) -> list[float]:
    """Median seconds of one call of each, taken in turn so that a busy moment hits all alike."""
    return [statistics.median(values) for values in samples_in_turn(runs, repeats, least)]


def samples_in_turn(runs: list[Callable[[], Any]], repeats: int, least: float) -> list[list[float]]:
    """`repeats` times of one call of each, in turn; a sample is the mean over enough calls to last `least` seconds.

    On one thread it is the processor's time, which does not count moments when others run; with more, the clock's.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    calls = []
    for run in runs:
        run()
        start = clock()
        run()
        calls.append(max(1, min(2000, round(least / max(clock() - start, 1e-7)))))
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for number, run in enumerate(runs):
            start = clock()
            for _ in range(calls[number]):
                run()
            samples[number].append((clock() - start) / calls[number])
    return samples
