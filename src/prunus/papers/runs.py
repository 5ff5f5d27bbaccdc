"""What several reproductions share: standardised data, a trained model's accuracy, mean and spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from prunus.data import load
from prunus.settings.training import FitConfig
from prunus.training.batches import in_order
from prunus.training.loop import fit
from prunus.training.tickets import find_ticket


def standardised(train: Dataset[Any], test: Dataset[Any]) -> tuple[TensorDataset, TensorDataset]:
    """Both sets with the mean of the training inputs taken off and divided by their spread: two numbers in all.

    The ledger's runs on digits agree with inputs of this scale; with pixels in [0, 1] everything learns more slowly.
    """
    tensors = [tuple(torch.cat(part) for part in zip(*in_order(data, 4096))) for data in (train, test)]
    mean, spread = tensors[0][0].mean(), tensors[0][0].std()
    one, two = (TensorDataset((inputs - mean) / spread, labels) for inputs, labels in tensors)
    return one, two


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Standardised digits: 1297 to train, 500 to test."""
    return standardised(load("digits"), load("digits", split="test"))


def first(data: Dataset[Any], count: int) -> Subset[Any]:
    """The first `count` samples."""
    return Subset(data, range(count))


def score_of(
    model: nn.Module,
    pair: tuple[Dataset[Any], Dataset[Any]],
    method: str,
    length: str,
    config: FitConfig,
    ticket: dict[str, Any] | None = None,
) -> float:
    """Test accuracy in percent after the last epoch: SGD on the weights, or a search of a ticket."""
    train, test = pair
    if method == "sgd":
        history = fit(model, train, length, config, test=test)
    else:
        history = find_ticket(model, train, method, length=length, test=test, config=config, **(ticket or {})).history
    return 100.0 * float(history[-1].test_accuracy or 0.0)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation, rounded as tables are."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"ours": round(statistics.fmean(values), 2), "s.d.": round(spread, 2)}
