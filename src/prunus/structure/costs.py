"""What a model costs when its groups keep given numbers of units: multiply-adds, parameters, time.

All units of a group have equally many entries in every tensor, so a cost is a function of the numbers alone: the
total of each product (or tensor) times the kept share of each of its dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import nn

from prunus.structure._labels import Array
from prunus.structure.groups import Coupling

Cost = Callable[[Sequence[int]], float]


def multiply_adds(coupling: Coupling) -> Cost:
    """Multiply-adds of one pass over the example."""
    return _shares(coupling, [(p.multiply_adds, p.blocks) for p in coupling.walk.products])


def parameters(coupling: Coupling, model: nn.Module) -> Cost:
    """Number of parameters, those of shared tensors once."""
    terms = []
    for name, parameter in model.named_parameters():
        labels = coupling.walk.tensors.get(name)
        terms.append((parameter.numel(), [block.atoms for block in labels.blocks] if labels is not None else []))
    return _shares(coupling, terms)


def full(coupling: Coupling) -> list[int]:
    """The numbers of units before anything leaves."""
    return [len(group) for group in coupling.groups]


def _shares(coupling: Coupling, terms: Iterable[tuple[int, Sequence[Array]]]) -> Cost:
    """sum of total * product of (constant + entries . counts) / size over the blocks of each term."""
    owner = np.full(coupling.number, -1)
    for at, group in enumerate(coupling.groups):
        owner[group.classes] = at
    sizes = np.array([max(len(group), 1) for group in coupling.groups], dtype=float)
    terms = list(terms)
    depth = max((len(blocks) for _, blocks in terms), default=0)
    totals = np.array([total for total, _ in terms], dtype=float)
    constant = np.ones((depth, len(terms)))
    slope = np.zeros((depth, len(terms), len(coupling.groups)))
    for row, (_, blocks) in enumerate(terms):
        for level, block in enumerate(blocks):
            owners = owner[coupling.classes[block]].ravel()
            counts = np.bincount(owners[owners >= 0], minlength=len(coupling.groups)) / sizes
            constant[level, row] = (owners < 0).mean()
            slope[level, row] = counts / owners.size

    def cost(counts: Sequence[int]) -> float:
        shares = constant + slope @ np.asarray(counts, dtype=float)
        return float((totals * shares.prod(0)).sum())

    return cost
