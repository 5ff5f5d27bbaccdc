"""Plain stacks of convolutions: Conv6 and the VGGs for 32x32 images, the tanh network of private training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.models.fc import scaled

_POOL = 0
_CONV6 = (64, 64, _POOL, 128, 128, _POOL, 256, 256, _POOL)
_VGG = {
    11: (64, _POOL, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512),
    16: (64, 64, _POOL, 128, 128, _POOL, 256, 256, 256, _POOL, 512, 512, 512, _POOL, 512, 512, 512),
}


class Conv6(nn.Module):
    """Six 3x3 convolutions 64, 64, pool, 128, 128, pool, 256, 256, pool, then linear 256, 256, classes (ledger I-5).

    No batch norm; the width factor scales every layer but the last. `size` is the side of the square input.
    """

    def __init__(
        self, width: float = 1.0, channels: int = 3, classes: int = 10, size: int = 32, bias: bool = True
    ) -> None:
        super().__init__()
        if size < 8:
            raise BadInput(f"Conv6 pools three times and cannot take images of side {size}: give size=8 or more.")
        layers: list[nn.Module] = []
        for entry in _CONV6:
            if entry == _POOL:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, scaled(entry, width), 3, padding=1, bias=bias), nn.ReLU()]
            channels = scaled(entry, width)
        self.features = nn.Sequential(*layers)
        hidden = scaled(256, width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (size // 8) ** 2, hidden, bias=bias),
            nn.ReLU(),
            nn.Linear(hidden, hidden, bias=bias),
            nn.ReLU(),
            nn.Linear(hidden, classes, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.features(x).flatten(1))
        return x


class TanhCNN(nn.Module):
    """Two convolutions and two linear layers with tanh: the usual network of private training on MNIST.

    8x8 stride 2 to 16 channels, 4x4 stride 2 to 32, each followed by a max-pool of 2 with stride 1; linear 32; linear
    classes. 26,010 parameters at width 1 (Papernot et al. 2021; Tramer and Boneh 2021).
    """

    def __init__(self, width: float = 1.0, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        first, second, hidden = scaled(16, width), scaled(32, width), scaled(32, width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 8, stride=2, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(first, second, 4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
        )
        self.classifier = nn.Sequential(nn.Linear(second * 16, hidden), nn.Tanh(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.features(x).flatten(1))
        return x


class VGG(nn.Module):
    """3x3 convolutions with batch norm and ReLU, four max-pools, the mean over what is left, one linear layer.

    `plan` lists the channels of the convolutions, 0 standing for a max-pool. The width factor scales every convolution
    (VGG-11 of width 128, ledger K-23, is width=2). Convolutions have no bias where a norm follows; `norm=False` leaves
    the norms out and gives them one.
    """

    def __init__(
        self, plan: Sequence[int], width: float, channels: int, classes: int, affine: bool = True, norm: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for entry in plan:
            if entry == _POOL:
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(channels, scaled(entry, width), 3, padding=1, bias=not norm))
            channels = scaled(entry, width)
            layers += [nn.BatchNorm2d(channels, affine=affine), nn.ReLU()] if norm else [nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(self.features(x).mean((2, 3)))
        return x


def vgg11(width: float = 1.0, channels: int = 3, classes: int = 10, affine: bool = True, norm: bool = True) -> VGG:
    """VGG-11 for 32x32 images: eight convolutions."""
    return VGG(_VGG[11], width, channels, classes, affine, norm)


def vgg16(width: float = 1.0, channels: int = 3, classes: int = 10, affine: bool = True, norm: bool = True) -> VGG:
    """VGG-16 for 32x32 images: thirteen convolutions."""
    return VGG(_VGG[16], width, channels, classes, affine, norm)
