"""Integers beyond linear layers, one thread: ResNet-20 against calibrated int8, single convolutions, LSTM and GRU.

Every row names what runs and what it is compared with; the two (and the other candidates of the group) are interleaved,
processor time, medians. ResNet-20 has its trained weights at 90 % balanced:16 without retraining (the stem and the last
layer stay dense), runs on CIFAR-10 test images, and both sides calibrate on images: ONNX Runtime on these very ones.
"measured" is what `compress` makes of it by itself, "always" has integers in every pruned layer. Convolutions are 3x3,
90 and 75 % balanced:16, over a given range, against our own float32. LSTM and GRU have 256 units, 90 % balanced:16, 16
steps, against torch's dense ones. "error" is relative, against float32 with the same weights; "load" the load average:
above one, trust the ratios only. The three groups may be runs of different hours; torch.compile has frozen weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prunus
from prunus import timing
from prunus.sparse import SparseConv2d
from prunus.sparse._peers import find_peers, output_error

PART, PARTS = "what", ("ResNet-20", "convolution", "recurrent")
CASES = ((16, 32), (32, 16), (64, 8), (64, 32), (128, 16), (256, 8))


def run(quick: bool, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    repeats = 5 if quick else 15
    table = []
    if "ResNet-20" in parts:
        table += [row for batch in (1, 32) for row in _resnet(batch, repeats)]
    if "convolution" in parts:
        cases = CASES[:2] if quick else CASES
        table += [
            _conv(*case, batch, sparsity, repeats) for case in cases for sparsity in (0.75, 0.9) for batch in (1, 32)
        ]
    if "recurrent" in parts:
        table += [_recurrent(kind, batch, repeats) for kind in ("LSTM", "GRU") for batch in (1, 8)]
    return table


def _row(part: str, detail: str, samples: Any, ours: str, other: str, error: float) -> dict[str, Any]:
    return {
        PART: part,
        "detail": detail,
        "ours": ours,
        "microseconds": round(1e6 * timing.median(samples[ours]), 1),
        "against": other,
        "times faster": round(timing.ratios(samples, ours)[other], 2),
        "error": round(error, 4),
        "spread": round(timing.spread(samples[ours]), 3),
        "load": round(os.getloadavg()[0], 1),
    }


def _images(split: str, count: int) -> Tensor:
    data = prunus.data.load("cifar10", split=split)
    return torch.stack([data[number][0] for number in range(count)])


def _resnet(batch: int, repeats: int) -> list[dict[str, Any]]:
    model = prunus.models.make("resnet20").eval()
    weights = Path(os.environ.get("PRUNUS_DATA", "")) / "resnet-cifar10" / "resnet20-12fca82f.th"
    prunus.models.load_weights(model, weights)
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("conv1", "linear"))
    x, calibration = _images("test", batch), _images("train", 128)
    runs: dict[str, Any] = find_peers(model, (x,), ("onnx", "onnx int8 static", "openvino", "openvino int8", "compile"))
    runs["torch"] = lambda: model(x)
    ours = {"float32": prunus.compress(model, example=x, fuse=True)}
    for select in ("measured", "always"):
        ours[f"integers, {select}"] = prunus.compress(
            model, example=x, fuse=True, select=select, activations=torch.int8, calibration=calibration
        )
    for name, fast in ours.items():
        runs[name] = lambda fast=fast: fast(x)
    with torch.no_grad():
        samples = timing.interleave(runs, repeats, 2e-2, timing.clock_for(1))
        outputs = {name: run() for name, run in runs.items()}
    others = [name for name in samples if name not in ours]
    errors = {name: output_error(outputs[name], outputs["torch"]) for name in samples}
    int8 = "int8 static, ONNX Runtime"
    rows = [
        _row("ResNet-20", f"batch {batch}", samples, name, other, errors[name]) for name in ours for other in others
    ]
    return rows + [_row("ResNet-20", f"batch {batch}", samples, int8, "torch", errors[int8])] * (int8 in samples)


def _conv(channels: int, size: int, batch: int, sparsity: float, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
    prunus.prune(conv, sparsity, pattern="balanced:16")
    x = torch.randn(batch, channels, size, size).relu()
    plain = SparseConv2d.from_dense(conv)
    packed = plain.geometry.pack(conv.weight, 1, None, torch.int8)
    span = torch.tensor([0.0, 3.5], dtype=torch.float32)
    integer = SparseConv2d(packed, plain.geometry, None, activations=torch.int8, span=span)
    with torch.no_grad():
        runs = {"integers": lambda: integer(x), "float32": lambda: plain(x)}
        samples = timing.interleave(runs, repeats, 4e-3, timing.clock_for(1))
        error = output_error(integer(x), plain(x))
    detail = f"{channels} channels, {size}x{size}, {sparsity:.0%}, batch {batch}"
    return _row("convolution", detail, samples, "integers", "float32", error)


def _recurrent(kind: str, batch: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    dense = getattr(nn, kind)(256, 256, batch_first=True).eval().requires_grad_(False)
    prunus.prune(dense, 0.9, pattern="balanced:16")
    x = torch.randn(batch, 16, 256)
    fast = prunus.compress(dense, example=x, select="always")
    with torch.no_grad():
        runs = {"float32": lambda: fast(x), "torch": lambda: dense(x)}
        samples = timing.interleave(runs, repeats, 4e-3, timing.clock_for(1))
        error = output_error(fast(x)[0], dense(x)[0])
    return _row("recurrent", f"{kind}, batch {batch}", samples, "float32", "torch", error)
