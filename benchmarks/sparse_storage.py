"""What storage costs: a 1024x1024 layer at 90 % balanced:16 in float32, bfloat16 and int8, and 2:4 masks; one thread.

The call of the module is in every time. "times F.linear" is how many times faster it is than the dense layer in the
same minutes, "times float32" than our float32 on the same mask: below one, smaller storage costs time. "bytes" are
those of the packed weight; "load" is the machine's load average.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness import interleave, load, median, ratios, spread
from benchmarks.sparse_linear import balanced
from prunus import timing
from prunus.sparse import BalancedLinear, pack

BATCHES = (1, 8, 64, 256)
STORED = {"float32": None, "bfloat16": torch.bfloat16, "int8": torch.int8}


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    dense, table = balanced(1024, 1024, 0.0), []
    masks = {"90 % balanced:16": balanced(1024, 1024, 0.9), "2:4": balanced(1024, 1024, 0.5, "2:4")}
    for name, weight in masks.items():
        layers = {kind: BalancedLinear(pack(weight, None, dtype)) for kind, dtype in STORED.items()}
        for batch in BATCHES[:2] if quick else BATCHES:
            x = torch.randn(batch, 1024, generator=torch.Generator().manual_seed(0))
            runs: dict[str, Any] = {kind: lambda layer=layer, x=x: layer(x) for kind, layer in layers.items()}
            runs["dense"] = lambda x=x: functional.linear(x, dense)
            with torch.no_grad():
                samples = interleave(runs, 5 if quick else 21, 4e-3, timing.clock_for(1))
            for kind, layer in layers.items():
                slower = ratios(samples, kind)
                table.append(
                    {
                        "mask": name,
                        "batch": batch,
                        "stored": kind,
                        "bytes": layer.packed.nbytes,
                        "microseconds": round(1e6 * median(samples[kind]), 1),
                        "spread": round(spread(samples[kind]), 3),
                        "times F.linear": round(slower["dense"], 2),
                        "times float32": round(slower["float32"], 2),
                        "load": load(),
                    }
                )
    return table
