"""What is to be pruned: the weights, their patterns and sparsities, what stays dense, and the damage that decides."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from prunus.adapters import Batch
from prunus.contract import Masks, Pattern
from prunus.errors import BadInput, UnknownName
from prunus.graph import unwrapped
from prunus.layers import EMBEDDING, LEFT_DENSE, all_weights, require_apart, require_changeable
from prunus.pruning import allocations, find_masks, patterns
from prunus.recovery._calibration import calibrate_on
from prunus.recovery._damage import Damage, around, damage, steps
from prunus.recovery._reach import never_reached
from prunus.recovery._record import plain_layers
from prunus.recovery._saved import Saved
from prunus.recovery._units import evaluating, missed
from prunus.settings.recovery import ReconstructOptions


def checked(options: Any) -> ReconstructOptions:
    """The options, or the usual ones."""
    if options is not None and not isinstance(options, ReconstructOptions):
        raise BadInput(f"options must be ReconstructOptions, not {type(options).__name__}.")
    return options or ReconstructOptions()


@dataclass(frozen=True, eq=False)
class PruningPlan:
    """Which weights are pruned, in which pattern and how far; `given` are masks that are only to be adjusted to.

    `dense` are notes on what stays dense without having been excluded.
    """

    names: tuple[str, ...]
    patterns: Mapping[str, Pattern]
    levels: Mapping[str, float]
    given: Masks | None
    asked: Any
    allocation: str
    dense: Mapping[str, Any] = field(default_factory=dict)


def plan_for(
    model: nn.Module, sparsity: Any, shape: Pattern, allocation: Any, exclude: Any, masks: Masks | None, misfits: str,
    calibration: list[Batch], options: ReconstructOptions, kept: Saved | None,
) -> PruningPlan:  # fmt: skip
    """What `reconstruct` is to do, from what it was given."""
    if masks is not None:
        masks.parameters_of(model)
        known = all_weights(model)
        for name in masks:
            if name not in known or known[name].kind == EMBEDDING:
                raise BadInput(f"The masks name {name!r}, which is no layer that multiplies inputs: leave it out.")
        require_apart(model, {name: known[name] for name in masks})
        lost = never_reached(model, {name: known[name] for name in masks}, calibration)
        names = tuple(name for name in masks if name not in lost)
        return PruningPlan(names, dict.fromkeys(names, shape), {}, masks, None, "", {"unfitted": lost} if lost else {})
    if sparsity is None:
        raise BadInput("Give a sparsity, or masks that are to be kept.")
    said = allocation if isinstance(allocation, str) else getattr(allocation, "__name__", "function")
    named = (*allocations.names(), "damage")
    if isinstance(allocation, str) and allocation not in named:
        raise UnknownName("allocation", allocation, named)
    share = allocations.parse("uniform" if allocation == "damage" else allocation)
    levels: dict[str, float] = {}

    def noted(*arguments: Any) -> Mapping[str, float]:
        levels.update(share(*arguments))
        return levels

    first = find_masks(model, sparsity, pattern=shape, allocation=noted, exclude=exclude, misfits=misfits)
    found = all_weights(model)
    for name in first:
        if found[name].kind == EMBEDDING:
            raise BadInput(f"{name!r} is an embedding, which multiplies nothing: leave it out of the sparsities.")
    lost = never_reached(model, {name: found[name] for name in first}, calibration)
    if lost and isinstance(sparsity, Mapping):
        raise missed(lost)
    if lost:
        levels.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first search has said what there is to say
            out = (*exclude, *lost)
            first = find_masks(model, sparsity, pattern=shape, allocation=noted, exclude=out, misfits=misfits)
        first.notes["unreached"] = lost
    if isinstance(sparsity, Mapping):
        levels, said = dict(first.notes["sparsity"]), "given"
    shapes: Mapping[str, Pattern] = dict.fromkeys(first, shape)
    if allocation == "damage":
        if isinstance(sparsity, Mapping):
            raise BadInput("allocation='damage' spreads one sparsity over the layers: give a number, not one for each.")
        choices = around(shape, float(sparsity))
        stored = None if kept is None else kept.levels()
        levels = stored or _measure(model, first, choices, calibration, options).levels(float(sparsity))[0]
        if kept is not None and stored is None:
            kept.keep_levels(levels)
        if isinstance(shape, patterns.NM):
            shapes = {name: choices[level] for name, level in levels.items()}
    dense = {key: first.notes[key] for key in LEFT_DENSE if key in first.notes}
    return PruningPlan(tuple(first), shapes, levels, None, first.notes["sparsity"], said, dense)


def measure_damage(
    model: nn.Module,
    data: Any,
    pattern: str | Pattern = "balanced:16",
    exclude: Iterable[str] = (),
    samples: int = 512,
    seed: int = 0,
    *,
    grid: Sequence[float] = (0.0, 0.25, 0.5, 0.65, 0.8, 0.9, 0.95),
    options: ReconstructOptions | None = None,
) -> Damage:
    """What the network's output loses with each layer at growing sparsities, after the fit; the model is unchanged.

    `reconstruct(..., allocation="damage")` uses such curves to spread its sparsity over the layers, and `prunus.plan`
    can.

    Args:
        model: a trained network.
        data: samples like those the model will meet; labels are ignored.
        pattern: which sets of zeros are allowed. With N:M the curves run over all N, and `grid` is not used.
        exclude: names and globs that are left out.
        samples: how many samples to use.
        seed: of the draw.
        grid: the sparsities to measure.
        options: the damping, the batch size, the memory, the progress shown.

    Returns:
        The curves; `levels(sparsity)` gives each layer's share.

    Raises:
        BadInput: if the data are missing, hold NaN or never reach a layer.

    Example:
        >>> model = prunus.models.make("fc:16-32-4", seed=0)
        >>> found = measure_damage(model, torch.randn(64, 16), "2:4")
        >>> [round(level, 2) for level in found.choices]
        [0.0, 0.25, 0.5, 0.75]
    """
    options, shape = checked(options), patterns.parse(pattern)
    numeric = all(isinstance(level, (int, float)) for level in grid)
    if not grid or not numeric or list(grid) != sorted(set(grid)) or not 0 <= grid[0] <= grid[-1] < 1:
        raise BadInput(f"grid is {grid!r}; give growing sparsities in [0, 1).")
    inner = unwrapped(model)
    require_changeable(inner)
    with torch.inference_mode(False):
        found = find_masks(inner, 0.0, exclude=exclude)
        choices = steps(shape) if isinstance(shape, patterns.NM) else {float(s): shape for s in grid}
        return _measure(inner, found, choices, calibrate_on(inner, data, samples, options.batch_size, seed), options)


def _measure(
    model: nn.Module, names: Iterable[str], choices: Mapping[float, Pattern], calibration: list[Batch],
    options: ReconstructOptions,
) -> Damage:  # fmt: skip
    known = all_weights(model)
    weights = {name: known[name] for name in names}
    keeps = [batch.real_positions() for batch in calibration]
    with evaluating(model), plain_layers(model), torch.no_grad():
        return damage(model, weights, choices, calibration, keeps, options.damping, options.memory, options.progress)
