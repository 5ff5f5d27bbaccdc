"""Verdicts of `prunus.equivalent` on the pairs of the verification literature, with boxes and processor time.

ACAS Xu network 1_1 against its pruned5 form on properties 1 to 10; all 45 networks against their weights rounded to
float16 on properties 1, 3 and 4; the MNIST network 3x100 against its pruned5 form near 20 test images, for a tolerance
and for labels. The networks are read from PRUNUS_DATA/acasxu; published verdicts stand beside ours. One part alone,
with what is done kept in a file: python -m benchmarks.equivalent float16 runs.jsonl
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import prunus

DATA = Path(os.environ.get("PRUNUS_DATA", "data"))
FOLDER = DATA / "acasxu"
PUBLISHED = {1: "proved", 2: "proved", 10: "proved"} | dict.fromkeys((3, 4, 5, 7, 8, 9), "refuted")
EXEMPT = ("1_7", "1_8", "1_9")
"""Networks that properties 3 and 4 leave out."""

TOLERANCE = 0.05
BOXES = 64
"""Parts into which the neighbourhood of one image may be split."""


def network(arrays: Any, name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    number = 0
    while f"{name}/W{number}" in arrays:
        weight, bias = (torch.tensor(arrays[f"{name}/{kind}{number}"]).float() for kind in "Wb")
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        layers += [layer, nn.ReLU()]
        number += 1
    return nn.Sequential(*layers[:-1]).eval()


def decide(one: nn.Module, two: nn.Module, number: int) -> dict[str, Any]:
    box = json.loads((FOLDER / "properties.json").read_text())["properties"][str(number)]
    low, high = (torch.tensor(box[side]).double() for side in ("low", "high"))
    begin = time.process_time()
    verdict = prunus.equivalent(one, two, prunus.Box(low, high), tolerance=TOLERANCE, seconds=3600)
    bound = verdict.bound if verdict.status == "proved" else verdict.difference
    return {
        "property": number,
        "verdict": verdict.status,
        "bound or difference": bound,
        "boxes": verdict.boxes,
        "processor seconds": round(time.process_time() - begin, 2),
    }


def pruned5() -> Iterator[tuple[str, Any]]:
    pairs = np.load(FOLDER / "pairs.npz")
    one, two = network(pairs, "acas_1_1"), network(pairs, "acas_1_1_pruned5")
    for number in sorted(PUBLISHED):
        yield (
            f"pruned5 {number}",
            lambda number=number: {
                "pair": "1_1, pruned5",
                **decide(one, two, number),
                "published": PUBLISHED[number],
            },
        )


def float16() -> Iterator[tuple[str, Any]]:
    arrays = np.load(FOLDER / "networks.npz")

    def row(name: str, number: int) -> dict[str, Any]:
        one = network(arrays, name)
        two = copy.deepcopy(one)
        with torch.no_grad():
            for parameter in two.parameters():
                parameter.copy_(parameter.half().float())
        return {"pair": f"{name}, float16", **decide(one, two, number), "published": ""}

    for number in (1, 3, 4):
        for name in sorted({key.split("/")[0] for key in arrays}):
            if number == 1 or name not in EXEMPT:
                yield f"float16 {number} {name}", lambda name=name, number=number: row(name, number)


def mnist() -> Iterator[tuple[str, Any]]:
    """The 3x100 network with the softmax that follows it; boxes of pixels around 20 test images, cut to 0..1."""
    pairs = np.load(FOLDER / "pairs.npz")
    one, two = (
        nn.Sequential(*network(pairs, name), nn.Softmax(1)).eval() for name in ("mnist_3x100", "mnist_3x100_pruned5")
    )
    images = prunus.data.load("mnist", split="test", folder=DATA).tensors[0].flatten(1).double()
    images = ((images - images.min()) / (images.max() - images.min()))[:20]

    def row(steps: int, labels: bool) -> dict[str, Any]:
        counts = dict.fromkeys(("proved", "refuted", "undecided"), 0)
        begin = time.process_time()
        for image in images:
            width = steps / 255
            box = prunus.Box((image - width).clamp_min(0.0), (image + width).clamp_max(1.0))
            verdict = prunus.equivalent(one, two, box, tolerance=TOLERANCE, labels=labels, boxes=BOXES)
            counts[verdict.status] += 1
        spent = round(time.process_time() - begin, 2)
        asked = "the same label" if labels else f"probabilities within {TOLERANCE}"
        return {"pair": "mnist 3x100, pruned5", "pixels": f"+-{steps}/255", "asked": asked, **counts, "seconds": spent}

    for steps in (3, 10):
        for labels in (False, True):
            yield f"mnist {steps} {labels}", lambda steps=steps, labels=labels: row(steps, labels)


PARTS = {"pruned5": pruned5, "float16": float16, "mnist": mnist}


def kept_rows(part: Iterator[tuple[str, Any]], keep: Path | None) -> list[dict[str, Any]]:
    """The rows of a part; with a file, those done before are taken from it."""
    done: dict[str, dict[str, Any]] = {}
    if keep is not None and keep.exists():
        done = dict(json.loads(line) for line in keep.read_text().splitlines())
    rows = []
    for name, make in part:
        if name not in done:
            done[name] = make()
            print(name, done[name], flush=True)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps([name, done[name]], default=float) + "\n")
        rows.append(done[name])
    return rows


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All parts; quick takes two properties of the first."""
    torch.set_num_threads(1)
    if quick:
        return [make() for name, make in pruned5() if name in ("pruned5 3", "pruned5 10")]
    return [row for part in PARTS.values() for row in kept_rows(part(), None)]


NOTES = {
    "pruned5": "ACAS Xu 1_1 against pruned5, tolerance .05 in every output, one thread.",
    "float16": "The 45 ACAS Xu networks against their weights rounded to float16, tolerance .05 in every output, one "
    "thread for each row. NeuroDiff needs 343 s on 12 threads for property 1 of all 45.",
    "mnist": "MNIST 3x100 with its softmax against pruned5, 20 test images, boxes of pixels, split into at most 64 "
    "parts by signs of activations.",
}


def main() -> int:
    from tools.evidence import record

    torch.set_num_threads(1)
    part, keep = sys.argv[1], Path(sys.argv[2])
    rows = kept_rows(PARTS[part](), keep)
    note = f"{NOTES[part]} Processor time. Run again with python -m benchmarks equivalent."
    record(f"equivalent-{'acas' if part == 'pruned5' else part}", rows, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
