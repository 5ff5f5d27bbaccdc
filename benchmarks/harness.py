"""Interleaved timing: every candidate runs in turn, again and again, so that a busy moment hits all of them alike.

Trust the ratios, not the times. A sample is the mean over enough calls to last a millisecond or so; the result of a
candidate is the median of its samples, and its spread half the distance between the quartiles, relative to it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Samples = dict[str, list[float]]


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    repeats: int = 15,
    least: float = 2e-3,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Seconds for one call of each candidate: `repeats` samples each, taken in turn after a warm-up."""
    calls = {}
    for name, run in candidates.items():
        run()
        start = clock()
        run()
        once = max(clock() - start, 1e-7)
        calls[name] = max(1, min(10_000, round(least / once)))
    samples: Samples = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            start = clock()
            for _ in range(calls[name]):
                run()
            samples[name].append((clock() - start) / calls[name])
    return samples


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def spread(samples: Sequence[float]) -> float:
    """Half the interquartile range over the median."""
    if len(samples) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle if middle else 0.0


def ratios(samples: Samples, ours: str) -> dict[str, float]:
    """How many times faster `ours` is than each candidate: the median over rounds of the ratio within a round."""
    return {
        name: statistics.median(other / mine for other, mine in zip(values, samples[ours]))
        for name, values in samples.items()
    }


def table(samples: Samples, ours: str) -> list[dict[str, Any]]:
    """One row for each candidate: microseconds, spread, and times slower than `ours`."""
    slower = ratios(samples, ours)
    return [
        {
            "what": name,
            "microseconds": round(1e6 * median(values), 2),
            "spread": round(spread(values), 3),
            "times_ours": round(slower[name], 2),
        }
        for name, values in samples.items()
    ]


def quietest(measure: Callable[[], Sequence[Any]], passes: int) -> list[dict[str, Any]]:
    """The table of `prunus.sparse` results that `measure` gives, taken `passes` times over.

    Neighbours on the same processor slow some minutes down, sparse code more than dense code. So of each row that pass
    is kept in which the plain dense call was fastest (never a choice by our own time), and the ratio to it is shown for
    every pass.
    """
    from prunus.sparse._bench import rows

    tables = [measure() for _ in range(passes)]
    kept = []
    for row in zip(*tables):
        quiet = min(row, key=lambda result: result.seconds["dense"])
        ratios_seen = " / ".join(f"{result.ratios['dense']:.1f}" for result in row)
        kept.append(rows([quiet])[0] | ({"vs dense, each pass": ratios_seen} if passes > 1 else {}))
    return kept
