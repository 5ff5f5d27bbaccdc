"""Random networks with residual sums, concatenations, splits, grouped, depthwise and shared convolutions."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class RandomNet(nn.Module):
    """A chain of steps drawn from a seed; each step keeps the number of channels it promises."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleDict()
        self.steps: list[tuple[str, Any]] = []
        channels = draw.choice([8, 12, 16])
        self.layers["stem"] = nn.Conv2d(3, channels, 3, padding=1)
        drawn: list[str] = []
        for number in range(draw.randint(2, 5)):
            kind = draw.choice(KINDS)
            drawn.append(kind)
            channels = getattr(self, f"_{kind}")(f"{kind}{number}", channels, draw)
        self.kinds = frozenset(drawn)
        if draw.random() < 0.5:
            self.steps.append(("flatten", None))
            self.layers["head"] = nn.Linear(channels * 16, 24)
        else:
            self.steps.append(("mean", None))
            self.layers["head"] = nn.Linear(channels, 24)
        self.layers["out"] = nn.Linear(24, 5)

    def _plain(self, name: str, channels: int, draw: random.Random) -> int:
        new = draw.choice([8, 12, 16])
        self.layers[name] = nn.Sequential(nn.Conv2d(channels, new, 3, padding=1), nn.BatchNorm2d(new), nn.ReLU())
        self.steps.append(("plain", name))
        return new

    def _residual(self, name: str, channels: int, draw: random.Random) -> int:
        inner = draw.choice([8, 16])
        act = draw.choice([nn.ReLU, nn.GELU, nn.Sigmoid])
        self.layers[name] = nn.Sequential(
            nn.Conv2d(channels, inner, 3, padding=1), act(), nn.Conv2d(inner, channels, 1), nn.BatchNorm2d(channels)
        )
        self.steps.append(("residual", name))
        return channels

    def _concat(self, name: str, channels: int, draw: random.Random) -> int:
        left, right = draw.choice([4, 8]), draw.choice([4, 8])
        self.layers[name + "a"] = nn.Conv2d(channels, left, 1)
        self.layers[name + "b"] = nn.Conv2d(channels, right, 3, padding=1)
        self.steps.append(("concat", name))
        return left + right

    def _grouped(self, name: str, channels: int, draw: random.Random) -> int:
        groups = draw.choice([2, 4])
        new = groups * draw.choice([2, 4])
        self.layers[name] = nn.Conv2d(channels, new, 3, padding=1, groups=groups)
        self.steps.append(("plain", name))
        return new

    def _depthwise(self, name: str, channels: int, draw: random.Random) -> int:
        self.layers[name] = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.BatchNorm2d(channels), nn.ReLU6()
        )
        self.steps.append(("plain", name))
        return channels

    def _shared(self, name: str, channels: int, draw: random.Random) -> int:
        self.layers[name] = nn.Conv2d(channels, channels, 3, padding=1)
        self.steps.append(("shared", name))
        return channels

    def _gate(self, name: str, channels: int, draw: random.Random) -> int:
        self.layers[name] = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1), nn.Sigmoid())
        self.steps.append(("gate", name))
        return channels

    def _norm(self, name: str, channels: int, draw: random.Random) -> int:
        self.layers[name] = nn.GroupNorm(4, channels)
        self.steps.append(("plain", name))
        return channels

    def _glu(self, name: str, channels: int, draw: random.Random) -> int:
        new = draw.choice([8, 12])
        self.layers[name] = nn.Conv2d(channels, 2 * new, 1)
        self.steps.append(("glu", name))
        return new

    def _transposed(self, name: str, channels: int, draw: random.Random) -> int:
        new = draw.choice([8, 16])
        self.layers[name] = nn.ConvTranspose2d(channels, new, 3, padding=1)
        self.steps.append(("plain", name))
        return new

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.layers["stem"](x))
        for kind, name in self.steps:
            if kind == "plain":
                x = self.layers[name](x)
            elif kind == "residual":
                x = functional.relu(x + self.layers[name](x))
            elif kind == "concat":
                x = torch.cat([self.layers[name + "a"](x), self.layers[name + "b"](x)], dim=1)
            elif kind == "shared":
                x = self.layers[name](functional.relu(self.layers[name](x))) + x
            elif kind == "gate":
                x = x * self.layers[name](x.mean((2, 3), keepdim=True))
            elif kind == "glu":
                left, right = self.layers[name](x).chunk(2, dim=1)
                x = left * torch.tanh(right)
            elif kind == "flatten":
                x = functional.adaptive_avg_pool2d(x, 4).flatten(1)
            else:
                x = x.mean((2, 3))
        return self.layers["out"](functional.relu(self.layers["head"](x)))


KINDS = ("plain", "residual", "concat", "grouped", "depthwise", "shared", "gate", "norm", "glu", "transposed")


def make(seed: int) -> RandomNet:
    """A random network with random statistics in its norms."""
    torch.manual_seed(seed)
    model = RandomNet(seed).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model
