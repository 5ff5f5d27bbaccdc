"""A network as it was: after a failed training, and after a look at what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode (training or evaluation) it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def unchanged_after(failure: type[BaseException], model: nn.Module, copied: nn.Module | None = None) -> Iterator[None]:
    """If `failure` is raised inside, the model's weights, buffers and gradients are put back; its modes always are.

    `copied` is a deep copy of the model that nobody changes; without it one is made of all tensors.
    """
    held = list(_tensors(model))
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]  # training replaces, never changes them
    if copied is not None:
        kept = [tensor for _, _, tensor in _tensors(copied)]
    else:
        clones = {id(tensor): tensor.detach().clone() for _, _, tensor in held}
        kept = [clones[id(tensor)] for _, _, tensor in held]
    with modes_kept(model):
        try:
            yield
        except failure:
            with torch.no_grad():
                for (place, name, tensor), old in zip(held, kept, strict=True):
                    place[name] = tensor
                    if not torch.equal(tensor, old):
                        tensor.copy_(old)
                for parameter, grad in grads:
                    parameter.grad = grad
            raise


def _tensors(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """(where it is held, its name there, the tensor) for each parameter and buffer."""
    for module in model.modules():
        for place in (module._parameters, module._buffers):
            for name, tensor in place.items():
                if tensor is not None:
                    yield place, name, tensor
