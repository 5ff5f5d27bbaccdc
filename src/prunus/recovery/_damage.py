"""Allocation by damage: more zeros where a layer's outputs change least.

Every layer's relative output error is measured at several sparsities, on the dense network's own inputs and after the
least-squares fit. The sparsities then minimise the sum of these errors for the zeros asked for: layers that can give
more or less all have the same slope, error per weight (a Lagrange multiplier, found by bisection).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.contract import Pattern
from prunus.layers import Weight
from prunus.pruning import patterns
from prunus.recovery._layer import centred, problem_for, shrunk
from prunus.recovery._moments import Moments, bias_of, measure, trace
from prunus.recovery._solve import damped, errors, optimum
from prunus.recovery._units import UnitWalk, divide, looks_back

REACH = 0.25
"""How far a layer may be from the sparsity of the whole: errors add up only as long as they are small."""


@dataclass(frozen=True, eq=False)
class Damage:
    """Every weight's relative output error at growing sparsities, and what follows for a sparsity of the whole.

    Attributes:
        choices: the sparsities measured, with the pattern each was measured in.
        curves: the error at each of them, by the name of the weight.
        sizes: how many weights each has.
        stepped: only the sparsities measured can be chosen (N:M), none between them.

    Example:
        >>> model = prunus.models.make("fc:16-32-4", seed=0)
        >>> found = prunus.recovery.measure_damage(model, torch.randn(64, 16), "unstructured")
        >>> levels, _ = found.levels(0.5)
        >>> sum(found.sizes[name] * level for name, level in levels.items()) >= 0.5 * sum(found.sizes.values()) - 1
        True
    """

    choices: Mapping[float, Pattern]
    curves: Mapping[str, Sequence[float]]
    sizes: Mapping[str, int]
    stepped: bool

    def levels(self, sparsity: float) -> tuple[dict[str, float], dict[str, Pattern]]:
        """The sparsity of every weight with the least error in sum, and its pattern."""
        known = list(self.choices)
        points = known if self.stepped else list(np.linspace(min(known), max(known), 121))
        fine = {name: np.interp(points, known, _convex(known, curve)) for name, curve in self.curves.items()}
        picked = _share(fine, self.sizes, points, sparsity)
        levels = {name: float(points[place]) for name, place in picked.items()}
        if self.stepped:
            return levels, {name: self.choices[level] for name, level in levels.items()}
        return levels, dict.fromkeys(levels, next(iter(self.choices.values())))


def around(pattern: Pattern, sparsity: float) -> dict[float, Pattern]:
    """The choices for a layer when the whole shall have `sparsity`: with N:M the layers keep different N of every M."""
    if isinstance(pattern, patterns.NM):
        return steps(pattern)
    low, high = max(0.0, sparsity - REACH), min(0.98, sparsity + min(REACH, (1 - sparsity) * 0.8))
    return {float(s): pattern for s in np.linspace(low, high, 7)}


def steps(pattern: patterns.NM) -> dict[float, Pattern]:
    """All sparsities with groups of M: from dense to one weight kept of every M."""
    return {1 - n / pattern.m: patterns.NM(n, pattern.m) for n in range(pattern.m, 0, -1)}


def damage(
    model: nn.Module, weights: Mapping[str, Weight], choices: Mapping[float, Pattern], batches: Sequence[Batch],
    keeps: Sequence[Tensor | None], damping: float,
) -> Damage:  # fmt: skip
    """Measure every weight's curve on the dense network's own inputs."""
    curves = _curves(model, weights, choices, batches, keeps, damping)
    sizes = {name: weight.numel for name, weight in weights.items()}
    return Damage(choices, curves, sizes, isinstance(next(iter(choices.values())), patterns.NM))


def _curves(
    model: nn.Module, weights: Mapping[str, Weight], choices: Mapping[float, Pattern], batches: Sequence[Batch],
    keeps: Sequence[Tensor | None], damping: float,
) -> dict[str, list[float]]:  # fmt: skip
    """Every layer's relative error at each of the choices."""
    units = divide(model, weights, batches[0])
    stages = trace(model, weights, batches[0], keeps[0])
    walk = UnitWalk(model, units, batches)
    walk.keep_all = looks_back(model, units, batches[0])
    found: dict[str, list[float]] = {}
    for unit in units:
        inside = {id(module) for module in model.get_submodule(unit).modules()}
        for stage in (stage for stage in stages if id(weights[stage.names[0]].module) in inside):
            moments = measure(walk, walk, stage, weights, weights, keeps)
            for name in stage.names:
                shift = bias_of(weights[name]) is not None or name in stage.norms
                found[name] = [
                    _error(weights[name], moments, shift, shape, level, damping) for level, shape in choices.items()
                ]
        walk.advance()
    return {name: found[name] for name in weights}


def _error(weight: Weight, moments: Moments, shift: bool, pattern: Pattern, sparsity: float, damping: float) -> float:
    if sparsity == 0:
        return 0.0
    own = damped(shrunk(*centred(moments, shift), moments.count)[0], damping)
    matrix = weight.rows(weight.parameter.detach().double()).reshape(own.shape[0], -1, own.shape[-1])
    task = problem_for(weight, matrix, own, pattern, sparsity)
    mask = task.choose(matrix.square() * own.diagonal(dim1=-2, dim2=-1).unsqueeze(-2))
    size = float(errors(task, torch.zeros_like(matrix)).sum()) or 1.0
    return float(errors(task, optimum(task, mask, rounds=12)).sum()) / size


def _convex(points: Sequence[float], values: Sequence[float]) -> list[float]:
    """The largest convex function below the values: then equal slopes are the optimum."""
    hull: list[tuple[float, float]] = []
    for x, y in zip(points, values):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-1][0]) >= (y - hull[-1][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return [float(value) for value in np.interp(points, [x for x, _ in hull], [y for _, y in hull])]


def _share(
    curves: Mapping[str, np.ndarray], sizes: Mapping[str, int], points: Sequence[float], sparsity: float
) -> dict[str, int]:
    """For each layer the place of its sparsity: the least error in sum with at least the zeros asked for."""
    total = sum(sizes.values())
    grid = np.asarray(points)

    def pick(price: float) -> dict[str, int]:
        return {name: int(np.argmin(curve - price * sizes[name] / total * grid)) for name, curve in curves.items()}

    zeros: Callable[[Mapping[str, int]], float] = lambda places: sum(  # noqa: E731
        sizes[name] * grid[place] for name, place in places.items()
    )
    low, high = 0.0, 1.0
    while zeros(pick(high)) < sparsity * total and high < 1e9:
        high *= 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if zeros(pick(middle)) >= sparsity * total else (middle, high)
    return _trim(pick(high), curves, sizes, grid, sparsity * total)


def _trim(
    places: dict[str, int], curves: Mapping[str, np.ndarray], sizes: Mapping[str, int], grid: np.ndarray, goal: float
) -> dict[str, int]:
    """Give back zeros beyond the goal, a step at a time where that helps most."""
    while True:
        spare = sum(sizes[name] * grid[place] for name, place in places.items()) - goal
        fits = [
            name
            for name, place in places.items()
            if place and sizes[name] * (grid[place] - grid[place - 1]) <= spare + 1e-6
        ]
        if not fits:
            return places
        gain = {name: (curves[name][places[name]] - curves[name][places[name] - 1]) / sizes[name] for name in fits}
        best = max(gain, key=lambda name: gain[name])
        if gain[best] <= 0:
            return places
        places[best] -= 1
