"""3x3 convolutions, fp32, one thread, 90 % balanced:16: how many times faster ours is than each peer.

Median of interleaved runs, processor time, one pass.
"best dense" is the fastest of torch in both memory formats, oneDNN with packed weights, and ONNX Runtime;
"load" is the machine's load average.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import prunus
from benchmarks.harness import quietest
from prunus.sparse.bench import BenchResult, bench_conv


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    cases = [(16, 32), (32, 16), (64, 8), (64, 32), (128, 16), (256, 8), (256, 14)]

    def measure() -> list[BenchResult]:
        results = []
        for channels, size in cases[2:4] if quick else cases:
            torch.manual_seed(0)
            conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
            prunus.prune(conv, 0.9, pattern="balanced:16")
            results += [bench_conv(conv, batch, (size, size), repeats=5 if quick else 9) for batch in (1, 32)]
        return results

    return quietest(measure, 1)
