"""Linear layers, fp32, one thread, balanced:16: how many times faster ours is than each peer.

Median of interleaved runs, processor time, one pass.
"best dense" is the fastest of F.linear, oneDNN and MKL with packed weights, ONNX Runtime and OpenVINO. Sparsities are
the realised ones; "load" is the machine's load average: above one, trust the ratios only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import prunus
from benchmarks.harness import quietest
from prunus.sparse.bench import BenchResult, bench_linear

PEERS = ("csr", "scipy", "numba", "onnx", "openvino")


def balanced(rows: int, cols: int, sparsity: float, pattern: str = "balanced:16") -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(cols, rows, bias=False)
    if sparsity:
        prunus.prune(layer, sparsity, pattern=pattern)
    return layer.weight.detach()


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    shapes = [(1024, 1024)] if quick else [(512, 512), (1024, 1024), (4096, 1024), (4096, 4096)]
    batches = [1, 8, 64] if quick else [1, 8, 64, 256]
    cells = [(*shape, 0.9, batch) for shape in shapes for batch in batches]
    cells += [(1024, 1024, sparsity, batch) for sparsity in (0.5, 0.75, 0.95) for batch in ([64] if quick else batches)]
    weights = {kind: balanced(*kind) for kind in {cell[:3] for cell in cells}}
    repeats = 5 if quick else 9

    def measure() -> list[BenchResult]:
        return [bench_linear(weights[cell[:3]], cell[3], peers=PEERS, repeats=repeats) for cell in cells]

    return quietest(measure, 1)
