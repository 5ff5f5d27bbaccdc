"""Prune or quantise? Linear layers by shape, tokens and sparsity: integer products against dense int8 and float32.

One thread, all candidates of a row interleaved, processor time. "int8 dense" is the fastest of ONNX Runtime (dynamic,
and calibrated on the very inputs; inputs and outputs bound), OpenVINO and torch; "fp32 dense" the fastest of F.linear,
oneDNN and MKL with packed weights, ONNX Runtime and OpenVINO. "int8 dense", "fp32 50%" and so on are how many times
faster a candidate is than the best fp32 dense, "50% / int8" how many times faster integers are than the best int8
dense. Errors are relative, on normal inputs; ours include the rounding of the weights. "limit" is the share of the
machine's rate of byte products (twice that of multiply-adds) that integers at 90 % reach; "load" the machine's load
average when the row was measured: above one, trust the ratios only.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.nn import functional

from benchmarks.sparse_linear import balanced
from prunus import timing
from prunus.sparse import BalancedLinear, pack
from prunus.sparse._peers import find_peers, output_error
from prunus.sparse.bench import _prepacked_linear, _with_weight
from prunus.sparse.machine import limits

SHAPES = ((384, 384), (1536, 384), (1024, 1024), (3072, 768), (5632, 2048), (11008, 4096))
TOKENS = (1, 32, 128, 512)
SPARSITIES = (0.5, 0.75, 0.9)
PART, PARTS = "out x in", tuple(f"{rows}x{cols}" for rows, cols in SHAPES)
PEERS = ("onnx", "openvino", "onnx int8", "onnx int8 static", "openvino int8", "torch int8")


def run(quick: bool, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    shapes = SHAPES[:3] if quick else [shape for shape, name in zip(SHAPES, PARTS) if name in parts]
    return [_row(rows, cols, tokens, quick) for rows, cols in shapes for tokens in (TOKENS[:2] if quick else TOKENS)]


def _row(rows: int, cols: int, tokens: int, quick: bool) -> dict[str, Any]:
    x = torch.randn(tokens, cols, generator=torch.Generator().manual_seed(0))
    dense = balanced(rows, cols, 0.0)
    runs: dict[str, Any] = {"dense": lambda: functional.linear(x, dense), **_prepacked_linear(dense, x)}
    runs |= find_peers(_with_weight(torch.nn.Linear(cols, rows, bias=False), dense), (x,), PEERS)
    kept = {}
    for sparsity in SPARSITIES:
        weight, name = balanced(rows, cols, sparsity), f"{sparsity:.0%}"
        plain = BalancedLinear(pack(weight))
        integer = BalancedLinear(pack(weight, None, torch.int8), activations=torch.int8)
        runs[f"fp32 {name}"] = lambda layer=plain: layer(x)
        runs[f"integers {name}"] = lambda layer=integer: layer(x)
        kept[name] = plain.packed.kept
    large = rows * cols * tokens > 1 << 27
    with torch.no_grad():
        outputs = {name: run() for name, run in runs.items()}
        samples = timing.interleave(runs, 3 if large else 5 if quick else 9, 4e-3, timing.clock_for(1))
    seconds = {name: timing.median(values) for name, values in samples.items()}
    best = {
        kind: min((n for n in seconds if n.startswith(kind)), key=seconds.__getitem__) for kind in ("dense", "int8")
    }
    fastest, quantised = seconds[best["dense"]], seconds[best["int8"]]
    row: dict[str, Any] = {"out x in": f"{rows}x{cols}", "tokens": tokens, "fp32 dense": best["dense"]}
    row["microseconds"] = round(1e6 * fastest, 1)
    row["int8 dense"], row["which"] = round(fastest / quantised, 2), best["int8"].removeprefix("int8")
    row["int8 error"] = round(output_error(outputs[best["int8"]], outputs["dense"]), 4)
    for name in kept:
        row[f"fp32 {name}"] = round(fastest / seconds[f"fp32 {name}"], 2)
        row[f"integers {name}"] = round(fastest / seconds[f"integers {name}"], 2)
        row[f"{name} / int8"] = round(quantised / seconds[f"integers {name}"], 2)
        row[f"error {name}"] = round(output_error(outputs[f"integers {name}"], outputs[f"fp32 {name}"]), 4)
    row["limit"] = round(kept["90%"] * tokens / limits().flops / seconds["integers 90%"], 2)
    row["spread"] = round(max(timing.spread(samples[name]) for name in samples if name.startswith("integers")), 3)
    row["load"] = round(os.getloadavg()[0], 1)
    return row
