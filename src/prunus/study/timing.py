"""Times of two runs, taken in turn so that a busy moment hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pair:
    """Median seconds of one call of each, and the median over rounds of their ratio."""

    first: float
    second: float
    ratio: float


def in_turn(first: Callable[[], Any], second: Callable[[], Any], rounds: int = 31, least: float = 1e-3) -> Pair:
    """Time both; short calls are repeated until `least` seconds have passed. The ratio is first / second."""
    calls = [_calls(run, least) for run in (first, second)]
    samples = [(_seconds(first, calls[0]), _seconds(second, calls[1])) for _ in range(rounds)]
    return Pair(
        statistics.median(one for one, _ in samples),
        statistics.median(other for _, other in samples),
        statistics.median(one / other for one, other in samples),
    )


def _calls(run: Callable[[], Any], least: float) -> int:
    run()
    return max(1, min(1000, round(least / max(_seconds(run, 1), 1e-7))))


def _seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
