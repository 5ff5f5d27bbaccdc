"""Verdicts of `prunus.equivalent` on the ACAS Xu networks, with boxes and processor time.

Network 1_1 against its pruned5 form on properties 1 to 10, and all 45 against their weights rounded to float16.
The networks are read from PRUNUS_DATA/acasxu; published verdicts stand beside ours.
"""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import prunus

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


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Network 1_1 against pruned5 on all properties; then, unless quick, the 45 networks against float16."""
    torch.set_num_threads(1)
    pairs = np.load(FOLDER / "pairs.npz")
    one, two = network(pairs, "acas_1_1"), network(pairs, "acas_1_1_pruned5")
    numbers = (3, 10) if quick else sorted(PUBLISHED)
    rows = [{"pair": "1_1, pruned5", **decide(one, two, k), "published": PUBLISHED[k]} for k in numbers]
    if quick:
        return rows
    arrays = np.load(FOLDER / "networks.npz")
    for number in (1, 3, 4):
        for name in sorted({key.split("/")[0] for key in arrays}):
            one = network(arrays, name)
            two = copy.deepcopy(one)
            with torch.no_grad():
                for parameter in two.parameters():
                    parameter.copy_(parameter.half().float())
            rows.append({"pair": f"{name}, float16", **decide(one, two, number), "published": ""})
    return rows
