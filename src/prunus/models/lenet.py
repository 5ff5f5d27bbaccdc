"""LeNet-5 as in the trained MNIST weights: keys convnet.c1, convnet.c3, convnet.c5, fc.f6, fc.f7."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from prunus.models.fc import scaled


class LeNet5(nn.Module):
    """5x5 convolutions of 6, 16 and 120 channels with ReLU, max-pool 2 after the first two; linear 84; linear classes.

    The network works on 32x32. With `resize` every input (N, channels, H, W) is first brought to that size, bilinearly
    (`interpolate`, which leaves a 32x32 image exactly as it is), so MNIST's 28x28 images can be given as they are: this
    is the form in which the trained weights reach 99.04 %. Without it the caller gives 32x32.
    """

    def __init__(self, width: float = 1.0, channels: int = 1, classes: int = 10, resize: bool = True) -> None:
        super().__init__()
        first, second, third, hidden = (scaled(size, width) for size in (6, 16, 120, 84))
        self.resize = resize
        self.convnet = nn.Sequential(
            OrderedDict(
                c1=nn.Conv2d(channels, first, 5),
                relu1=nn.ReLU(),
                s2=nn.MaxPool2d(2),
                c3=nn.Conv2d(first, second, 5),
                relu3=nn.ReLU(),
                s4=nn.MaxPool2d(2),
                c5=nn.Conv2d(second, third, 5),
                relu5=nn.ReLU(),
            )
        )
        self.fc = nn.Sequential(
            OrderedDict(f6=nn.Linear(third, hidden), relu6=nn.ReLU(), f7=nn.Linear(hidden, classes))
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.resize:
            x = functional.interpolate(x, size=(32, 32), mode="bilinear", align_corners=False)
        x = self.fc(self.convnet(x).flatten(1))
        return x
