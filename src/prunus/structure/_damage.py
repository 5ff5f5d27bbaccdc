"""What each group's removal does to the outputs: measured once for each group, spread over its widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.structure import _surgery
from prunus.structure._features import Solvable, solvable
from prunus.structure._labels import Array
from prunus.structure._recover import answers, distance, first_rows
from prunus.structure.elimination import RIDGE, Elimination, eliminate, second_moments
from prunus.structure.groups import Coupling, Group
from prunus.structure.scores import Seen, magnitude

TRIAL_ROWS = 128  # of the data, for the one measurement of each group


@dataclass(frozen=True, eq=False)
class Study:
    """Eliminations of all groups, with the second moments they came from."""

    layers: list[Solvable]
    moments: dict[str, Tensor]
    eliminations: list[Elimination]


def study(model: nn.Module, coupling: Coupling, batches: Sequence[Batch], seed: int) -> Study:
    """Backward elimination for every group; one whose readers cannot be solved for goes by magnitude."""
    layers = solvable(model, coupling)
    moments = second_moments(model, layers, batches, seed)
    plain = magnitude(Seen(model, coupling, [], None, seed))
    found = []
    for at, group in enumerate(coupling.groups):
        readers = [
            (layer, layer.matrix, moments[layer.name]) for layer in _readers(group, layers) if layer.name in moments
        ]
        found.append(eliminate(group, readers) if readers else _by_score(plain[at]))
    return Study(layers, moments, found)


def _readers(group: Group, layers: Sequence[Solvable]) -> list[Solvable]:
    names = set(group.readers)
    return [layer for layer in layers if f"{layer.name}.weight" in names]


def _by_score(scores: Array) -> Elimination:
    order = np.argsort(scores, kind="stable")
    lost = np.cumsum(scores[order]) / max(float(scores.sum()), 1e-300)
    return Elimination(order, np.concatenate([[1.0], lost[:-1][::-1], [0.0]]), scores)


def damages(model: nn.Module, coupling: Coupling, known: Study, batches: Sequence[Batch]) -> list[Array]:
    """For each group the change of the model's outputs with k units left, k = 0, 1, ...

    Measured with half of the units gone (their readers solved again, everything else as it was), as a share of the
    outputs' variation; the other widths follow the group's own curve of errors.
    """
    batches = [first_rows(batches[0], TRIAL_ROWS)]
    wanted = answers(model, batches)
    found = []
    for at, group in enumerate(coupling.groups):
        elimination = known.eliminations[at]
        left = max(1, len(group) // 2)
        keep = np.ones(len(group), dtype=bool)
        keep[elimination.order[: len(group) - left]] = False
        change = _trial(model, coupling, known, at, keep, wanted, batches)
        local = float(elimination.errors[left])
        scale = change / local if local > 1e-12 else 1.0
        found.append(np.asarray(elimination.errors) * min(scale, 1e6))
    return found


def _trial(
    model: nn.Module,
    coupling: Coupling,
    known: Study,
    at: int,
    keep: Array,
    wanted: Sequence[Tensor],
    batches: Sequence[Batch],
) -> float:
    """The distance of the outputs with one group masked and its readers solved; the model is put back."""
    group = coupling.groups[at]
    masks = _surgery.masks_of(model, coupling, coupling.kept({at: keep}))
    parameters = masks.parameters_of(model)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        solved = {
            layer: _without(layer, known.moments[layer.name], _columns(group, layer, keep))
            for layer in _readers(group, known.layers)
            if layer.name in known.moments
        }
        masks.apply_(model)
        for layer, matrix in solved.items():
            rows = layer.matrix.abs().sum(1, keepdim=True) > 0
            layer.assign(matrix * rows)
        return distance(model, wanted, batches)
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


def _columns(group: Group, layer: Solvable, keep: Array) -> Tensor:
    """Which columns of a reader's matrix stay."""
    part = next(p for p in group.parts if p.tensor == f"{layer.name}.weight" and p.tensor in group.readers)
    mask = torch.ones(layer.matrix.shape[1] // layer.taps, dtype=torch.bool)
    mask[torch.from_numpy(part.index[~keep].reshape(-1))] = False
    return mask.repeat_interleave(layer.taps)


def _without(layer: Solvable, second: Tensor, kept: Tensor) -> Tensor:
    """The matrix with least error when only the kept columns may be used."""
    matrix = layer.matrix
    ridge = RIDGE * float(second.diagonal().mean()) + 1e-12
    inner = second[kept][:, kept] + ridge * torch.eye(int(kept.sum()), dtype=second.dtype)
    right = second[kept] @ matrix.T + ridge * matrix[:, kept].T
    new = torch.zeros_like(matrix)
    new[:, kept] = torch.linalg.solve(inner, right).T
    return new
