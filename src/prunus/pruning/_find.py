"""`find_masks` and `prune`: score x pattern x allocation -> Masks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Allocation, Masks, Pattern, Score, ScoreContext, check_sparsity, whole
from prunus.errors import BadInput, PrunusWarning
from prunus.layers import (
    Weight,
    all_weights,
    as_globs,
    listing,
    matches,
    prunable_weights,
    require_apart,
    require_module,
    require_values,
    unrecognised,
)
from prunus.pruning import allocations, patterns, scores
from prunus.pruning.scores import ScoreRule
from prunus.select import drop_smallest

Sparsity = float | Mapping[str, float]


def find_masks(
    model: nn.Module,
    sparsity: Sparsity,
    *,
    score: str | Score = "magnitude",
    pattern: str | Pattern = "unstructured",
    allocation: str | Allocation = "uniform",
    exclude: Iterable[str] = (),
    data: Any = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    seed: int = 0,
    misfits: str = "error",
) -> Masks:
    """Choose which weights stay. The model is not touched.

    Args:
        model: any module. Embeddings, and output layers tied to them, stay dense unless `sparsity` names them.
        sparsity: fraction of zeros among the prunable weights that are not excluded, or {layer: fraction} with names
            (or globs) of layers or parameters; layers not named are then left alone.
        score: "magnitude", "random", "random-with-replacement", "snip", "grasp", "synflow", "wanda", or a function.
        pattern: "unstructured", "balanced:B", "N:M", "kernels", "channels", "blocks:RxC", or a pattern object.
        allocation: "uniform", "global", "erk", "lamp", or a function.
        exclude: names and globs of parameters or modules that are never pruned.
        data: samples for the scores that need them: anything that `prunus.adapters.batches` reads.
        loss: a function of (outputs, labels); the model's own loss or cross-entropy unless given.
        seed: of everything random.
        misfits: what to do with layers that the pattern does not fit (depthwise convolutions, short rows): "error"
            names them all, "skip" leaves them dense and lists them in `masks.notes["skipped"]`.

    Returns:
        The masks, with a record of how they were made in `notes`.

    Raises:
        BadInput: if a name, the sparsity, the data or a weight cannot be used.

    Example:
        >>> import prunus
        >>> masks = prunus.find_masks(prunus.models.make("fc:64-32-10"), 0.9, exclude=("layers.1",))
        >>> round(masks.sparsity, 3)
        0.9
    """
    rule, shape, share = scores.parse(score), patterns.parse(pattern), allocations.parse(allocation)
    if misfits not in ("error", "skip"):
        raise BadInput(f'misfits must be "error" or "skip", not {misfits!r}.')
    require_module(model)
    exclude = as_globs(exclude)
    named = tuple(sparsity) if isinstance(sparsity, Mapping) else ()
    weights = _not_excluded(model, prunable_weights(model, named), exclude)
    targets: dict[str, float] | float
    if isinstance(sparsity, Mapping):
        targets = _by_layer(weights, sparsity)
        weights = {name: weights[name] for name in targets}
    else:
        targets = check_sparsity(sparsity)
    require_values(weights)
    require_apart(model, weights)
    left_out = _misfits(weights, targets, shape, skip=misfits == "skip")
    weights = {name: weight for name, weight in weights.items() if name not in left_out}
    if isinstance(targets, dict):
        targets = {name: targets[name] for name in weights}
    notes = {"score": rule.name, "pattern": str(shape), "sparsity": _short(targets), "seed": seed}
    if not isinstance(targets, dict):
        notes["allocation"] = allocation if isinstance(allocation, str) else getattr(share, "__name__", "function")
    notes |= _report(model, left_out, exclude)
    chosen = _in_rounds(model, weights, targets, rule, shape, share, data, loss, seed)
    return Masks.adopt({name: mask.to(weights[name].parameter.device) for name, mask in chosen.items()}, notes)


def prune(
    model: nn.Module,
    sparsity: Sparsity,
    *,
    score: str | Score = "magnitude",
    pattern: str | Pattern = "unstructured",
    allocation: str | Allocation = "uniform",
    exclude: Iterable[str] = (),
    data: Any = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    seed: int = 0,
    misfits: str = "error",
) -> Masks:
    """Choose which weights are kept and set the others to zero, in place: `find_masks`, then `Masks.apply_`.

    Args:
        model: Any module with prunable weights; it is changed.
        sparsity: As in `find_masks`, like all the following.
        score: How weights are ranked.
        pattern: Which sets of zeros are allowed.
        allocation: How many zeros each layer gets.
        exclude: Names and globs that are never pruned.
        data: Batches, for the scores that need them.
        loss: Loss for those scores.
        seed: Seed of every random choice.
        misfits: "error", or "skip" for layers that the pattern does not fit.

    Returns:
        The masks.

    Raises:
        BadInput: As in `find_masks`; the model is unchanged then.

    Example:
        >>> import torch, prunus
        >>> layer = torch.nn.Linear(16, 4)
        >>> masks = prunus.prune(layer, 0.5, pattern="2:4")
        >>> int((layer.weight == 0).sum())
        32
    """
    masks = find_masks(
        model,
        sparsity,
        score=score,
        pattern=pattern,
        allocation=allocation,
        exclude=exclude,
        data=data,
        loss=loss,
        seed=seed,
        misfits=misfits,
    )
    masks.apply_(model)
    return masks


def _short(targets: dict[str, float] | float) -> Any:
    return targets if not isinstance(targets, dict) else {name: round(value, 9) for name, value in targets.items()}


# ------------------------------------------------------------------------------------------------------- which weights


def _not_excluded(model: nn.Module, weights: dict[str, Weight], globs: tuple[str, ...]) -> dict[str, Weight]:
    every, strange = all_weights(model), unrecognised(model)
    for glob in globs:
        if not any(weight.called(glob) for weight in every.values()) and not any(matches(n, glob) for n in strange):
            raise BadInput(f"exclude names {glob!r}, which matches no prunable weight; the model has {listing(every)}.")
    left = {name: weight for name, weight in weights.items() if not any(weight.called(glob) for glob in globs)}
    if left:
        return left
    if weights:
        raise BadInput("There is nothing to prune: exclude covers every prunable weight.")
    if every:
        reason = f"the model has only embeddings ({listing(every)}), which are pruned when sparsity names them"
    elif strange:
        reason = f"the model's weights are of no kind that is known here ({_kinds(strange)})"
    else:
        reason = "the model has no prunable weights"
    raise BadInput(f"There is nothing to prune: {reason}.")


def _kinds(strange: Mapping[str, str]) -> str:
    return listing((f"{name} of {kind}" for name, kind in strange.items()), 4)


def _misfits(
    weights: Mapping[str, Weight], targets: dict[str, float] | float, pattern: Pattern, *, skip: bool
) -> dict[str, str]:
    """Layers that the pattern does not fit, with the reason; refused unless they may be skipped."""
    reasons: dict[str, str] = {}
    for name, weight in weights.items():
        try:
            pattern.check(weight, targets[name] if isinstance(targets, dict) else targets)
        except BadInput as error:
            reasons[name] = str(error)
    if reasons and (not skip or len(reasons) == len(weights)):
        first = next(iter(reasons.values()))
        if len(reasons) == 1:
            raise BadInput(first)
        raise BadInput(
            f'{first} The same holds for {listing(list(reasons)[1:], 20)}: exclude them, or pass misfits="skip" to '
            "leave out what does not fit."
        )
    return reasons


def _report(model: nn.Module, skipped: Mapping[str, str], globs: tuple[str, ...]) -> dict[str, Any]:
    """Note what is left dense without being asked for; weights of an unknown kind also give a warning."""
    notes: dict[str, Any] = {}
    if skipped:
        notes["skipped"] = list(skipped)
    strange = {name: kind for name, kind in unrecognised(model).items() if not any(matches(name, g) for g in globs)}
    if strange:
        notes["unrecognised"] = list(strange)
        warnings.warn(
            f"Left dense, as they belong to no kind of layer that is known here: {_kinds(strange)}.",
            PrunusWarning,
            stacklevel=4,
        )
    return notes


def _by_layer(weights: dict[str, Weight], sparsity: Mapping[str, float]) -> dict[str, float]:
    targets: dict[str, float] = {}
    for glob, value in sparsity.items():
        level = check_sparsity(value, f" of {glob!r}")
        found = [name for name in weights if weights[name].called(glob)]
        if not found:
            raise BadInput(
                f"The sparsities name {glob!r}, which is no prunable weight; the model has {listing(weights)}."
            )
        for name in found:
            if targets.get(name, level) != level:
                raise BadInput(f"The sparsities name {name!r} twice with different values; name each layer once.")
            targets[name] = level
    return {name: targets[name] for name in weights if name in targets}


# ----------------------------------------------------------------------------------------------------------- the masks


def _in_rounds(
    model: nn.Module,
    weights: dict[str, Weight],
    targets: dict[str, float] | float,
    rule: ScoreRule,
    pattern: Pattern,
    allocation: Allocation,
    data: Any,
    loss: Any,
    seed: int,
) -> dict[str, Tensor]:
    if rule.rounds == 1 or patterns.fixed_sparsity(pattern) is not None:  # N:M has no steps between
        context = ScoreContext(model, weights, data, loss, seed)
        return _masks(_scored(rule, context), weights, targets, rule, pattern, allocation, seed)
    copied = copy.deepcopy(model)
    own = all_weights(copied)
    own = {name: own[name] for name in weights}
    context = ScoreContext(copied, own, data, loss, seed)
    masks: dict[str, Tensor] = {}
    for number in range(1, rule.rounds + 1):
        step = _level(targets, number / rule.rounds)
        scored = _scored(rule, context)
        if masks:
            scored = {name: _below_all(values, masks[name], rule.absolute) for name, values in scored.items()}
        masks = _masks(scored, own, step, rule, pattern, allocation, seed)
        Masks.adopt(masks).apply_(copied)
    return masks


def _below_all(values: Tensor, mask: Tensor, absolute: bool) -> Tensor:
    """Scores in which a weight that is gone ranks below every other, so that rounds nest even among equal scores."""
    return values.masked_fill(~mask, 0.0 if absolute else -torch.inf)


def _level(targets: dict[str, float] | float, part: float) -> dict[str, float] | float:
    """Geometrically falling density: (1 - s)^part is what stays after this part of the way."""
    if isinstance(targets, dict):
        return {name: 1 - (1 - value) ** part for name, value in targets.items()}
    result: dict[str, float] | float = 1 - (1 - targets) ** part
    return result


def _scored(rule: ScoreRule, context: ScoreContext) -> dict[str, Tensor]:
    raw = rule(context)
    if not isinstance(raw, Mapping) or not all(isinstance(value, Tensor) for value in raw.values()):
        kind = type(raw).__name__
        raise BadInput(f"The score {rule.name!r} returns {kind}: it must return a tensor for each name in weights.")
    for name, weight in context.weights.items():
        if name not in raw or raw[name].shape != weight.shape:
            raise BadInput(f"The score {rule.name!r} gives no tensor of the right shape for {name!r}.")
    return {name: raw[name].detach() for name in context.weights}


def _masks(
    scored: dict[str, Tensor],
    weights: dict[str, Weight],
    targets: dict[str, float] | float,
    rule: ScoreRule,
    pattern: Pattern,
    allocation: Allocation,
    seed: int,
) -> dict[str, Tensor]:
    if isinstance(targets, dict):
        levels: Mapping[str, float] = targets
    elif allocation is allocations.globally and _free(pattern, rule):
        total = whole(targets, sum(weight.numel for weight in weights.values()))
        return dict(zip(scored, drop_smallest(list(scored.values()), total, absolute=rule.absolute)))
    else:
        levels = allocation(weights, scored, targets, pattern, rule.absolute)
    if rule.draws is not None:
        levels = _drawn(rule, weights, levels, pattern, seed)
    for name, weight in weights.items():
        pattern.check(weight, levels[name])
    if rule.within_rows and isinstance(pattern, patterns.Unstructured):
        return {
            name: patterns.mask_by_row(scored[name], weight, levels[name], absolute=rule.absolute)
            for name, weight in weights.items()
        }
    return {
        name: pattern.mask(scored[name], weight, levels[name], absolute=rule.absolute)
        for name, weight in weights.items()
    }


def _free(pattern: Pattern, rule: ScoreRule) -> bool:
    """Whether any weight may go, wherever it stands: then one selection over all layers gives the masks."""
    return isinstance(pattern, patterns.Unstructured) and rule.draws is None and not rule.within_rows


def _drawn(
    rule: ScoreRule, weights: dict[str, Weight], levels: Mapping[str, float], pattern: Pattern, seed: int
) -> dict[str, float]:
    if not isinstance(pattern, patterns.Unstructured) or rule.draws is None:
        raise BadInput(
            f"The score {rule.name!r} draws how many weights go, which only the unstructured pattern allows."
        )
    generator = torch.Generator().manual_seed(seed * 1_000_003 + 7)
    drawn = {}
    for name, weight in weights.items():
        drawn[name] = rule.draws(whole(levels[name], weight.numel), weight.numel, generator) / max(1, weight.numel)
    return drawn
