"""A trained sentence encoder (MiniLM-L6, where it is installed) end to end, one thread, beside dense engines.

Times faster than torch eager. ONNX Runtime in float32 and int8 (dynamic, and calibrated on these tokens; inputs and
outputs bound), OpenVINO in float32 and calibrated int8, torch int8, torch.compile with frozen weights; ours with
packed layers and native blocks, in float32 and in integers, at several sparsities without any retraining. "weights"
says how they were pruned: by magnitude alone, or reconstructed on 512 sentences where `benchmarks/_reconstructed.py`
was run before. "error" is that of the hidden states against the same weights in float32 (for ours: against the pruned
model in float32, so that it tells what arithmetic costs), "cosine" that of the mean-pooled embedding of random tokens
against the unpruned model: what pruning and arithmetic cost together. "load" is the machine's load average.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

import prunus
from benchmarks import _reconstructed
from benchmarks.sparse_network import Encoder, _find_encoder
from prunus import timing
from prunus.sparse._peers import find_peers, output_error

SIZES = ((1, 32), (8, 64))
PART, PARTS = "tokens", tuple(f"{batch} x {length}" for batch, length in SIZES)
PEERS = ("onnx", "onnx int8", "onnx int8 static", "openvino", "openvino int8", "torch int8", "compile")


def run(quick: bool, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    inner = _find_encoder()
    if inner is None:
        return []
    dense = Encoder(inner).eval()
    ours: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {}
    kinds: dict[str, str] = {}
    for sparsity in (0.75, 0.9) if quick else (0.5, 0.75, 0.9):
        rebuilt = _reconstructed.load("minilm", inner, sparsity)
        pruned = Encoder(rebuilt).eval() if rebuilt is not None else copy.deepcopy(dense)
        if rebuilt is None:
            prunus.prune(pruned, sparsity, pattern="balanced:16", exclude=("*embeddings*",))
        for name, activations in (("fp32", None), ("integers", torch.int8)):
            fast = prunus.compress(pruned, select="always", activations=activations, fuse=True)
            ours[f"ours {sparsity:.0%}, {name}"] = (pruned, fast)
            kinds[f"ours {sparsity:.0%}, {name}"] = "magnitude" if rebuilt is None else "reconstructed"
    table = []
    for batch, length in (size for size, name in zip(SIZES, PARTS) if name in parts):
        table += _size(dense, ours, batch, length, 5 if quick else 11)
    return [{**row, "weights": kinds.get(row["what"], "")} for row in table]


def _size(dense: Any, ours: dict[str, Any], batch: int, length: int, repeats: int) -> list[dict[str, Any]]:
    tokens = torch.randint(1000, 20_000, (batch, length), generator=torch.Generator().manual_seed(0))
    runs: dict[str, Any] = {"torch": lambda: dense(tokens), **find_peers(dense, (tokens,), PEERS)}
    for name, (_, fast) in ours.items():
        runs[name] = lambda fast=fast: fast(tokens)
    with torch.no_grad():
        expected = {name: pruned(tokens) for name, (pruned, _) in ours.items()}
        before = dense(tokens)
        samples = timing.interleave(runs, repeats, 2e-2, timing.clock_for(1))
        outputs = {name: run() for name, run in runs.items()}
    slower = timing.ratios(samples, "torch")
    table = []
    for name, values in samples.items():
        row: dict[str, Any] = {"tokens": f"{batch} x {length}", "what": name}
        row["milliseconds"] = round(1e3 * timing.median(values), 2)
        row["spread"] = round(timing.spread(values), 3)
        row["times faster than torch"] = round(1 / slower[name], 2)
        if "int8, ONNX Runtime" in samples:
            row["than ONNX Runtime int8"] = round(1 / timing.ratios(samples, "int8, ONNX Runtime")[name], 2)
        row["error"] = round(output_error(outputs[name], expected.get(name, before)), 4)
        row["cosine"] = round(float(torch.cosine_similarity(outputs[name].mean(1), before.mean(1)).mean()), 4)
        row["load"] = round(os.getloadavg()[0], 1)
        table.append(row)
    return table
