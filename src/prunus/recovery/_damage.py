"""Allocation by damage: more zeros where they change the network's output least.

Every layer's output error is measured at several sparsities, on the dense network's own inputs and after the
least-squares fit. At two of them, the middle and the highest, the layer alone is pruned and the network runs to its
end: what its output loses says how much this layer's error counts, and how much more a large one does (a power law
through both). The sparsities then minimise the sum of these losses for the zeros asked for: layers that can give more
or less all have the same slope, loss per weight (a Lagrange multiplier, found by bisection). With N:M there are only a
few sparsities, and a search over their mixes takes the place of the slope.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus.adapters import Batch, unpadded
from prunus.contract import Pattern
from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.pruning import patterns
from prunus.recovery._layer import centred, keep_mean, loudness, problem_for, shrunk
from prunus.recovery._lookback import looks_back
from prunus.recovery._moments import Moments, bias_of, measure, trace
from prunus.recovery._progress import LayerProgress, progress
from prunus.recovery._record import Keep
from prunus.recovery._shelf import leaves
from prunus.recovery._solve import Factors, damped, errors, optimum
from prunus.recovery._units import UnitWalk, divide

ENDS = 2
"""The network runs to its end on so many batches."""
NOISE = 0.01
"""An error counts from this part of the largest on."""
REACH = 0.25
"""How far a layer may go beyond the sparsity of the whole, and half as far as it may stay below it: losses add up only
as long as they are small."""
PATIENCE = 2.0
"""Work that takes fewer seconds shows no progress."""
STATES = 4000
"""The search over mixes tells so many counts of zeros apart."""
CLOSE = 1e-4
"""Mixes count as equally near to the sparsity asked for within this part of all weights, or within half of the smallest
step."""


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
            sparsity: share of zeros over all weights together. Where only the sparsities measured can be chosen, the
                mix comes as near to it as they allow, and of such mixes it is the one with the least loss.

        Returns:
            The sparsities by name, and the patterns by name.
        """
        known = list(self.choices)
        if self.stepped:
            mixed = _mix(self.curves, self.sizes, known, sparsity)
            return mixed, {name: self.choices[level] for name, level in mixed.items()}
        points = list(np.linspace(min(known), max(known), 121))
        fine = {name: np.interp(points, known, _convex(known, curve)) for name, curve in self.curves.items()}
        picked = _share(fine, self.sizes, points, sparsity)
        levels = {name: float(points[place]) for name, place in picked.items()}
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
    keeps: Sequence[Keep], damping: float, memory: float = 2e9, shown: bool | None = False,
) -> Damage:  # fmt: skip
    """Measure every weight's curve on the dense network's own inputs.

    `memory` and `shown` are `ReconstructOptions.memory` and `.progress`: bytes of activations kept in memory, and
    whether a line shows the time left (None: in a terminal).
    """
    with _late(len(weights), shown) as line:
        curves = _curves(model, weights, choices, batches, keeps, damping, memory, line)
    sizes = {name: weight.numel for name, weight in weights.items()}
    return Damage(choices, curves, sizes, isinstance(next(iter(choices.values())), patterns.NM))


def _curves(
    model: nn.Module, weights: Mapping[str, Weight], choices: Mapping[float, Pattern], batches: Sequence[Batch],
    keeps: Sequence[Keep], damping: float, memory: float, line: LayerProgress,
) -> dict[str, list[float]]:  # fmt: skip
    """What the network's output loses, relative to its variance, with each layer at each of the choices."""
    units = divide(model, weights, batches[0])
    stages = trace(model, weights, batches[0], keeps[0], units)
    walk = UnitWalk(model, units, batches, memory)
    walk.keep_all = looks_back(model, units, batches[0], end=True)
    ends = [_real(walk.to_end(index), keep).detach().clone() for index, keep in enumerate(keeps[:ENDS])]
    if any(bool(end.isnan().any()) or not bool(end.isfinite().any()) for end in ends):
        raise BadInput("The outputs of the model hold NaN or Inf on the first batches: mend the model or the data.")
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
                line.update(f"{name}  damage {found[name][-1]:.3g}")
        walk.advance()
    return {name: found[name] for name in weights}


