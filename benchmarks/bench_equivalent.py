"""Verdicts of `prunus.equivalent` on the ACAS Xu networks, with boxes and processor time.

    python benchmarks/bench_equivalent.py pruned     network 1_1 against its pruned5 form, properties 1 to 10
    python benchmarks/bench_equivalent.py halves     all 45 networks against their weights rounded to float16

The networks are read from PRUNUS_DATA/acasxu; published verdicts stand beside ours.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import prunus
from support.evidence import record

FOLDER = Path(os.environ.get("PRUNUS_DATA", "data")) / "acasxu"
PUBLISHED = {1: "proved", 2: "proved", 10: "proved"} | dict.fromkeys((3, 4, 5, 7, 8, 9), "refuted")


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
    verdict = prunus.equivalent(one, two, prunus.Box(low, high), tolerance=0.05, seconds=600)
    bound = verdict.bound if verdict.status == "proved" else verdict.difference
    return {
        "property": number,
        "verdict": verdict.status,
        "bound or difference": bound,
        "boxes": verdict.boxes,
        "processor seconds": round(time.process_time() - begin, 2),
    }


def main(which: str) -> None:
    torch.set_num_threads(1)
    if which == "pruned":
        arrays = np.load(FOLDER / "pairs.npz")
        one, two = network(arrays, "acas_1_1"), network(arrays, "acas_1_1_pruned5")
        rows = [{**decide(one, two, number), "published": PUBLISHED[number]} for number in sorted(PUBLISHED)]
        record("equivalent-acas", rows, "ACAS Xu 1_1 against pruned5, tolerance .05 in every output, one thread.")
        return
    arrays = np.load(FOLDER / "networks.npz")
    rows = []
    for number in (1, 3, 4):
        for name in sorted({key.split("/")[0] for key in arrays}):
            one = network(arrays, name)
            two = copy.deepcopy(one)
            with torch.no_grad():
                for parameter in two.parameters():
                    parameter.copy_(parameter.half().float())
            rows.append({"network": name, **decide(one, two, number)})
            record(
                "equivalent-acas-halves", rows, "Every network against its weights rounded to float16, tolerance .05."
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pruned")
