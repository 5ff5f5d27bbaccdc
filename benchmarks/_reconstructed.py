"""Trained networks pruned and reconstructed, kept in a folder so that several benchmarks can read them.

    PRUNUS_DATA=... python -m benchmarks._reconstructed minilm 0.5 0.75 0.9

A file holds the weights of one network at one sparsity (balanced:16); what is there already is not made again. The
folder is `PRUNUS_BENCH` (otherwise `.bench` beside the sources). Networks and samples are those of tools/quality.py.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors.torch import load_file, save
from tools.quality import NETWORKS, Network

import prunus

FOLDER = Path(os.environ.get("PRUNUS_BENCH", Path(__file__).resolve().parents[1] / ".bench"))
SAMPLES = {"smollm2": 32}  # spans of 512 tokens: a quarter of what tools/quality.py takes


def path_for(name: str, sparsity: float) -> Path:
    return FOLDER / f"{name}-{sparsity:.0%}.safetensors"


def load(name: str, dense: nn.Module, sparsity: float) -> nn.Module | None:
    """A copy of the dense network with the reconstructed weights; None where they were not made."""
    path = path_for(name, sparsity)
    if not path.is_file():
        return None
    model = copy.deepcopy(dense)
    missing = model.load_state_dict(load_file(path), strict=False)
    if missing.unexpected_keys:
        raise ValueError(f"{path} belongs to another network: delete it.")
    return model


def make(name: str, sparsities: list[float]) -> None:
    network: Network | None = None
    for sparsity in sparsities:
        if path_for(name, sparsity).is_file():
            continue
        network = network or NETWORKS[name]()
        began = time.process_time()
        model = copy.deepcopy(network.model)
        options, count = network.options, min(network.count, SAMPLES.get(name, network.count))
        prunus.reconstruct(model, sparsity, network.samples, samples=count, options=options, exclude=network.exclude)
        FOLDER.mkdir(parents=True, exist_ok=True)
        changed = {key: value for key, value in model.state_dict().items() if not _same(network.model, key, value)}
        path = path_for(name, sparsity)
        path.with_suffix(".tmp").write_bytes(save({key: value.contiguous().clone() for key, value in changed.items()}))
        os.replace(path.with_suffix(".tmp"), path)
        print(name, sparsity, f"{time.process_time() - began:.0f} processor seconds", flush=True)


def _same(dense: nn.Module, key: str, value: Any) -> bool:
    return torch.equal(dense.state_dict()[key], value)


if __name__ == "__main__":
    make(sys.argv[1], [float(word) for word in sys.argv[2:]])
