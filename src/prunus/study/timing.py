"""Times of two runs, taken in turn so that a busy moment hits both alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prunus.timing import interleave, median, ratios


@dataclass(frozen=True)
class PairedTimes:
    """Median seconds of one call of each, and the median over rounds of their ratio."""

    first: float
    second: float
    ratio: float


def in_turn(first: Callable[[], Any], second: Callable[[], Any], rounds: int = 31, least: float = 1e-3) -> PairedTimes:
    """Time both; short calls are repeated until `least` seconds have passed. The ratio is first / second."""
    samples = interleave({"first": first, "second": second}, rounds, least)
    return PairedTimes(median(samples["first"]), median(samples["second"]), ratios(samples, "second")["first"])
