"""One interleaved timer for the whole project: candidates run in turn, so that a busy moment hits all of them alike.

Trust ratios, not times. A sample is the mean over enough calls to last a while; what counts is the median of the
samples, and for comparisons the median over rounds of the ratio within a round. On one thread the clock is the
process's own time, which does not count moments when other programs run (and does count an engine that works in a
thread of its own); with more threads it is the wall clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)
MOST_CALLS = 10_000
_TRIALS, _LONG = 3, 0.1  # calls that tell how long one takes; after one that takes so many seconds no more


def clock_for(threads: int) -> Clock:
    """The clock to compare candidates with that run on so many threads."""
    return time.process_time if threads == 1 else time.perf_counter


def interleave(
    candidates: Mapping[Name, Callable[[], Any]],
    repeats: int = 15,
    least: float = 2e-3,
    clock: Clock = time.perf_counter,
    before: Callable[[], Any] | None = None,
) -> dict[Name, list[float]]:
    """Seconds for one call of each candidate.

    Args:
        candidates: Functions of no arguments, by name.
        repeats: Samples of each, taken in turn after a warm-up.
        least: Seconds a sample lasts at least: short calls are repeated.
        clock: What gives the time.
        before: Run before every sample, outside of its time; a sample is then one call.

    Returns:
        Name -> samples, in the order of the rounds.
    """
    calls: dict[Name, int] = {}
    for name, run in candidates.items():
        run()
        once = float("inf")
        for _ in range(_TRIALS if before is None else 1):  # a second call may still prepare something
            start = clock()
            run()
            once = min(once, max(clock() - start, 1e-7))
            if once > _LONG:
                break
        calls[name] = 1 if before is not None else max(1, min(MOST_CALLS, round(least / once)))
    samples: dict[Name, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            if before is not None:
                before()
            count = calls[name]
            start = clock()
            for _ in range(count):
                run()
            samples[name].append((clock() - start) / count)
    return samples


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def spread(samples: Sequence[float]) -> float:
    """Half the interquartile range over the median."""
    if len(samples) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle if middle else 0.0


def ratios(samples: Mapping[Name, Sequence[float]], ours: Name) -> dict[Name, float]:
    """How many times faster `ours` is than each candidate: the median over rounds of the ratio within a round."""
    return {
        name: statistics.median(other / mine for other, mine in zip(values, samples[ours]))
        for name, values in samples.items()
    }
