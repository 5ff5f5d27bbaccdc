"""What a set of masks does to each layer: weights, energy, multiply-adds, and the signal that is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prunus import adapters
from prunus.contract import LayerRow, Masks
from prunus.layers import Weight, all_weights


@dataclass(frozen=True)
class LayerSummary(LayerRow):
    """One pruned layer. Energy is the sum of squared weights; multiply-adds are those of one sample.

    `signal_to_noise` is the predicted ratio of output signal to pruning error in decibels, -10 log10 of the removed
    share of the energy: exact on average for white inputs (ledger B-7).

    Example:
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> row = prunus.pruning.summarise(model, prunus.find_masks(model, 0.5))[0]
        >>> row.kept, row.energy_removed < 0.5
        (1024, True)
    """

    energy_removed: float
    multiply_adds: int | None
    multiply_adds_kept: int | None

    @property
    def signal_to_noise(self) -> float:
        """Predicted signal-to-noise ratio of the output, in decibels."""
        return -10 * math.log10(self.energy_removed) if self.energy_removed > 0 else math.inf


def summarise(model: nn.Module, masks: Masks, example: Any = None) -> list[LayerSummary]:
    """A row for each mask; `model` holds the weights before pruning. With an `example` input the multiply-adds too.

    Args:
        model: The model with its weights before pruning.
        masks: What is kept.
        example: One input, or a batch of one.

    Returns:
        The rows, in the order of the masks.

    Example:
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> rows = prunus.pruning.summarise(model, prunus.find_masks(model, 0.5), torch.zeros(1, 64))
        >>> rows[0].multiply_adds, rows[0].multiply_adds_kept
        (2048, 1024)
    """
    masks.parameters_of(model)
    weights = all_weights(model)
    uses = _uses(model, weights, example) if example is not None else {}
    rows = []
    for name, mask in masks.items():
        square = weights[name].parameter.detach().double().square()
        total, kept = mask.numel(), int(mask.count_nonzero())
        energy = float(square.sum())
        removed = float(square.masked_fill(mask.to(square.device), 0.0).sum()) / energy if energy else 0.0
        per_weight = uses.get(name)
        before, after = (None, None) if per_weight is None else (total * per_weight, kept * per_weight)
        rows.append(LayerSummary(name, tuple(mask.shape), total, kept, removed, before, after))
    return rows


def _uses(model: nn.Module, weights: dict[str, Weight], example: Any) -> dict[str, int]:
    """How often one sample uses each weight of a layer: once in a linear layer, once a pixel in a convolution."""
    positions: dict[int, int] = {}

    def record(module: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            positions[id(module)] = positions.get(id(module), 0) + _positions(module, inputs, output)

        return hook

    modules = {id(weight.module): weight.module for weight in weights.values()}
    handles = [module.register_forward_hook(record(module)) for module in modules.values()]
    mode = model.training
    try:
        with torch.no_grad():
            batch = adapters.as_batch(example)
            adapters.call(model.eval(), batch.every(0, max(1, batch.size)))
    finally:
        model.train(mode)
        for handle in handles:
            handle.remove()
    return {name: positions[id(weight.module)] for name, weight in weights.items() if id(weight.module) in positions}


def _positions(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> int:
    result = adapters.main_output(output)
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return int(inputs[0].shape[2:].numel())
    if hasattr(module, "kernel_size"):
        return result.shape[2:].numel()
    return result.shape[:-1].numel()
