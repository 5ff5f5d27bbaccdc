"""`reconstruct`: prune a network layer after layer and adjust what stays, so that its outputs stay."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, batches
from prunus.contract import Allocation, Masks, Pattern
from prunus.pruning import allocations, find_masks, patterns
from prunus.recovery._layer import Result, rebuild
from prunus.recovery._moments import measure, trace
from prunus.recovery._units import Walk, divide, looks_back
from prunus.layers import Weight, prunable_weights

Sparsity = float | Mapping[str, float]


@dataclass(frozen=True)
class ReconstructOptions:
    damping: float = 0.01
    towards: float = 1.0
    refine: int = 60
    batch_size: int = 64
    memory: float = 1e9


def reconstruct(
    model: nn.Module,
    sparsity: Sparsity | None,
    data: Any,
    pattern: str | Pattern = "balanced:16",
    allocation: str | Allocation = "uniform",
    exclude: Iterable[str] = (),
    masks: Masks | None = None,
    samples: int = 512,
    seed: int = 0,
    *,
    options: ReconstructOptions | None = None,
) -> Masks:
    options = options or ReconstructOptions()
    shape = patterns.parse(pattern)
    if masks is None:
        first = find_masks(model, sparsity, pattern=shape, allocation=allocation, exclude=exclude)
    else:
        first = masks
        masks.parameters_of(model)
    work = copy.deepcopy(model)
    modes = [(module, module.training) for module in model.modules()]
    work.eval()
    model.eval()
    try:
        with torch.no_grad():
            done = _layers(model, work, first, sparsity, data, shape, allocation, masks, samples, seed, options)
    finally:
        for module, training in modes:
            module.training = training
    found = Masks.adopt({name: result.mask for name, result in done.items()}, {"from": "reconstruct"})
    with torch.no_grad():
        for mine, new in zip(model.state_dict().values(), work.state_dict().values()):
            mine.copy_(new)
    found.apply_(model)
    return found


def _layers(model, work, first, sparsity, data, shape, allocation, masks, samples, seed, options):
    group = list(batches(data, size=options.batch_size, limit=-(-samples // options.batch_size), shuffle=True, seed=seed))
    weights = {n: w for n, w in prunable_weights(work).items() if n in first}
    originals = {n: w for n, w in prunable_weights(model).items() if n in first}
    levels = dict.fromkeys(first, sparsity)
    if masks is None and not isinstance(sparsity, Mapping):
        levels = allocations.parse(allocation)(originals, {n: w.parameter.detach() for n, w in originals.items()}, sparsity, shape, True)
    units = divide(model, originals, group[0])
    keeps = [_keep(batch) for batch in group]
    stages = trace(model, originals, group[0], keeps[0])
    old, new = Walk(model, units, group, options.memory), Walk(work, units, group, options.memory)
    old.keep_all = new.keep_all = looks_back(model, units, group[0])
    done: dict[str, Result] = {}
    for unit in units:
        inside = {id(m) for m in work.get_submodule(unit).modules()}
        for stage in (s for s in stages if id(weights[s.names[0]].module) in inside):
            moments = measure(old, new, stage, weights, originals, keeps)
            for name in stage.names:
                norm = work.get_submodule(stage.norms[name]) if name in stage.norms else None
                done[name] = rebuild(weights[name], originals[name].parameter.detach(), moments, pattern=shape, sparsity=levels[name],
                    given=None if masks is None else masks[name], norm=norm, settings=vars(options))
        old.advance()
        new.advance()
    return {n: done[n] for n in first}


def _keep(batch: Batch) -> Tensor | None:
    mask = batch.kwargs.get("attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
