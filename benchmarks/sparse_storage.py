"""A 1024x1024 layer in every storage: 90 % balanced:16 and 2:4 in float32, bfloat16, int8 and integers; one thread.

The call of the module is in every time. "integers" are int8 values and inputs rounded to seven bits, the others
compute in float32. "times F.linear" and "times best dense" say how many times faster it is than the dense layer and
than the fastest of F.linear, oneDNN and MKL with packed weights, ONNX Runtime and OpenVINO, interleaved; "times
float32" than our float32 on the same mask: below one, smaller storage costs time. "times float32 of 11-16" compares
with our float32 kernels of 2026-11-16: how many times faster than F.linear it is now over how many times those were
(4.75, 9.27, 6.73 and 6.01 at batch 1, 8, 64 and 256); that is a ratio of ratios of two days. "error" is relative,
against float32 with the same weights; "bytes" are those of the packed weight; "load" is the machine's load average.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness import interleave, load, median, ratios, spread
from benchmarks.sparse_linear import balanced
from prunus import timing
from prunus.sparse import BalancedLinear, pack
from prunus.sparse._peers import find_peers, output_error
from prunus.sparse.bench import _prepacked_linear, _with_weight

BATCHES = (1, 8, 64, 256)
STORED = {"float32": None, "bfloat16": torch.bfloat16, "int8": torch.int8}
THEN = {1: 4.75, 8: 9.27, 64: 6.73, 256: 6.01}


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    table = []
    masks = {"90 % balanced:16": balanced(1024, 1024, 0.9), "2:4": balanced(1024, 1024, 0.5, "2:4")}
    for name, weight in masks.items():
        layers = {kind: BalancedLinear(pack(weight, None, dtype)) for kind, dtype in STORED.items()}
        layers["integers"] = BalancedLinear(pack(weight, None, torch.int8), activations=torch.int8)
        for batch in BATCHES[:2] if quick else BATCHES:
            table += _rows(name, weight, layers, batch, 5 if quick else 15)
    return table


def _rows(mask: str, weight: torch.Tensor, layers: dict[str, Any], batch: int, repeats: int) -> list[dict[str, Any]]:
    dense = balanced(1024, 1024, 0.0)
    x = torch.randn(batch, 1024, generator=torch.Generator().manual_seed(0))
    runs: dict[str, Any] = {"dense": lambda: functional.linear(x, dense), **_prepacked_linear(dense, x)}
    runs |= find_peers(_with_weight(torch.nn.Linear(1024, 1024, bias=False), dense), (x,), ("onnx", "openvino"))
    peers = list(runs)
    runs |= {kind: lambda layer=layer: layer(x) for kind, layer in layers.items()}
    with torch.no_grad():
        samples = interleave(runs, repeats, 4e-3, timing.clock_for(1))
        expected = functional.linear(x, weight)
        errors = {kind: output_error(layer(x), expected) for kind, layer in layers.items()}
    best, table = min(peers, key=lambda name: median(samples[name])), []
    for kind, layer in layers.items():
        slower = ratios(samples, kind)
        row = {
            "mask": mask,
            "batch": batch,
            "stored": kind,
            "bytes": layer.packed.nbytes,
            "microseconds": round(1e6 * median(samples[kind]), 1),
            "spread": round(spread(samples[kind]), 3),
            "times F.linear": round(slower["dense"], 2),
            "times best dense": round(slower[best], 2),
            "best dense": best,
            "times float32": round(slower["float32"], 2),
            "times float32 of 11-16": round(slower["dense"] / THEN[batch], 2) if mask.startswith("90") else "",
            "error": round(errors[kind], 4),
        }
        table.append(row | {"load": load()})
    return table
