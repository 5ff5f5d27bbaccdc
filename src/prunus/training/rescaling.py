"""The 1/sqrt(density) rescaling of pruned layers (ledger K-5), and batch-norm statistics after pruning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from prunus import adapters
from prunus.contract import Masks
from prunus.errors import BadInput
from prunus.layers import prunable_weights

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@contextmanager
def rescaled(model: nn.Module, masks: Masks) -> Iterator[nn.Module]:
    """Inside, each masked layer computes W x / sqrt(density) + b; on leaving the factor is folded into its weights.

    Rescaling the weights themselves and training on is not the same (K-5): the gradient would lack the factor, and the
    tangent kernel would not be that of the dense network. Here the factor multiplies the layer's input, so it enters
    the derivative too. The masks are applied on entering; hold them with `fit(..., masks=masks)`.
    """
    weights = prunable_weights(model)
    masks.apply_(model)
    factors: list[tuple[nn.Parameter, float]] = []
    handles = []
    for row in masks.layers:
        weight = weights.get(row.name)
        if weight is None or not isinstance(weight.module, _LINEAR):
            raise BadInput(f"{row.name} is no weight of a linear or convolution layer: rescaled knows only these.")
        if row.kept == 0:
            raise BadInput(f"The masks leave no weight in {row.name}: its density is 0 and cannot be rescaled.")
        factor = 1.0 / math.sqrt(row.kept / row.total)
        factors.append((model.get_parameter(row.name), factor))
        handles.append(weight.module.register_forward_pre_hook(_scale_input(factor)))
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for parameter, factor in factors:
                parameter.mul_(factor)


def _scale_input(factor: float) -> Callable[[nn.Module, Any], Any]:
    def hook(module: nn.Module, inputs: Any) -> Any:
        return (inputs[0] * factor, *inputs[1:])

    return hook


def recalibrate(model: nn.Module, data: Any, batches: int = 10, batch_size: int = 128) -> nn.Module:
    """Replace batch-norm statistics by those of the model as it now is, over `batches` batches; returns the model.

    Weights, dropout and the mode of the model are left alone. A model without batch norm is returned as it is.
    """
    if batches < 1:
        raise BadInput(f"batches is {batches!r}; at least one is needed to measure statistics.")
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    device = next(model.parameters()).device
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.training = True
        with torch.no_grad():
            for batch in adapters.batches(data, batch_size, limit=batches):
                if batch.size > 1:
                    adapters.call(model, batch.to(device))
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return model
