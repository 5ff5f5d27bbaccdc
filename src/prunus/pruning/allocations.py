"""Allocations: the sparsity of each layer, given that of the whole.

Every layer's sparsity grows with that of the whole, so that masks of growing sparsity nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from prunus.contract import Allocation, Pattern, whole
from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.pruning._registry import Registry
from prunus.select import drop_smallest

__all__ = ["names", "parse", "register"]

_allocations: Registry[Allocation] = Registry("allocation")


def register(name: str, *, replace: bool = False) -> Callable[[Allocation], Allocation]:
    """Decorator: make an allocation available under `name`.

    Args:
        name: What users write.
        replace: Allow a name that exists already.

    Returns:
        The decorator, which gives the function back.

    Example:
        >>> @prunus.allocations.register("first half", replace=True)
        ... def first_half(weights, scores, sparsity, pattern, absolute):
        ...     return {name: sparsity if number == 0 else 0.0 for number, name in enumerate(weights)}
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        >>> [row.sparsity for row in prunus.find_masks(model, 0.5, allocation="first half").layers]
        [0.5, 0.0]
    """
    return lambda function: _allocations.add(name, function, replace=replace)


def names() -> tuple[str, ...]:
    """The names of the allocations.

    Returns:
        The names, in the order of their registration.

    Example:
        >>> names()[:4]
        ('uniform', 'global', 'erk', 'lamp')
    """
    return tuple(_allocations)


def parse(allocation: str | Allocation) -> Allocation:
    """An allocation by name; a function is passed through.

    Args:
        allocation: A name, or a function.

    Returns:
        The function.

    Raises:
        UnknownName: There is no allocation of this name.
        BadInput: It is neither a name nor a function.

    Example:
        >>> parse("uniform") is uniform
        True
    """
    if isinstance(allocation, str):
        return _allocations[allocation]
    if not callable(allocation):
        raise BadInput(f"An allocation is a name or a function, not {type(allocation).__name__}.")
    return allocation


def _zeros(mask: Tensor) -> float:
    return 1 - int(mask.count_nonzero()) / mask.numel() if mask.numel() else 0.0


@register("uniform")
def uniform(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], sparsity: float, pattern: Pattern, absolute: bool
) -> dict[str, float]:
    """The same sparsity in every layer."""
    return dict.fromkeys(weights, sparsity)


@register("global")
def globally(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], sparsity: float, pattern: Pattern, absolute: bool
) -> dict[str, float]:
    """One threshold for all layers: units are compared by their mean score."""
    target = whole(sparsity, sum(weight.numel for weight in weights.values()))
    units, sizes = _mean_units(weights, scores, pattern, absolute)
    if set(sizes.values()) == {1}:
        kept = drop_smallest(list(units.values()), target, absolute=absolute)
        return {name: _zeros(mask) for name, mask in zip(units, kept)}
    return _smallest_units(units, sizes, target)


def _mean_units(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], pattern: Pattern, absolute: bool
) -> tuple[dict[str, Tensor], dict[str, int]]:
    from prunus.pruning.patterns import Banks, Unstructured

    if isinstance(pattern, (Unstructured, Banks)):  # units are single weights: no copy of the scores is needed
        return {name: scores[name] for name in weights}, dict.fromkeys(weights, 1)
    pairs = {name: pattern.units(scores[name], weight, absolute=absolute) for name, weight in weights.items()}
    sizes = {name: size for name, (_, size) in pairs.items()}
    return {name: units.double() / size for name, (units, size) in pairs.items()}, sizes


def _smallest_units(units: Mapping[str, Tensor], sizes: Mapping[str, int], target: int) -> dict[str, float]:
    """Take units in ascending order of mean score while they fit within `target` weights, at least half of the last."""
    flat = torch.cat([values.reshape(-1) for values in units.values()])
    size = torch.cat([torch.full((values.numel(),), sizes[name]) for name, values in units.items()])
    order = torch.sort(flat, stable=True).indices
    cumulative = size[order].cumsum(0)
    taken = order[cumulative - size[order] // 2 <= target]
    sparsities, start = {}, 0
    for name, values in units.items():
        inside = (taken >= start) & (taken < start + values.numel())
        sparsities[name] = int(inside.count_nonzero()) / values.numel()
        start += values.numel()
    return sparsities


@register("erk")
def erdos_renyi_kernel(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], sparsity: float, pattern: Pattern, absolute: bool
) -> dict[str, float]:
    """Densities in proportion to (sum of a weight's sides) / (product of them), capped at 1 (Evci et al., 2020)."""
    raw = {name: sum(weight.shape) / math.prod(weight.shape) for name, weight in weights.items()}
    budget = (1 - sparsity) * sum(weight.numel for weight in weights.values())
    full: set[str] = set()
    while True:
        free = budget - sum(weights[name].numel for name in full)
        rest = sum(raw[name] * weights[name].numel for name in weights if name not in full)
        scale = free / rest if rest else 0.0
        over = {name for name in weights if name not in full and scale * raw[name] > 1}
        if not over:
            break
        full |= over
    return {name: 0.0 if name in full else 1 - scale * raw[name] for name in weights}


@register("lamp")
def lamp(
    weights: Mapping[str, Weight], scores: Mapping[str, Tensor], sparsity: float, pattern: Pattern, absolute: bool
) -> dict[str, float]:
    """Global threshold on score^2 over the sum of all squares in the layer that are as large (Lee et al., 2021).

    Every layer keeps at least one weight.
    """
    target = whole(sparsity, sum(weight.numel for weight in weights.values()))
    ratios = []
    for name in weights:
        square = torch.sort(scores[name].detach().reshape(-1).double().square(), descending=True, stable=True).values
        ratios.append(square / square.cumsum(0).clamp_min(torch.finfo(torch.float64).tiny))
    kept = drop_smallest(ratios, min(target, sum(ratio.numel() - 1 for ratio in ratios)))
    return {name: _zeros(mask) for name, mask in zip(weights, kept)}
