"""Prune or quantise? Linear layers by shape, tokens and sparsity: integer products against dense int8 and float32.

One thread, interleaved, processor time. "int8 dense" is the fastest of ONNX Runtime (dynamic, inputs and outputs bound)
and torch; "fp32 dense" the fastest of F.linear, oneDNN and MKL with packed weights, ONNX Runtime and OpenVINO. Columns
are how many times faster a candidate is than the best fp32 dense; errors are relative, on normal inputs. "load" is the
machine's load average when the row was measured: above one, trust the ratios only.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from benchmarks.sparse_linear import balanced
from prunus.sparse.bench import INTEGER, bench_linear

SHAPES = ((384, 384), (1536, 384), (1024, 1024), (3072, 768), (5632, 2048), (11008, 4096))
PEERS = ("onnx", "openvino", "onnx int8", "torch int8")


def run(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    table = []
    for rows, cols in SHAPES[:3] if quick else SHAPES:
        large = rows * cols > 8 << 20
        for tokens in (1, 32) if quick or large else (1, 32, 128, 512):
            table.append(_row(rows, cols, tokens, 5 if quick or large else 9))
    return table


def _row(rows: int, cols: int, tokens: int, repeats: int) -> dict[str, Any]:
    row: dict[str, Any] = {"out x in": f"{rows}x{cols}", "tokens": tokens}
    for number, sparsity in enumerate((0.5, 0.75, 0.9)):
        weight = balanced(rows, cols, sparsity)
        result = bench_linear(weight, tokens, peers=PEERS if number == 1 else (), repeats=repeats)
        dense = min(seconds for name, seconds in result.seconds.items() if name.startswith("dense"))
        if number == 1:  # the engines are timed beside 75 %, and their ratio to F.linear carries over
            gain = dense / result.seconds["dense"]
            quantised = {name: seconds for name, seconds in result.seconds.items() if name.startswith("int8")}
            int8 = min(quantised, key=lambda name: quantised[name]) if quantised else ""
            best = quantised.get(int8, float("nan"))
            row["int8 dense"], row["which"] = round(dense / best, 2), int8.removeprefix("int8, ")
            row["int8 error"] = round(result.errors.get(int8, float("nan")), 4)
            row["integers at 75 % / int8"] = round(best / result.seconds[INTEGER], 2)
            row["gain"] = gain
        name = f"{sparsity:.0%}"
        row[f"ours {name}"] = (
            result.seconds["dense"] / result.seconds["ours"],
            result.seconds["dense"] / result.seconds[INTEGER],
        )
        row[f"error {name}"] = round(result.errors[INTEGER], 4)
    gain = row.pop("gain")
    for name in ("50%", "75%", "90%"):
        plain, integer = row.pop(f"ours {name}")
        row[f"fp32 {name}"], row[f"integers {name}"] = round(plain * gain, 2), round(integer * gain, 2)
    row["load"] = round(os.getloadavg()[0], 1)
    return row
