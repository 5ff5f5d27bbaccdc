"""The thin CIFAR ResNets of He et al. (2015), section 4.2, with parameter-free shortcuts.

Keys: conv1, bn1, layer{1,2,3}.{i}.{conv1,bn1,conv2,bn2}, linear; those of the trained weights.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from prunus.models.fc import scaled


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters ("option A").

    Where the block halves the image and adds channels, the shortcut takes every second pixel and pads the channels
    with zeros, equally before and after.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs, affine=affine)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, affine=affine)
        self.stride = stride
        before = (outputs - inputs) // 2
        self.padding = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if any(self.padding):
            x = functional.pad(x, self.padding)
        return functional.relu(out + x)


class CifarResNet(nn.Module):
    """3x3 convolution to 16 channels, three stages of `blocks` blocks with 16, 32, 64, mean, linear.

    The width factor scales all channels (ResNet-20 of width 32, ledger K-23, is width=2).
    """

    def __init__(
        self, blocks: int, width: float = 1.0, channels: int = 3, classes: int = 10, affine: bool = True
    ) -> None:
        super().__init__()
        first, second, third = (scaled(size, width) for size in (16, 32, 64))
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first, affine=affine)
        self.layer1 = _stage(first, first, blocks, 1, affine)
        self.layer2 = _stage(first, second, blocks, 2, affine)
        self.layer3 = _stage(second, third, blocks, 2, affine)
        self.linear = nn.Linear(third, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.linear(x.mean((2, 3)))
        return x


def _stage(inputs: int, outputs: int, blocks: int, stride: int, affine: bool) -> nn.Sequential:
    rest = [CifarBlock(outputs, outputs, 1, affine) for _ in range(blocks - 1)]
    return nn.Sequential(CifarBlock(inputs, outputs, stride, affine), *rest)


def of_depth(depth: int) -> Callable[..., CifarResNet]:
    """The builder of ResNet-`depth`, depth = 6 n + 2."""

    def build(width: float = 1.0, channels: int = 3, classes: int = 10, affine: bool = True) -> CifarResNet:
        return CifarResNet((depth - 2) // 6, width, channels, classes, affine)

    return build
