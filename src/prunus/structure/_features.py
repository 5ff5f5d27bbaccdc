"""What a layer reads and gives: rows of inputs and outputs at a sample of places, for least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import unpadded
from prunus.layers import is_conv1d
from prunus.structure.groups import Coupling

ROWS = 8192  # of one layer's sample: enough for some thousand unknowns, small enough to keep


@dataclass(frozen=True, eq=False)
class Solvable:
    """A layer whose weight can be solved for: `weight` as a matrix has one column for each (input, tap)."""

    name: str
    module: nn.Module

    @property
    def weight(self) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def taps(self) -> int:
        """How many columns of the matrix belong to one input."""
        return self.weight[0, 0].numel() if isinstance(self.module, nn.modules.conv._ConvNd) else 1

    @property
    def matrix(self) -> Tensor:
        """(outputs, inputs * taps), in double precision."""
        weight = self.weight.detach().double()
        return weight.t() if is_conv1d(self.module) else weight.flatten(1)

    def assign(self, matrix: Tensor) -> None:
        """Write a matrix back into the weight."""
        weight = self.weight
        shaped = matrix.t() if is_conv1d(self.module) else matrix.reshape(weight.shape)
        with torch.no_grad():
            weight.copy_(shaped.to(weight.dtype))

    def rows(self, x: Tensor, seed: int, keep: tuple[Tensor, ...] = ()) -> Tensor:
        """Inputs at a sample of places: (rows, inputs * taps); masks in `keep` are False where a text is padded."""
        if isinstance(self.module, nn.modules.conv._ConvNd):
            return self._patches(x, seed)
        flat = unpadded(x, keep).reshape(-1, x.shape[-1])
        return flat[_sample(len(flat), ROWS, seed)]

    def results(self, y: Tensor, seed: int, keep: tuple[Tensor, ...] = ()) -> Tensor:
        """Outputs at the same places: (rows, outputs)."""
        if isinstance(self.module, nn.modules.conv._ConvNd):
            sides = y.shape[2:]
            places = _sample(sides.numel(), max(1, ROWS // len(y)), seed)
            return y.flatten(2)[:, :, places].transpose(1, 2).reshape(-1, y.shape[1])
        flat = unpadded(y, keep).reshape(-1, y.shape[-1])
        return flat[_sample(len(flat), ROWS, seed)]

    def _patches(self, x: Tensor, seed: int) -> Tensor:
        module = self.module
        assert isinstance(module, nn.modules.conv._ConvNd)
        padding = module.padding if isinstance(module.padding, tuple) else ()
        if isinstance(module.padding, str):
            amounts = list(module._reversed_padding_repeated_twice)
        else:
            amounts = [int(p) for side in reversed(padding) for p in (side, side)]
        wide = nn.functional.pad(x, amounts) if any(amounts) else x
        for at, (size, stride, dilation) in enumerate(zip(module.kernel_size, module.stride, module.dilation)):
            span = dilation * (size - 1) + 1
            wide = wide.unfold(at + 2, span, stride)[..., ::dilation]
        sides = wide.shape[2 : 2 + len(module.kernel_size)]
        places = _sample(sides.numel(), max(1, ROWS // len(x)), seed)
        where: Any = (slice(None), slice(None), *torch.unravel_index(places, sides))
        picked = wide[where]  # (batch, inputs, places, *kernel)
        return picked.transpose(1, 2).reshape(len(x) * len(places), -1)


def _sample(count: int, wanted: int, seed: int) -> Tensor:
    """Sorted places without repetition, the same for the same seed."""
    if count <= wanted:
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:wanted].sort().values


def solvable(model: nn.Module, coupling: Coupling) -> list[Solvable]:
    """Layers that can be solved for, in the order in which they run; a layer that runs twice is left alone."""
    names: dict[str, int] = {}
    for product in coupling.walk.products:
        if product.weight is not None:
            names[product.weight] = names.get(product.weight, 0) + 1
    found = []
    for weight, times in names.items():
        module = model.get_submodule(weight.rpartition(".")[0])
        plain = isinstance(module, nn.Linear) or is_conv1d(module)
        if isinstance(module, nn.modules.conv._ConvNd):
            plain = not module.transposed and module.groups == 1 and module.padding_mode == "zeros"
            pointwise = max(module.kernel_size) == max(module.stride) == 1
            own = type(module).forward not in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
            plain = plain and (pointwise or not own)  # an own forward may pad in its own way
        if times == 1 and plain and weight.endswith(".weight"):
            found.append(Solvable(weight.rpartition(".")[0], module))
    return found


def at(model: nn.Module, layers: Sequence[Solvable]) -> list[Solvable]:
    """The same layers of another model."""
    return [Solvable(layer.name, model.get_submodule(layer.name)) for layer in layers]
