"""Smaller ordinary networks beside Torch-Pruning 1.6.1: trained CIFAR-10 ResNets, the same multiply-adds, no training.

Accuracy on the first 2,000 test images. "ours" looks at 512 training images; "peer" is Torch-Pruning with global group
magnitude as it comes. The two last columns are the same network with its batch-norm statistics taken again on 1,280
training images: as they are, and cropped and mirrored as in training. Needs PRUNUS_DATA and, for the peer, the package
torch-pruning.
"""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

TARGETS = {"resnet20": (0.74, 0.56, 0.5), "resnet56": (0.77, 0.6, 0.5)}
PART, PARTS = "network", tuple(TARGETS)


def run(quick: bool = False, parts: tuple[str, ...] = PARTS) -> list[dict[str, Any]]:
    """One row for each network and target."""
    folder = os.environ.get("PRUNUS_DATA", "")
    if not Path(folder, "resnet-cifar10").is_dir():
        return [{"skipped": "needs PRUNUS_DATA with resnet-cifar10 and cifar10"}]
    return [row for name in (PARTS[:1] if quick else parts) for row in table(name, Path(folder), TARGETS[name])]


def table(name: str, folder: Path, targets: tuple[float, ...]) -> list[dict[str, Any]]:
    """Ours and the peer's on one network."""
    import prunus
    from prunus.structure import find_removal
    from prunus.training import accuracy

    weights = next((folder / "resnet-cifar10").glob(f"{name}-*.th"))
    model = prunus.models.resolve(name, str(weights)).eval()
    train = prunus.data.load("cifar10", split="train", folder=folder)
    test = Subset(prunus.data.load("cifar10", split="test", folder=folder), range(2000))
    example = torch.zeros(1, 3, 32, 32)
    rows = []
    for target in targets:
        removal = find_removal(model, target, example=example, data=train, samples=512)
        row = {
            "network": name,
            "dense": accuracy(model, test),
            "multiply-adds": removal.share,
            "ours": accuracy(removal.apply(), test),
        }
        rows.append({**row, **_peer(model, target, example, train, test)})
        print(rows[-1], flush=True)
    return rows


def _peer(model: nn.Module, target: float, example: torch.Tensor, train: Any, test: Any) -> dict[str, Any]:
    from prunus.training import accuracy, recalibrate

    try:
        small, share = peer_shrunk(model, target, example)
    except ImportError:
        return {"peer": "not installed"}
    except Exception as error:
        return {"peer": f"failed: {type(error).__name__}"}
    row = {"peer multiply-adds": share, "peer": accuracy(small, test)}
    for what, augment in (("plain images", "none"), ("as in training", "crop-flip")):
        again = recalibrate(copy.deepcopy(small), train, augment=augment)
        row[f"peer recalibrated, {what}"] = accuracy(again, test)
    return row


def peer_shrunk(model: nn.Module, target: float, example: torch.Tensor) -> tuple[nn.Module, float]:
    """Torch-Pruning with global group magnitude, its ratio searched so that the multiply-adds meet the target."""
    import torch_pruning

    whole = torch_pruning.utils.count_ops_and_params(model, example)[0]
    outputs = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    low, high = 0.0, 0.9
    best: tuple[nn.Module, float] | None = None
    for _ in range(7):
        ratio = (low + high) / 2
        small = copy.deepcopy(model)
        kept = [module for module, old in zip(small.modules(), model.modules()) if old in outputs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pruner = torch_pruning.pruner.MetaPruner(
                small,
                example,
                importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
                global_pruning=True,
                pruning_ratio=ratio,
                ignored_layers=kept,
            )
            pruner.step()
        share = torch_pruning.utils.count_ops_and_params(small, example)[0] / whole
        if best is None or abs(share - target) < abs(best[1] - target):
            best = small, share
        low, high = (ratio, high) if share > target else (low, ratio)
    assert best is not None
    return best[0].eval(), best[1]
