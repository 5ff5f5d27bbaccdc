"""Small data, networks and comparisons that the tests of training share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import prunus.data
import prunus.models
from prunus.training import Callback


def digits(count: int | None = None) -> tuple[Dataset[Any], Dataset[Any]]:
    """Training and test digits; only the first `count` of the training ones where given."""
    train, test = prunus.data.load("digits", split="train"), prunus.data.load("digits", split="test")
    return (Subset(train, range(count)) if count else train), test


class Stop(Exception):
    """Ends a run in the middle, as a crash would."""


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def before_step(self, run: Any) -> None:
        if run.step == self.step:
            raise Stop


def fc(sizes: str = "64-32-10", seed: int = 0, **options: Any) -> nn.Module:
    return prunus.models.make(f"fc:{sizes}", seed=seed, **options)


def same_bytes(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Equal names and bit-equal content; -0.0 and 0.0 differ here."""
    if one.keys() != other.keys():
        return False
    return all(
        torch.equal(value.reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name, value in one.items()
    )


class ConvNet(nn.Module):
    """Convolution, batch norm, dropout, linear: every kind of state a checkpoint must carry."""

    def __init__(self, channels: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x.reshape(-1, 1, 8, 8))))
        return self.head(self.dropout(torch.max_pool2d(x, 2).flatten(1)))


def conv_net(seed: int = 0, **options: Any) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ConvNet(**options)


class Noisy(Dataset[Any]):
    """Digits read one by one, with noise from all three global generators: a data set with random transforms."""

    def __init__(self, count: int = 200) -> None:
        self.inputs, self.labels = TensorDataset(*prunus.data.load("digits").tensors)[:count]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import random

        import numpy as np

        noise = torch.randn(64) + float(np.random.rand()) + random.random()
        return self.inputs[index] + 0.01 * noise, int(self.labels[index])
