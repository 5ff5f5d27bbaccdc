"""`find_masks` and `prune`: score x pattern x allocation -> Masks."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.contract import Allocation, Masks, Pattern, Score, ScoreContext, check_sparsity, whole
from prunus.errors import BadInput
from prunus.pruning import allocations, patterns, scores
from prunus.pruning.scores import ScoreRule
from prunus.select import drop_smallest
from prunus.weights import Weight, plain_name, prunable_weights

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
) -> Masks:
    """Choose which weights are kept. The model is not changed.

    Args:
        model: Any module with prunable weights.
        sparsity: Fraction of zeros among the prunable weights that are not excluded, or {layer: fraction} with names or
            globs of layers or parameters; layers that are not named are then left alone.
        score: "magnitude", "random", "random-with-replacement", "snip", "grasp", "synflow", "wanda", or a function.
        pattern: "unstructured", "balanced:B", "N:M", "kernels", "channels", "blocks:RxC", or a pattern object.
        allocation: "uniform", "global", "erk", "lamp", or a function.
        exclude: Names and globs of parameters or modules that are never pruned.
        data: Batches of (inputs, labels), for the scores that need them.
        loss: Loss of (outputs, labels) for those scores; cross-entropy unless given.
        seed: Seed of every random choice.

    Returns:
        The masks, one for each pruned weight tensor.

    Raises:
        BadInput: A name is unknown, a sparsity is out of range, a pattern does not fit a layer, or a score needs data.

    Example:
        >>> import prunus
        >>> model = prunus.models.make("fc:64-32-10", seed=0)
        >>> masks = prunus.find_masks(model, 0.75, pattern="balanced:16", exclude=("layers.1",))
        >>> masks.sparsity
        0.75
    """
    rule, shape, share = scores.parse(score), patterns.parse(pattern), allocations.parse(allocation)
    weights = _not_excluded(prunable_weights(model), exclude)
    targets: dict[str, float] | float
    if isinstance(sparsity, Mapping):
        targets = _by_layer(weights, sparsity)
        weights = {name: weights[name] for name in targets}
    else:
        targets = check_sparsity(sparsity)
    _check_values(weights)
    notes = {"score": rule.name, "pattern": str(shape), "sparsity": _short(targets), "seed": seed}
    if not isinstance(targets, dict):
        notes["allocation"] = allocation if isinstance(allocation, str) else getattr(share, "__name__", "function")
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
    )
    masks.apply_(model)
    return masks


def _short(targets: dict[str, float] | float) -> Any:
    return targets if not isinstance(targets, dict) else {name: round(value, 9) for name, value in targets.items()}


# ------------------------------------------------------------------------------------------------------- which weights


def _matches(name: str, glob: str) -> bool:
    """Does a name or glob speak of this parameter, of its module, or of a module around it?"""
    glob = plain_name(glob)
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), glob) for end in range(1, len(parts) + 1))


def _not_excluded(weights: dict[str, Weight], exclude: Iterable[str]) -> dict[str, Weight]:
    globs = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    for glob in globs:
        if not any(_matches(name, glob) for name in weights):
            raise BadInput(
                f"exclude names {glob!r}, which matches no prunable weight; the model has {_listing(weights)}."
            )
    left = {name: weight for name, weight in weights.items() if not any(_matches(name, glob) for glob in globs)}
    if not left:
        raise BadInput(
            "There is nothing to prune: "
            + ("exclude covers every prunable weight." if weights else "the model has no prunable weights.")
        )
    return left


def _listing(weights: Iterable[str]) -> str:
    names = list(weights)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _by_layer(weights: dict[str, Weight], sparsity: Mapping[str, float]) -> dict[str, float]:
    targets: dict[str, float] = {}
    for glob, value in sparsity.items():
        level = check_sparsity(value, f" of {glob!r}")
        found = [name for name in weights if _matches(name, glob)]
        if not found:
            raise BadInput(
                f"The sparsities name {glob!r}, which is no prunable weight; the model has {_listing(weights)}."
            )
        for name in found:
            if targets.get(name, level) != level:
                raise BadInput(f"The sparsities name {name!r} twice with different values; name each layer once.")
            targets[name] = level
    return {name: targets[name] for name in weights if name in targets}


def _check_values(weights: Mapping[str, Weight]) -> None:
    for name, weight in weights.items():
        if weight.parameter.is_meta:
            raise BadInput(f"The weight {name!r} is on the meta device and has no values; load the weights first.")
        # A sum is finite only if every term is, save for overflow; only then is the elementwise test needed.
        values = weight.parameter.detach()
        if not torch.isfinite(values.sum(dtype=torch.float64)) and not bool(torch.isfinite(values).all()):
            raise BadInput(f"The weight {name!r} holds NaN or Inf; mend the checkpoint before pruning it.")


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
    if rule.rounds == 1:
        context = ScoreContext(model, weights, data, loss, seed)
        return _masks(_scored(rule, context), weights, targets, rule, pattern, allocation, seed)
    copied = copy.deepcopy(model)
    own = prunable_weights(copied)
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
    return 1 - (1 - targets) ** part


def _scored(rule: ScoreRule, context: ScoreContext) -> dict[str, Tensor]:
    raw = rule(context)
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
    elif allocation is allocations.globally and isinstance(pattern, patterns.Unstructured) and rule.draws is None:
        total = whole(targets, sum(weight.numel for weight in weights.values()))
        return dict(zip(scored, drop_smallest(list(scored.values()), total, absolute=rule.absolute)))
    else:
        levels = allocation(weights, scored, targets, pattern, rule.absolute)
    if rule.draws is not None:
        levels = _drawn(rule, weights, levels, pattern, seed)
    for name, weight in weights.items():
        pattern.check(weight, levels[name])
    return {
        name: pattern.mask(scored[name], weight, levels[name], absolute=rule.absolute)
        for name, weight in weights.items()
    }


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
