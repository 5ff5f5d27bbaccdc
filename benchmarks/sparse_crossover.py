"""When sparse is faster: a 1024x1024 layer over sparsity, bank and batch, beside what the bank costs in energy.

"vs dense" is F.linear over ours, one thread, fp32. "energy" is the share of weight energy a balanced mask removes from
a layer as torch initialises it (uniform weights; for normal ones see the guide), and "excess" how much more that is
than for a free choice (ledger B-6). "unstructured" masks are packed with zero-filled slots; "load" is the load average.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness import load
from benchmarks.sparse_linear import balanced
from prunus.sparse.bench import bench_linear


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    table = []
    patterns = ["balanced:16", "balanced:32", "balanced:64", "unstructured"]
    sparsities = [0.75, 0.9] if quick else [0.25, 0.5, 0.75, 0.9, 0.95]
    for pattern in patterns[::3] if quick else patterns:
        for sparsity in sparsities:
            weight = balanced(1024, 1024, sparsity, pattern)
            free = balanced(1024, 1024, sparsity, "unstructured")
            dense = balanced(1024, 1024, 0.0)
            energy = 1 - float(weight.square().sum() / dense.square().sum())
            least = 1 - float(free.square().sum() / dense.square().sum())
            row: dict[str, Any] = {"pattern": pattern, "sparsity": sparsity, "energy": round(energy, 4)}
            row["excess"] = round(energy / least - 1, 4)
            for batch in (1, 8, 64, 256):
                result = bench_linear(weight, batch, peers=(), repeats=5 if quick else 9)
                row[f"batch {batch} vs dense"] = round(result.ratios["dense"], 2)
                row[f"batch {batch} vs best"] = round(result.best_dense, 2)
            table.append(row | {"load": load()})
    return table
