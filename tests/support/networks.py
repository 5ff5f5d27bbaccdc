"""Small networks of every prunable kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cell = kind(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def _images(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(features, 3))


MAKERS = {
    "linear": lambda: (nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 3)), torch.randn(8, 32)),
    "convolution": lambda: (_images(nn.Conv2d(16, 8, 3, padding=1), features=128), torch.randn(8, 16, 4, 4)),
    "grouped": lambda: (_images(nn.Conv2d(32, 8, 3, padding=1, groups=2), features=128), torch.randn(8, 32, 4, 4)),
    "depthwise": lambda: (_images(nn.Conv2d(8, 8, 5, padding=2, groups=8), features=128), torch.randn(8, 8, 4, 4)),
    "1-d": lambda: (_images(nn.Conv1d(16, 8, 3, padding=1), features=64), torch.randn(8, 16, 8)),
    "3-d": lambda: (_images(nn.Conv3d(4, 8, 3, padding=1), features=64), torch.randn(8, 4, 2, 2, 2)),
    "transposed": lambda: (_images(nn.ConvTranspose2d(16, 6, 2, stride=2), features=384), torch.randn(8, 16, 4, 4)),
    "lstm": lambda: (Recurrent(nn.LSTM), torch.randn(8, 5, 16)),
    "gru": lambda: (Recurrent(nn.GRU), torch.randn(8, 5, 16)),
    "attention": lambda: (Attention(), torch.randn(8, 5, 16)),
    "tied": lambda: (Tied(), torch.randn(8, 16)),
}


def network(kind: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """(model, inputs, labels) of one kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, inputs = MAKERS[kind]()
    return model, inputs, torch.arange(inputs.shape[0]) % 3
