"""What a model costs after a removal: multiply-adds and parameters, from the labels alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import nn

from prunus.structure._labels import Array
from prunus.structure.groups import Coupling

Cost = Callable[[Array], float]


def multiply_adds(coupling: Coupling) -> Cost:
    """Multiply-adds of one pass over the example, as a function of which classes stay."""
    terms = [(p.multiply_adds, [coupling.classes[block].ravel() for block in p.blocks]) for p in coupling.walk.products]

    def cost(stays: Array) -> float:
        return float(sum(total * math.prod(float(stays[block].mean()) for block in blocks) for total, blocks in terms))

    return cost


def parameters(coupling: Coupling, model: nn.Module) -> Cost:
    """Number of parameters, those of shared tensors once."""
    terms = []
    for name, parameter in model.named_parameters():
        labels = coupling.walk.tensors.get(name)
        blocks = [coupling.classes[block.atoms] for block in labels.blocks] if labels is not None else []
        terms.append((parameter.numel(), blocks))

    def cost(stays: Array) -> float:
        return float(sum(total * math.prod(float(stays[block].mean()) for block in blocks) for total, blocks in terms))

    return cost


def everything(coupling: Coupling) -> Array:
    """The choice that removes nothing."""
    return np.ones(coupling.number, dtype=bool)
