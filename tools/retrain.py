"""Retrain pruned ResNet-20s with their dense network as the teacher, and write docs/evidence/retrain-resnet20.

    PRUNUS_DATA=... python tools/retrain.py --sparsity 0.9 --pattern balanced:16 --epochs 20 --seed 0 --work runs

A run goes through stages: the network is reconstructed at 80 %, trained with its zeros held, for 90 % reconstructed
again from there and trained for twice as long. Each stage leaves a row. The same command goes on with a run that was
broken off.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.evidence import FOLDER, record
from tools.quality import resnet

import prunus
from prunus.models import load_weights, save_weights
from prunus.training import FitConfig

NAME = "retrain-resnet20"
BATCH = 64
NOTE = (
    "resnet20 on CIFAR-10, 10,000 test images; reconstructed (512 images, allocation by damage), then trained on all "
    "50,000 images with the dense network as the teacher; stem and head dense. Epochs count all training since dense; "
    "start is the accuracy before the stage's training."
)


def stages(sparsity: float, epochs: float) -> list[tuple[float, float]]:
    """(sparsity, epochs) of each stage; beyond 80 % a third of the epochs is spent there."""
    return [(sparsity, epochs)] if sparsity <= 0.8 else [(0.8, epochs / 3), (sparsity, epochs * 2 / 3)]


def config(dense: nn.Module, epochs: float, seed: int, folder: Path) -> FitConfig:
    """Distillation at temperature 4; a rate that is smaller the shorter the stage is."""
    return FitConfig(
        lr=0.03 if epochs < 2 else 0.05,
        nesterov=True,
        batch_size=BATCH,
        augment="crop-flip",
        distill_from=dense,
        distill_weight=0.9,
        temperature=4.0,
        seed=seed,
        folder=folder,
        every="100it",
        resume=True,
        progress=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--pattern", default="balanced:16")
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs"), help="where checkpoints go")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    network = resnet("resnet20")
    test = prunus.data.load("cifar10", split="test")
    per_epoch = -(-len(network.samples) // BATCH)
    dense = network.model.to(memory_format=torch.channels_last)
    model, done = copy.deepcopy(dense), 0.0
    for sparsity, epochs in stages(chosen.sparsity, chosen.epochs):
        done += epochs
        place = chosen.work / f"{chosen.pattern.replace(':', '-')}-{sparsity:g}-{chosen.epochs:g}ep-seed{chosen.seed}"
        masks, start = pruned(model, network.samples, sparsity, chosen, network.exclude, place, test)
        length = f"{round(epochs * per_epoch)}it"
        prunus.training.fit(
            model, network.samples, length, config(dense, epochs, chosen.seed, place / "fit"), masks=masks
        )
        key = {"pattern": chosen.pattern, "sparsity": sparsity, "epochs": round(done, 2), "seed": chosen.seed}
        row = {**key, "start %": start, "accuracy %": 100 * prunus.training.accuracy(model, test)}
        write(chosen.folder, key, row)


def pruned(
    model: nn.Module, samples: Any, sparsity: float, chosen: Any, exclude: tuple[str, ...], place: Path, test: Any
) -> tuple[prunus.Masks, float]:
    """Reconstruct `model` in place, or read what an earlier run left; the masks and the accuracy."""
    weights, kept = place / "start.safetensors", place / "start.masks"
    if not kept.is_file():
        place.mkdir(parents=True, exist_ok=True)
        masks = prunus.reconstruct(
            model, sparsity, samples, pattern=chosen.pattern, allocation="damage", exclude=exclude, seed=chosen.seed
        )
        save_weights(model, weights)
        masks.save(kept)
    load_weights(model, weights)
    return prunus.Masks.load(kept), 100 * prunus.training.accuracy(model, test)


def write(folder: Path, key: dict[str, Any], row: dict[str, Any]) -> None:
    """Put the row in place of one with the same key."""
    path = folder / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    rows = [old for old in rows if not key.items() <= old.items()]
    print(row, flush=True)
    record(NAME, [*rows, row], NOTE, folder)


if __name__ == "__main__":
    main()
