"""How much each unit of a group matters, from the weights alone or with data: higher scores are kept first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch, batch_loss
from prunus.errors import BadInput
from prunus.structure._labels import Array
from prunus.structure.groups import Coupling, Group, Part


@dataclass(frozen=True, eq=False)
class Seen:
    """What a score may look at: the model, its groups, batches of data, a loss and a seed."""

    model: nn.Module
    coupling: Coupling
    batches: list[Batch]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0


def magnitude(seen: Seen) -> list[Array]:
    """Mean square of all weights of a unit, each tensor's relative to its own mean square."""
    tensors = dict(seen.model.named_parameters(remove_duplicate=False))

    def of(group: Group) -> Array:
        total = np.zeros(len(group))
        for part in group.parts:
            weight = tensors.get(part.tensor)
            if weight is not None and weight.ndim > 1:
                squares = weight.detach().double().square()
                total += per_unit(squares, part) / max(float(squares.mean()), 1e-300)
        return total

    return [of(group) for group in seen.coupling.groups]


def random(seen: Seen) -> list[Array]:
    """Uniform numbers from the seed."""
    source = np.random.default_rng(seen.seed)
    return [source.random(len(group)) for group in seen.coupling.groups]


def taylor(seen: Seen) -> list[Array]:
    """|sum of weight times gradient| over a unit, summed over batches: the first-order change of the loss.

    Molchanov et al. 2019, "Importance estimation for neural network pruning", for whole units.
    """
    if not seen.batches:
        raise BadInput('The score "taylor" needs data: give data=, batches of inputs with labels.')
    model = seen.model
    tensors = dict(model.named_parameters(remove_duplicate=False))
    wanted = {part.tensor for group in seen.coupling.groups for part in group.parts if part.tensor in tensors}
    names = sorted(wanted)
    sums = [np.zeros(len(group)) for group in seen.coupling.groups]
    with torch.enable_grad():
        for batch in seen.batches:
            loss = batch_loss(model, batch, seen.loss)
            gradients = torch.autograd.grad(loss, [tensors[name] for name in names], allow_unused=True)
            change = {
                name: (tensors[name] * gradient).detach().double()
                for name, gradient in zip(names, gradients)
                if gradient is not None
            }
            for total, group in zip(sums, seen.coupling.groups):
                makers = [
                    part for part in group.parts if part.tensor in group.makers or part.tensor not in group.readers
                ]
                parts = [part for part in makers if part.tensor in change]
                total += np.abs(np.sum([per_unit(change[p.tensor], p, mean=False) for p in parts], axis=0))
    return sums


def per_unit(values: Tensor, part: Part, *, mean: bool = True) -> Array:
    """Mean (or sum) of `values` over the places of each unit."""
    others = [dim for dim in range(values.ndim) if dim != part.dim]
    line = (values.mean(others) if mean else values.sum(others)) if others else values
    picked = line.numpy()[part.index]
    return cast("Array", picked.mean(1) if mean else picked.sum(1))


SCORES: dict[str, Callable[[Seen], list[Array]]] = {"magnitude": magnitude, "random": random, "taylor": taylor}
