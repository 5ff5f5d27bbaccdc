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


def of_module(coupling: Coupling, model: nn.Module, name: str, measure: str) -> float:
    """What one module and everything in it costs: multiply-adds, or parameters where the measure says so."""
    if measure == "parameters":
        return float(sum(parameter.numel() for parameter in model.get_submodule(name).parameters()))
    inside = [p for p in coupling.walk.products if p.site.module == name or p.site.module.startswith(f"{name}.")]
    return float(sum(product.multiply_adds for product in inside))


def full(coupling: Coupling) -> list[int]:
    """The numbers of units before anything leaves."""
    return [len(group) for group in coupling.groups]


def _shares(coupling: Coupling, terms: Iterable[tuple[int, Sequence[Array]]]) -> Cost:
    """sum of total * product of the kept shares of the blocks of each term."""
    terms = list(terms)
    totals = np.array([total for total, _ in terms], dtype=float)
    kept = kept_shares(coupling, [blocks for _, blocks in terms])

    def cost(counts: Sequence[int]) -> float:
        return float((totals * kept(counts).prod(0)).sum())

    return cost


def kept_shares(coupling: Coupling, rows: Sequence[Sequence[Array]]) -> Callable[[Sequence[int]], Array]:
    """A function of the numbers of units: the kept share of each block, (level, row), 1 where a row has fewer.

    A share is linear in the numbers: (constant + entries . counts) / size.
    """
    owner = np.full(coupling.number, -1)
    for at, group in enumerate(coupling.groups):
        owner[group.classes] = at
    sizes = np.array([max(len(group), 1) for group in coupling.groups], dtype=float)
    depth = max((len(blocks) for blocks in rows), default=0)
    constant = np.ones((depth, len(rows)))
    slope = np.zeros((depth, len(rows), len(coupling.groups)))
    for row, blocks in enumerate(rows):
        for level, block in enumerate(blocks):
            owners = owner[coupling.classes[block]].ravel()
            counts = np.bincount(owners[owners >= 0], minlength=len(coupling.groups)) / sizes
            constant[level, row] = (owners < 0).mean()
            slope[level, row] = counts / owners.size
    return lambda counts: constant + slope @ np.asarray(counts, dtype=float)
