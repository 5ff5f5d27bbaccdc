"""Dense against packed, measured in turn for the shapes a layer really sees. Results are kept for the process.

Inside a model the other layers push a layer's weights out of the near caches between two calls, and a packed layer that
wins with warm caches may lose with cold ones. So as many bytes are read between calls as the model holds around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from prunus.sparse._packed import kernels
from prunus.timing import clock_for, interleave, median

NOISE = 0.03  # a layer must gain at least this much to be replaced
CALL = 4e-6  # and so many seconds: between other code a packed layer's call costs more than in a loop
NEAR, FAR = 1 << 18, 1 << 22  # bytes around a layer: fewer leave its caches warm, more make no difference


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
        return self.ours + CALL < (1 - NOISE) * self.dense

    @property
    def may_gain(self) -> bool:
        """Whether it would gain without the cost of a call, which depends on what runs before and after."""
        return self.ours - CALL < (1 - NOISE) * self.dense


def beside(one: Timing, other: Timing) -> tuple[Timing, Timing]:
    """Two forms of a layer beside the quicker measurement of its dense one, so that neither gains by a busy moment."""
    dense = min(one.dense, other.dense)
    return replace(one, dense=dense), replace(other, dense=dense)


_known: dict[Any, Timing] = {}


def compare(dense: nn.Module, ours: nn.Module, shape: tuple[int, ...], key: Any = None, around: int = 0) -> Timing:
    """Times of both modules on the same random input, in a model with `around` bytes of other weights.

    `key` finds an earlier measurement of the same pair of kinds.
    """
    level = kernels().level() if kernels() is not None else "torch"
    around = 0 if around < NEAR else 1 << (min(around, FAR).bit_length() - 1)
    full_key = (key, shape, torch.get_num_threads(), level, around)
    if key is not None and full_key in _known:
        return _known[full_key]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    x = x.to(next((parameter.dtype for parameter in dense.parameters()), x.dtype))
    with torch.no_grad():
        runs = [lambda: dense(x), lambda: ours(x)]
        seconds = one_by_one(runs, around) if around else in_turn(runs)
    timing = Timing(seconds[0], seconds[1], shape)
    if key is not None:
        _known[full_key] = timing
    return timing


def one_by_one(runs: list[Callable[[], Any]], around: int, most: int = 31, budget: float = 0.05) -> list[float]:
    """Median seconds of single calls, taken in turn, with `around` other bytes read before each."""
    other, clock = torch.zeros(around // 4), clock_for(torch.get_num_threads())
    for run in runs:
        run()
    start = clock()
    for run in runs:
        run()
    repeats = max(5, min(most, round(budget / max(clock() - start, 1e-7))))
    samples = interleave(dict(enumerate(runs)), repeats, clock=clock, before=other.sum)
    return [median(values) for values in samples.values()]


def in_turn(runs: list[Callable[[], Any]], repeats: int = 9, least: float = 5e-4) -> list[float]:
    """Median seconds of one call of each, taken in turn so that a busy moment hits all alike."""
    clock = clock_for(torch.get_num_threads())
    return [median(values) for values in interleave(dict(enumerate(runs)), repeats, least, clock).values()]
