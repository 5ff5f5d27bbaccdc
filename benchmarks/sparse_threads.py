"""Two threads against one, and the packer: fp32, 90 % balanced:16.

Threads are timed by the clock, so this table wants an idle machine with two cores: median, least and most of seven
passes of interleaved runs.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

import prunus
from benchmarks.harness import interleave, median, ratios
from benchmarks.sparse_linear import balanced
from prunus.sparse import BalancedLinear, SparseConv2d, pack


def run(quick: bool) -> list[dict[str, Any]]:
    table = []
    linear = BalancedLinear(pack(balanced(4096, 4096, 0.9)))
    conv = nn.Conv2d(128, 128, 3, padding=1, bias=False).requires_grad_(False)
    prunus.prune(conv, 0.9, pattern="balanced:16")
    layer = SparseConv2d.from_dense(conv)
    inputs: list[tuple[str, nn.Module, torch.Tensor]] = [
        (f"linear 4096x4096 batch {batch}", linear, torch.randn(batch, 4096)) for batch in (1, 8, 64)
    ]
    inputs += [
        (f"conv 128->128 3x3 on 16x16 batch {batch}", layer, torch.randn(batch, 128, 16, 16)) for batch in (1, 32)
    ]
    for what, module, x in inputs:

        def timed(threads: int, module: nn.Module = module, x: torch.Tensor = x) -> Any:
            def call() -> None:
                torch.set_num_threads(threads)
                module(x)

            return call

        passes = []
        for _ in range(1 if quick else 7):  # where the second thread lands is the system's choice: look more than once
            with torch.no_grad():
                samples = interleave({"one": timed(1), "two": timed(2)}, 5 if quick else 9, 4e-3)
            torch.set_num_threads(1)
            passes.append((ratios(samples, "two")["one"], 1e6 * median(samples["one"])))
        gains = sorted(gain for gain, _ in passes)
        row = {"what": what, "one thread us": round(median([time for _, time in passes]), 1)}
        row |= {"two threads": round(median(gains), 2), "least": round(gains[0], 2), "most": round(gains[-1], 2)}
        table.append(row)
    table.append(_packer(quick))
    return table


def _packer(quick: bool) -> dict[str, Any]:
    size = 2048 if quick else 10_000
    weight = torch.zeros(size, size)
    weight[:, ::10] = 1.0
    start = time.thread_time()
    packed = pack(weight, 16)
    seconds = time.thread_time() - start
    return {"what": f"packing {weight.numel() / 1e6:.0f} M weights", "seconds": round(seconds, 3), "kept": packed.kept}
