"""Trained weights against the theorems' assumptions (ledger P-24): table 1 and histograms of the closeness paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from prunus.papers.reproducing import reproduction
from prunus.study import pictures

_SOURCE = "Qian and Klabjan, A Probabilistic Approach to Neural Network Pruning"
# Mean and variance of the entries of each weight matrix after 20 epochs; one run, so the paper gives no spread.
_TABLE_1 = (
    (-0.0309, 0.0155),
    (-0.0215, 0.0035),
    (-0.0078, 0.0022),
    (-0.0119, 0.0019),
    (-0.0092, 0.0016),
    (-0.0275, 0.0057),
)
_HEIGHTS = "·▁▂▃▄▅▆▇█"
_TRAINED = ("resnet-cifar10", "resnet20-*.th")


@reproduction(
    "closeness-table-1",
    "Weights of a 5 x 1024 network trained on Covertype, and the assumption check (reduced: 450 steps of 22,700)",
    f"{_SOURCE}, table 1 and figure 1 (ledger P-24); 20 epochs over all rows in the paper",
    minutes=4.0,
    needs=("covertype",),
)
def closeness_table_1(
    seed: int = 0, folder: Path | None = None, length: str = "450it", sizes: str = "54-1024-1024-1024-1024-1024-7"
) -> Iterator[dict[str, Any]]:
    """The paper's network, optimizer and batch size, for 450 of its 22,700 steps.

    The mean alone explains `mean_norm` of a matrix's norm and independent weights would have `bulk_norm`: the paper's
    moments give 22.0 against 3.8 for layer 2, so its table contradicts the assumption it is shown for.
    """
    from prunus.models import make
    from prunus.training import FitConfig, accuracy, fit

    train, test = _covertype(folder, seed)
    model = make(f"fc:{sizes}", seed=seed)
    before = {row["name"]: row for row in pictures.weights(model)}
    config = FitConfig(optimizer="adam", lr=1e-3, batch_size=512, weight_decay=0.0, schedule="constant", seed=seed)
    fit(model, train, length, config.replace(progress=False))
    share = accuracy(model, test)
    for (mean, variance), row in zip(_TABLE_1, pictures.weights(model)):
        count, width = row["shape"]
        yield {
            "layer": row["name"].removesuffix(".weight"),
            "published mean": mean,
            "our mean": row["mean"],
            "published variance": variance,
            "our variance": row["deviation"] ** 2,
            "variance at the start": before[row["name"]]["deviation"] ** 2,
            "norm of the mean, print": abs(mean) * (count * width) ** 0.5,
            **_check(row),
            "accuracy, %": 100 * share,
        }


@reproduction(
    "closeness-figure-2",
    "Histograms of trained convolutions, their fitted law, and the assumption check: ResNet-20 in place of VGG-16",
    f"{_SOURCE}, figure 2 (ledger P-24); the figure has no numbers",
    minutes=0.1,
    needs=("resnet-cifar10",),
)
def closeness_figure_2(folder: Path | None = None) -> Iterator[dict[str, Any]]:
    """One row for each layer: a histogram in words of eight heights, and whether its norm is that of free draws."""
    from prunus.models import load_weights, make

    model = make("resnet20")
    load_weights(model, _trained(folder))
    for row in pictures.weights(model):
        yield {
            "layer": row["name"].removesuffix(".weight"),
            "shape": "x".join(map(str, row["shape"])),
            "mean": row["mean"],
            "variance": row["deviation"] ** 2,
            **_check(row),
        }


def _check(row: dict[str, Any]) -> dict[str, Any]:
    """The check shown beside a histogram on a study's page, as columns."""
    return {
        "norm": row["norm"],
        "norm of its mean": row["mean_norm"],
        "norm of free draws": row["bulk_norm"],
        "closest law": row["law"],
        "independent draws": "yes" if row["fits"] else "no",
        "histogram": sketch(row["counts"]),
    }


def sketch(counts: list[int], columns: int = 21) -> str:
    """A histogram in one line of text; bins are joined until `columns` are left."""
    step = -(-len(counts) // columns)
    joined = [sum(counts[start : start + step]) for start in range(0, len(counts), step)]
    top = max(1, *joined)
    return "".join(_HEIGHTS[-(-8 * count // top)] for count in joined)


def _covertype(folder: Path | None, seed: int) -> tuple[Any, Any]:
    """All rows shuffled: nine tenths to train and at most 20,000 of the rest to test.

    The documented split is no sample of the whole: its training part is balanced between the classes.
    """
    from torch.utils.data import TensorDataset

    from prunus.data import load
    from prunus.training.batches import in_order

    parts: list[Any] = [load("covertype", split=name, folder=folder) for name in ("train", "validation", "test")]
    inputs, labels = (torch.cat(half) for half in zip(*(pair for part in parts for pair in in_order(part, 2**16))))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    cut = len(order) * 9 // 10
    chosen = (order[:cut], order[cut : cut + 20_000])
    train, test = (TensorDataset(inputs[rows], labels[rows]) for rows in chosen)
    return train, test


def _trained(folder: Path | None) -> Path:
    import os

    from prunus.errors import BadInput

    root = Path(folder or os.environ.get("PRUNUS_DATA") or ".")
    found = sorted((root / _TRAINED[0]).glob(_TRAINED[1]))
    if not found:
        raise BadInput(f"There is no {'/'.join(_TRAINED)} in {root}: name the folder with --data-dir or PRUNUS_DATA.")
    return found[0]
