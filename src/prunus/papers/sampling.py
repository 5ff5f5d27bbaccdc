"""Comparisons of samples with exact values, at a stated false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.papers.checking import FALSE_ALARM


def assert_proportion(name: str, hits: int, trials: int, expected: float) -> None:
    """An exact binomial test: both tails of the observed count must have probability FALSE_ALARM / 2 at least."""
    below = float(special.bdtr(hits, trials, expected))
    above = float(special.bdtrc(hits - 1, trials, expected)) if hits else 1.0
    assert min(below, above) >= FALSE_ALARM / 2, f"{name}: {hits} of {trials} where {expected:.6g} is expected"


def assert_mean(name: str, samples: ArrayLike, expected: float) -> None:
    """The mean of many samples against its expectation, by the normal approximation at rate FALSE_ALARM."""
    values = np.asarray(samples, dtype=np.float64)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    limit = float(special.ndtri(1 - FALSE_ALARM / 2)) * error
    gap = abs(float(values.mean()) - expected)
    assert gap <= limit + 1e-12, f"{name}: mean {values.mean():.6g} of {values.size} where {expected:.6g} is expected"


def assert_close(name: str, value: float, expected: float, tolerance: float = 1e-9, absolute: float = 0.0) -> None:
    """Relative agreement, or within `absolute`."""
    allowed = max(tolerance * abs(expected), absolute)
    assert abs(value - expected) <= allowed, f"{name}: {value!r} where {expected!r} is expected"
