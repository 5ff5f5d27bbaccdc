"""Noisy top-k: the top set and the private draw against a full partition, draws per second, the hook against the wire.

One thread. The draw is the cryptographic one. Times on the wire are computed from counted bytes at 1 Gbit/s.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import interleave, median, spread
from prunus.private import NoisyTopK
from prunus.private.exchange import exchange, top_set
from prunus.private.randomness import source

THETA = 2.65


def _large(quick: bool) -> list[dict[str, Any]]:
    """d = 1e8, m = 1e6: the two parts of a selection, and what numpy's partition takes for the first."""
    d = 10**7 if quick else 10**8
    m = d // 100
    vector = torch.randn(d, generator=torch.Generator().manual_seed(0))
    mech = NoisyTopK(m, THETA)
    top = top_set(vector, m).numpy()

    def draw() -> np.ndarray:
        bits = source()
        return exchange(top, d, int(mech.table(m, d - m).draw(1, bits)[0]), bits)

    jobs: dict[str, Callable[[], Any]] = {
        "top set": lambda: top_set(vector, m),
        "private draw": draw,
        "both": lambda: mech.select(vector),
        "peer: numpy partition": lambda: np.partition(np.abs(vector.numpy()), d - m)[d - m],
    }
    samples = interleave(jobs, repeats=3, least=0.0)
    targets = {"top set": 1.5, "private draw": 0.5}
    return [
        {
            "job": f"{name}, d = {d:.0e}, m = {m:.0e}",
            "seconds": round(median(values), 4),
            "spread": round(spread(values), 3),
            "target": targets.get(name, ""),
            "extra MB": _extra(name, d, m) if name in ("top set", "both") else "",
        }
        for name, values in samples.items()
    ]


_MEMORY = """
import sys, torch
from prunus.private import NoisyTopK
from prunus.private.exchange import top_set
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
torch.set_num_threads(1)
name, d, m = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
vector = torch.randn(d)
NoisyTopK(1000, 2.65).select(vector[:100000])
before = peak()
kept = top_set(vector, m) if name == "top set" else NoisyTopK(m, 2.65).select(vector)
print((peak() - before) / 1024)
"""


def _extra(name: str, d: int, m: int) -> float:
    """Peak memory beyond the vector, in a process of its own, with the answer (8 bytes an index) in it."""
    command = [sys.executable, "-c", _MEMORY, name, str(d), str(m)]
    return round(float(subprocess.run(command, capture_output=True, check=True).stdout), 1)


def _accuracy() -> list[dict[str, Any]]:
    """Relative error of the float probabilities against the integer table, over the whole window."""
    from fractions import Fraction

    from prunus.theory.swaps import SwapLaw

    rows = []
    for m, others, theta in ((1000, 99_000, 2.0), (10**6, 99 * 10**6, THETA)):
        table = NoisyTopK(m, theta).table(m, others)
        low, law = SwapLaw(m, others, theta).window
        worst = 0.0
        for place in range(0, len(table.positions), max(1, len(table.positions) // 500)):
            i = int(table.positions[place]) - low
            if 0 <= i < len(law):
                exact = Fraction(table.weights[place], table.total)
                worst = max(worst, abs(float(Fraction(float(law[i])) / exact - 1)))
        rows.append(
            {"job": f"probabilities, m = {m:.0e}, others = {others:.0e}", "relative error": worst, "target": 1e-12}
        )
    return rows


def _hook(quick: bool) -> list[dict[str, Any]]:
    """The hook's own work on a 10 M-parameter model at k = 1 %, against plain top-k and the dense all-reduce."""
    d = 10**6 if quick else 10**7
    m = d // 100
    gradient = torch.randn(d, generator=torch.Generator().manual_seed(1))
    mech = NoisyTopK(m, THETA)
    residual = torch.zeros(d)

    def plain() -> torch.Tensor:
        corrected = gradient + residual
        return corrected[top_set(corrected, m)]

    def noisy() -> torch.Tensor:
        corrected = gradient + residual
        return corrected[mech.select(corrected)]

    samples = interleave({"plain top-k": plain, "noisy top-k": noisy}, repeats=7, least=0.0)
    pairs = [b / a for a, b in zip(samples["plain top-k"], samples["noisy top-k"])]
    sparse, dense = 8.0 * 8 * m / 1e9, 8.0 * 4 * d / 1e9
    return [
        {
            "job": f"hook on {d:.0e} parameters, two processes, k = 1 %",
            "seconds": round(median(samples["noisy top-k"]), 4),
            "times plain top-k": round(median(pairs), 2),
            "target": "at most 3 times",
            "sparse seconds at 1 Gbit/s": round(sparse + median(samples["noisy top-k"]), 4),
            "dense seconds at 1 Gbit/s": round(dense, 4),
        }
    ]


def _draws() -> list[dict[str, Any]]:
    table = NoisyTopK(10**6, THETA).table(10**6, 99 * 10**6)
    start = time.perf_counter()
    count = 200_000
    drawn = table.draw(count, source())
    seconds = time.perf_counter() - start
    error = math.sqrt(166071.418077 / count)
    row = {"job": "swap counts, cryptographic", "microseconds each": round(1e6 * seconds / count, 3)}
    return [row | {"mean off by standard errors": round((float(drawn.mean()) - 497207.862159) / error, 2)}]


def run(quick: bool) -> list[dict[str, Any]]:
    """All measurements, on one thread; `quick` shrinks them to a few seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_large(quick), *_accuracy(), *_hook(quick), *_draws()]
    finally:
        torch.set_num_threads(threads)
