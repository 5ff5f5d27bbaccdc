"""Tables of interleaved timings (`prunus.timing`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from prunus.timing import interleave, median, ratios, spread

__all__ = ["Samples", "interleave", "load", "median", "quietest", "ratios", "spread", "table"]

Samples = dict[str, list[float]]


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


def load() -> float:
    """The machine's load average of the last minute: above the number of cores, trust ratios only."""
    return round(os.getloadavg()[0], 1)


def quietest(measure: Callable[[], Sequence[Any]], passes: int) -> list[dict[str, Any]]:
    """The table of `prunus.sparse` results that `measure` gives, taken `passes` times over.

    Neighbours on the same processor slow some minutes down, sparse code more than dense code. So of each row that pass
    is kept in which the plain dense call was fastest (never a choice by our own time), and the ratio to it is shown for
    every pass.
    """
    from prunus.sparse.bench import rows

    tables = [measure() for _ in range(passes)]
    kept = []
    for row in zip(*tables):
        quiet = min(row, key=lambda result: result.seconds["dense"])
        ratios_seen = " / ".join(f"{result.ratios['dense']:.1f}" for result in row)
        kept.append(rows([quiet])[0] | ({"vs dense, each pass": ratios_seen} if passes > 1 else {}) | {"load": load()})
    return kept
