"""Allocation by damage: more zeros where they change the network's output least.

Every layer's output error is measured at several sparsities, on the dense network's own inputs and after the
least-squares fit. At two of them, the middle and the highest, the layer alone is pruned and the network runs to its
end: what its output loses says how much this layer's error counts, and how much more a large one does (a power law
through both). The sparsities then minimise the sum of these losses for the zeros asked for: layers that can give more
or less all have the same slope, loss per weight (a Lagrange multiplier, found by bisection).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.contract import Pattern
from prunus.layers import Weight
from prunus.pruning import patterns
from prunus.recovery._layer import centred, keep_mean, loudness, problem_for, shrunk
from prunus.recovery._moments import Moments, bias_of, measure, trace
from prunus.recovery._shelf import leaves
from prunus.recovery._solve import Factors, damped, errors, optimum
from prunus.recovery._units import UnitWalk, divide, looks_back

ENDS = 2
"""The network runs to its end on so many batches."""
NOISE = 0.01
"""An error counts from this part of the largest on."""
REACH = 0.25
"""How far a layer may go beyond the sparsity of the whole, and half as far as it may stay below it: losses add up only
as long as they are small."""


@dataclass(frozen=True, eq=False)
class Damage:
    """What the network's output loses with each weight at growing sparsities, and what follows for the whole.

    Attributes:
        choices: the sparsities measured, with the pattern each was measured in.
        curves: the loss at each of them, relative to the variance of the network's output, by the name of the weight.
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
        """The sparsity of every weight with the least loss in sum, and its pattern.

        Args:
            sparsity: share of zeros over all weights together.

        Returns:
            The sparsities by name, and the patterns by name.
        """
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
    low, high = max(0.0, sparsity - 2 * REACH), min(0.98, sparsity + min(REACH, (1 - sparsity) * 0.8))
    return {float(s): pattern for s in np.linspace(low, high, 9)}


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
    """What the network's output loses, relative to its variance, with each layer at each of the choices."""
    units = divide(model, weights, batches[0])
    stages = trace(model, weights, batches[0], keeps[0], units)
    walk = UnitWalk(model, units, batches)
    walk.keep_all = looks_back(model, units, batches[0])
    ends = [_floating(walk.to_end(index)).detach().clone() for index in range(min(len(batches), ENDS))]
    found: dict[str, list[float]] = {}
    for unit in units:
        inside = {id(module) for module in model.get_submodule(unit).modules()}
        for stage in (stage for stage in stages if id(weights[stage.names[0]].module) in inside):
            moments = measure(walk, walk, stage, weights, weights, keeps)
            for name in stage.names:
                norm = model.get_submodule(stage.norms[name]) if name in stage.norms else None
                trials = _trials(weights[name], moments, norm, choices, damping)
                # Of a network that has zeros already the first errors are rounding, and tell nothing.
                least = NOISE * trials[-1][0]
                place = max(len(trials) // 2, next((at for at, trial in enumerate(trials) if trial[0] > least), 0))
                known = [
                    (error, _lost(walk, weights[name], values, moments, norm, ends, keeps))
                    for error, values in (trials[place], trials[-1])
                ]
                found[name] = _through([error for error, _ in trials], *known)
        walk.advance()
    return {name: found[name] for name in weights}


def _through(found: Sequence[float], low: tuple[float, float], high: tuple[float, float]) -> list[float]:
    """Losses at the errors `found`, by the power law through two pairs (error, loss); 0 where there is no error.

    A layer whose error is averaged out as long as it is small may cost much more when it is large.
    """
    (less, mild), (more, grave) = low, high
    if not less or not mild:
        return [error * (grave / more if more else 0.0) for error in found]
    power = math.log(grave / mild) / math.log(more / less) if more > less and grave > 0 else 1.0
    return [mild * (error / less) ** min(4.0, max(0.5, power)) if error > 0 else 0.0 for error in found]


def _trials(
    weight: Weight, moments: Moments, norm: nn.Module | None, choices: Mapping[float, Pattern], damping: float
) -> list[tuple[float, Tensor]]:
    """A layer's relative output error at each of the choices, and the values it would have."""
    shift = bias_of(weight) is not None or norm is not None
    own = damped(shrunk(*centred(moments, shift), moments.count)[0], damping)
    matrix = weight.rows(weight.parameter.detach().double()).reshape(own.shape[0], -1, own.shape[-1])
    scale = loudness(norm, matrix)
    found = []
    for sparsity, pattern in choices.items():
        task = problem_for(weight, matrix * scale, Factors(own), pattern, sparsity)
        size = float(errors(task, torch.zeros_like(matrix)).sum()) or 1.0
        mask = task.choose(task.weight.square() * own.diagonal(dim1=-2, dim2=-1).unsqueeze(-2))
        values = optimum(task, mask, rounds=12).double() if sparsity else task.weight
        found.append((float(errors(task, values).sum()) / size, values / scale))
    return found


def _lost(
    walk: UnitWalk, weight: Weight, values: Tensor, moments: Moments, norm: nn.Module | None, ends: Sequence[Tensor],
    keeps: Sequence[Tensor | None],
) -> float:  # fmt: skip
    """What the network's output loses, relative to its variance, when this layer alone has these values."""
    bias, lines = bias_of(weight), weight.rows(weight.parameter.detach())
    moved = [weight.parameter.detach(), *([] if bias is None else [bias]), *([] if norm is None else norm.buffers())]
    before = [tensor.detach().clone() for tensor in moved]
    own, _ = centred(moments, bias is not None or norm is not None)
    try:
        matrix = lines.double().reshape(values.shape)
        weight.parameter.copy_(weight.unrows(values.reshape(lines.shape)))
        keep_mean(weight, matrix, values, moments, own, bias, norm)
        made = [_floating(walk.to_end(index)) for index in range(len(ends))]
    finally:
        for tensor, old in zip(moved, before):
            tensor.copy_(old)
    return sum(_distance(*each) for each in zip(made, ends, keeps)) / len(ends)


def _floating(output: Any) -> Tensor:
    return next(tensor for tensor in leaves(output) if tensor.is_floating_point())


def _distance(output: Tensor, end: Tensor, keep: Tensor | None) -> float:
    if keep is not None and output.dim() == 3 and output.shape[:2] == keep.shape:
        output, end = output[keep], end[keep]
    return float((output - end).double().square().mean() / end.double().var(correction=0).clamp_min(1e-30))


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
