"""Random networks of every kind the certificates read, with biases and batch norm that has been used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PATTERNS = ("unstructured", "balanced:16", "2:4", "kernels", "channels", "blocks:4x4")
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid)


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Weights, biases and statistics of a network in use, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                fan = module.weight[0].numel()
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * (2 / fan) ** 0.5)
                if module.bias is not None:
                    module.bias.copy_(torch.randn(module.bias.shape, generator=generator) * 0.2)
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 0.3 + 1)
                module.bias.copy_(torch.randn(module.bias.shape, generator=generator) * 0.3)
                module.running_mean.copy_(torch.randn(module.bias.shape, generator=generator) * 0.3)
                module.running_var.copy_(torch.rand(module.bias.shape, generator=generator) + 0.5)
    return model.eval()


def fully_connected(seed: int, width: int = 256, inputs: int = 48) -> tuple[nn.Module, tuple[int, ...]]:
    kind = ACTIVATIONS[seed % len(ACTIVATIONS)] if seed % 2 else nn.ReLU
    layers: list[nn.Module] = [nn.Linear(inputs, width), kind(), nn.Linear(width, width)]
    if seed % 3 == 0:
        layers.append(nn.BatchNorm1d(width))
    layers += [kind(), nn.Dropout(0.5), nn.Linear(width, 12)]
    if seed % 5 == 4:
        layers.append(nn.Softmax(dim=1))
    return randomise(nn.Sequential(*layers), seed), (inputs,)


def convolutional(seed: int, channels: int = 32, side: int = 16) -> tuple[nn.Module, tuple[int, ...]]:
    kind = ACTIVATIONS[seed % len(ACTIVATIONS)] if seed % 2 else nn.ReLU
    pools: list[nn.Module] = [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1)]
    mode = "circular" if seed % 4 == 3 else "zeros"
    groups = 4 if seed % 3 == 1 else 1
    model = nn.Sequential(
        nn.Conv2d(4, channels, 3, padding=1, padding_mode=mode),
        nn.BatchNorm2d(channels),
        kind(),
        pools[seed % 4],
        nn.Conv2d(channels, channels, 3, padding=2, dilation=2, groups=groups),
        kind(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=seed % 2 == 0),
        nn.BatchNorm2d(channels),
        kind(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 12),
    )
    return randomise(model, seed), (4, side, side)


class Residual(nn.Module):
    """A residual sum, a strided shortcut as in the thin CIFAR nets, a concatenation, a mean over the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.branch = nn.Conv2d(2 * channels, 8, 1)
        self.head = nn.Linear(2 * channels + 8, 12)
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.first_norm(self.first(x)))
        half = self.channels // 2
        short = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.channels - half))
        x = nn.functional.relu(self.second(x) + short)
        x = torch.cat([x, torch.tanh(self.branch(x))], dim=1)
        return self.head(x.mean((2, 3)))


def residual(seed: int, channels: int = 16, side: int = 16) -> tuple[nn.Module, tuple[int, ...]]:
    return randomise(Residual(channels), seed), (4, side, side)
