"""Per-example gradients of the tanh network, written out: less than half the time of hooks on the layers.

Channels come last inside, so that windows are copied in long runs and pooling is fast; every product is one matrix
product, and the gradient of a batch, which private training never uses, is not computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.models.convolutional import TanhCNN


def per_example_gradients(model: TanhCNN, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """Gradients of each example's cross-entropy, in the order of the model's parameters, shapes (n, *parameter)."""
    layers: Any = (*model.features, *model.classifier)
    first, second, hidden, last = _Block(layers[0]), _Block(layers[3]), layers[6], layers[8]
    with torch.no_grad():
        flat = second.forward(first.forward(inputs)).reshape(len(inputs), -1)
        active = torch.tanh(functional.linear(flat, hidden.weight, hidden.bias))
        error = torch.softmax(functional.linear(active, last.weight, last.bias), 1)
        error[torch.arange(len(labels)), labels] -= 1.0
        before = (error @ last.weight) * (1.0 - active.square())
        second.backward((before @ hidden.weight).view(second.pooled))
        first.backward(second.below())
        linear = before[:, :, None] * flat[:, None], before, error[:, :, None] * active[:, None], error
        return [first.weight, first.bias, second.weight, second.bias, *linear]


class _Block:
    """A convolution, tanh, and a max-pool of 2 with stride 1, for one pass forth and back."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer, self.kernel, self.stride = layer, layer.kernel_size[0], layer.stride[0]
        self.matrix = layer.weight.permute(0, 2, 3, 1).reshape(layer.out_channels, -1)

    def forward(self, images: Tensor) -> Tensor:
        n, padding = len(images), int(self.layer.padding[0])
        padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding))
        windows = padded.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)
        side = windows.shape[1]
        self.columns = windows.permute(0, 1, 2, 4, 5, 3).reshape(n, side * side, -1)
        assert self.layer.bias is not None
        sums = torch.addmm(self.layer.bias, self.columns.view(n * side * side, -1), self.matrix.t())
        self.active = torch.tanh(sums).view(n, side, side, -1).permute(0, 3, 1, 2)
        out, self.places = functional.max_pool2d_with_indices(self.active, [2, 2], [1, 1])
        self.padded, self.pooled = padded.shape, out.shape
        return out

    def backward(self, gradient: Tensor) -> None:
        """Per-example gradients of weight and bias from those of what `forward` gave."""
        spread = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient.contiguous(memory_format=torch.channels_last),
            self.active, [2, 2], [1, 1], [0, 0], [1, 1], False, self.places,
        )  # fmt: skip
        n, channels = spread.shape[:2]
        sums = (spread * (1.0 - self.active.square())).permute(0, 2, 3, 1).reshape(n, -1, channels)
        by_window = torch.bmm(sums.transpose(1, 2), self.columns)
        self.weight = by_window.view(n, channels, self.kernel, self.kernel, -1).permute(0, 1, 4, 2, 3)
        self.bias, self.sums = sums.sum(1), sums

    def below(self) -> Tensor:
        """Gradient of the images; for layers without padding."""
        n, kernel, channels = len(self.sums), self.kernel, self.layer.in_channels
        side = (self.padded[1] - kernel) // self.stride + 1
        windows = (self.sums.view(n * side * side, -1) @ self.matrix).view(n, side, side, kernel, kernel, channels)
        images: Tensor = windows.new_zeros(self.padded)
        reach = self.stride * (side - 1) + 1
        for row in range(kernel):
            for column in range(kernel):
                place = images[:, row : row + reach : self.stride, column : column + reach : self.stride]
                place += windows[:, :, :, row, column]
        return images.permute(0, 3, 1, 2)