@contextmanager
def _late(total: int, wanted: bool | None) -> Iterator[LayerProgress]:
    """The line of `reconstruct`, from the moment the work has taken longer than people wait for; over what is left."""
    started, left = time.monotonic(), total
    line: LayerProgress | None = None
    with ExitStack() as stack:

        def update(said: str) -> None:
            nonlocal line, left
            if line is None and time.monotonic() - started > PATIENCE:
                line = stack.enter_context(progress(left, wanted))
            left -= 1
            if line is not None:
                line.update(said)

        yield LayerProgress(update)


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
    keeps: Sequence[Keep],
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
        made = [_real(walk.to_end(index), keeps[index]) for index in range(len(ends))]
    finally:
        for tensor, old in zip(moved, before):
            tensor.copy_(old)
    lost = sum(_distance(*each) for each in zip(made, ends)) / len(ends)
    if not math.isfinite(lost):
        raise BadInput(
            f"With {weight.name!r} alone pruned the outputs of the model hold NaN or Inf: exclude that layer, or take "
            "another allocation."
        )
    return lost


def _real(output: Any, keep: Keep) -> Tensor:
    """The first tensor of numbers in what the model gives, without positions that are padded."""
    found = next((tensor for tensor in leaves(output) if tensor.is_floating_point()), None)
    if found is None:
        raise BadInput(
            "allocation='damage' compares outputs, and those of the model hold no numbers with fractions: "
            "take another allocation."
        )
    return unpadded(found, keep)


def _distance(output: Tensor, end: Tensor) -> float:
    seen = end.isfinite()
    if not bool(seen.all()):  # what a model never answers may be -inf by design
        output, end = output[seen], end[seen]
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


def _mix(
    curves: Mapping[str, Sequence[float]], sizes: Mapping[str, int], levels: Sequence[float], sparsity: float
) -> dict[str, float]:
    """For each layer one of a few levels: in all as near to the sparsity as these allow, then with the least loss.

    Equal levels are always among the candidates, and win where losses are equal.
    """
    grid, total, order = np.asarray(levels), sum(sizes.values()), sorted(sizes, key=lambda name: -sizes[name])
    steps = np.diff(grid) if len(grid) > 1 else np.zeros(1)
    goal = float(np.clip(sparsity, grid[0], grid[-1])) * total
    slack = max(sizes[order[-1]] * steps.min() / 2, CLOSE * total)
    equal = np.repeat(np.arange(len(grid))[:, None], len(order), axis=1)
    found = _candidates([np.asarray(curves[name]) for name in order], [sizes[name] for name in order], grid, goal)
    places = np.concatenate([equal, found])
    zeros = grid[places] @ np.asarray([sizes[name] for name in order], dtype=float)
    losses = sum(np.asarray(curves[name])[places[:, at]] for at, name in enumerate(order))
    off = np.abs(zeros - goal)
    losses = np.where(off <= off.min() + slack, losses, np.inf)
    best = places[np.argmax(losses <= losses.min() * (1 + 1e-9))]  # the first: equal levels stand before the others
    picked = {name: float(grid[place]) for name, place in zip(order, best)}
    return {name: picked[name] for name in sizes}


def _candidates(curves: Sequence[np.ndarray], sizes: Sequence[int], grid: np.ndarray, goal: float) -> np.ndarray:
    """Mixes that end near the goal, a row each: for every count of zeros the one with the least loss (a knapsack).

    Layers come with falling sizes, so that the small ones make up the difference. Counts that lie closer than STATES
    can tell apart are taken for one; where there are few, the search is exact.
    """
    reach = sizes[0] * float(np.diff(grid).max(initial=0.0)) + 1
    zeros, losses, places = np.zeros(1), np.zeros(1), np.zeros((1, 0), dtype=np.int64)
    left = sum(sizes)
    for curve, size in zip(curves, sizes):
        left -= size
        more, lost = (zeros[:, None] + size * grid).ravel(), (losses[:, None] + curve).ravel()
        near = np.flatnonzero((more + left * grid[-1] >= goal - reach) & (more + left * grid[0] <= goal + reach))
        if not len(near):  # never seen: states next to each other were taken for one too often
            return np.zeros((0, len(sizes)), dtype=np.int64)
        low, high = more[near].min(), more[near].max()
        bins = np.floor((more[near] - low) / max((high - low) / STATES, 0.5))
        ranked = np.lexsort((lost[near], bins))
        chosen = near[ranked[np.unique(bins[ranked], return_index=True)[1]]]
        parents, picks = np.divmod(chosen, len(grid))
        zeros, losses = more[chosen], lost[chosen]
        places = np.concatenate([places[parents], picks[:, None]], axis=1)
    return places


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
