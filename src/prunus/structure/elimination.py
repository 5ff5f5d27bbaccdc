"""Which units can be spared most easily: backward elimination with exact least squares.

For the layers that read a group, the inputs X (rows, columns) and the weight W give the outputs X W'. If unit u leaves
and the columns that stay are solved for again, the outputs change by

    trace(W_u ([H^-1]_uu)^-1 W_u'),     H = X'X / rows + ridge,

the block form of optimal brain surgery (Hassibi and Stork 1993; for whole units in ZipLM, Kurtic et al. 2023). Units
leave one after another, or a few at a time in large groups, each time with H^-1 and W brought up to date. The order is
the score, the running sum of changes the group's damage at every width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch, call
from prunus.structure._features import Solvable
from prunus.structure._labels import Array
from prunus.structure.groups import Group

RIDGE = 1e-3
STEPS = 96  # at most that many updates of the inverse for one group


@dataclass(frozen=True, eq=False)
class Elimination:
    """The order in which a group's units leave, and the damage when only k stay.

    `order[0]` leaves first. `errors[k]` is the share of the readers' output energy that is lost with k units left,
    after solving again; `errors[n]` is 0. `weights(k)` gives the readers' matrices for the k last ones.
    """

    order: Array
    errors: Array
    scores: Array


def eliminate(group: Group, readers: Sequence[tuple[Solvable, Tensor, Tensor]]) -> Elimination:
    """Backward elimination of one group.

    Args:
        group: The units.
        readers: (layer, its matrix, H) for each layer that reads the group and can be solved for.
    """
    count = len(group)
    states = [_State(group, *reader) for reader in readers]
    alive = list(range(count))
    order: list[int] = []
    lost = 0.0
    errors = np.zeros(count + 1)
    block = max(1, count // STEPS)
    whole = sum(state.energy for state in states)
    while len(alive) > 1:
        costs = sum(state.costs(alive) / max(whole, 1e-300) for state in states)
        assert isinstance(costs, Tensor)
        number = min(block, len(alive) - 1)
        leaving = [alive[at] for at in torch.argsort(costs, stable=True)[:number].tolist()]
        for state in states:
            state.remove(leaving)
        for unit, cost in zip(leaving, sorted(costs.tolist())):
            lost += max(cost, 0.0)
            alive.remove(unit)
            order.append(unit)
            errors[len(alive)] = lost
    order += alive
    errors[0] = max(1.0, lost)
    scores = np.empty(count)
    scores[order] = np.arange(count)
    return Elimination(np.array(order), errors, scores)


class _State:
    """The inverse and the matrix of one reader while units leave."""

    def __init__(self, group: Group, layer: Solvable, matrix: Tensor, second: Tensor) -> None:
        part = next(p for p in group.parts if p.tensor == f"{layer.name}.weight" and p.tensor in group.readers)
        taps = layer.taps
        index = torch.from_numpy(part.index)
        self.columns = (index[:, :, None] * taps + torch.arange(taps)).flatten(1)  # (units, columns of a unit)
        self.matrix = matrix.clone()
        self.energy = float(torch.einsum("oc,cd,od->", matrix, second, matrix))
        ridge = RIDGE * float(second.diagonal().mean()) + 1e-12
        self.inverse = torch.linalg.inv(second + ridge * torch.eye(len(second), dtype=second.dtype))

    def costs(self, alive: list[int]) -> Tensor:
        columns = self.columns[alive]
        blocks = self.inverse[columns[:, :, None], columns[:, None, :]]
        weights = self.matrix[:, columns].permute(1, 2, 0)  # (units, columns, outputs)
        if columns.shape[1] == 1:
            return cast("Tensor", weights.square().sum((1, 2)) / blocks[:, 0, 0].clamp_min(1e-300))
        return cast("Tensor", (torch.linalg.solve(blocks, weights) * weights).sum((1, 2)))

    def remove(self, units: list[int]) -> None:
        columns = self.columns[units].reshape(-1)
        block = self.inverse[columns][:, columns]
        factor = torch.linalg.solve(block, self.inverse[columns])
        self.matrix -= self.matrix[:, columns] @ factor
        self.inverse -= self.inverse[:, columns] @ factor
        self.matrix[:, columns] = 0.0
        # Columns that left must neither be read nor divided by again.
        self.inverse[columns] = 0.0
        self.inverse[:, columns] = 0.0
        self.inverse[columns, columns] = 1.0


def second_moments(
    model: nn.Module, layers: Sequence[Solvable], batches: Sequence[Batch], seed: int
) -> dict[str, Tensor]:
    """X'X / rows of the inputs of each layer, in double precision; damped where there are few rows."""
    sums: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    now: list[tuple[Tensor, ...]] = [()]  # the places of the batch that is running

    def look(layer: Solvable, number: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = layer.rows(args[0], seed + number, now[0])
            sums[layer.name] = sums.get(layer.name, 0) + (x.T @ x).double()
            rows[layer.name] = rows.get(layer.name, 0) + len(x)

        return hook

    handles = [layer.module.register_forward_pre_hook(look(layer, at)) for at, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            for batch in batches:
                now[0] = batch.real_positions()
                call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name: damped(value / rows[name], rows[name]) for name, value in sums.items()}


def damped(second: Tensor, rows: int) -> Tensor:
    """Second moments from fewer rows than twice the columns, drawn towards their diagonal.

    Few rows can be answered with few columns, whatever they hold; others cannot. The diagonal is what is known well.
    """
    share = damping(rows, len(second))
    return second if share == 0 else (1 - share) * second + share * torch.diag(second.diagonal())


def damping(rows: int, columns: int) -> float:
    """How far to draw second moments towards their diagonal: not at all where there are rows enough."""
    return 0.0 if rows >= 2 * columns else columns / (rows + columns)
