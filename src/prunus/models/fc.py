"""Fully connected networks of any widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from prunus.errors import BadInput


def scaled(channels: int, width: float) -> int:
    """`channels` times the width factor (ledger I-1, rho), rounded, at least 1."""
    return max(1, round(channels * width))


class FullyConnected(nn.Module):
    """Linear layers `layers.0`, `layers.1`, ... with ReLU between them; nothing after the last.

    `sizes` are (inputs, hidden ..., outputs). Inputs of any shape (N, ...) are flattened to (N, sizes[0]), so images
    can be given as they are.
    """

    def __init__(self, sizes: Sequence[int], bias: bool = True) -> None:
        super().__init__()
        pairs = pairwise(sizes)
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in pairs)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        x = self.layers[-1](x)
        return x


def parse_sizes(text: str) -> list[int]:
    """The layer sizes of "64-300-100-10"."""
    parts = text.split("-")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise BadInput(
            f"{text!r} does not give the sizes of a fully connected network: write at least inputs and outputs, "
            "positive and joined by hyphens, as in fc:64-300-100-10."
        )
    return [int(part) for part in parts]


def fully_connected(sizes: str, width: float = 1.0, bias: bool = True) -> FullyConnected:
    """The network of "inputs-hidden-...-outputs"; the width factor scales the hidden layers."""
    first, *hidden, last = parse_sizes(sizes)
    return FullyConnected([first, *(scaled(size, width) for size in hidden), last], bias)
