"""A few gradient steps on the output of a whole block, zeros held: what its layers cannot mend one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from prunus.recovery._shelf import leaves
from prunus.recovery._units import UnitWalk
from prunus.settings.recovery import ReconstructOptions


def descend(
    walk: UnitWalk, targets: UnitWalk, masks: Mapping[nn.Parameter, Tensor], keeps: Sequence[Tensor | None],
    options: ReconstructOptions,
) -> bool:  # fmt: skip
    """Move the present unit of `walk` towards the outputs `targets` holds; True if a batch held aside came closer.

    Weights, biases and the scales of norms are moved; running statistics are not. If the batch held aside gets worse,
    everything is put back.
    """
    unit = walk.module
    parameters = [p for p in unit.parameters() if p.is_floating_point()]
    if not parameters or len(keeps) < 2:
        return False
    before = [p.detach().clone() for p in parameters]
    aside = len(keeps) - 1
    with torch.no_grad():
        first = float(_distance(walk, targets, aside, keeps[aside]))
    wanted = [p.requires_grad for p in parameters]
    groups = [{"params": [p], "lr": options.rate * _typical(p, masks.get(p))} for p in parameters]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    total, done = options.descent * aside, 0
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for p in parameters:
            p.requires_grad_(True)
        for _ in range(options.descent):
            for index in range(aside):
                for group, rate in zip(optimizer.param_groups, rates):
                    group["lr"] = rate * (1.0 - done / total)
                optimizer.zero_grad(set_to_none=True)
                with torch.enable_grad():
                    _distance(walk, targets, index, keeps[index]).backward()
                with torch.no_grad():
                    for p in parameters:
                        if p.grad is not None and p in masks:
                            p.grad.masked_fill_(~masks[p], 0.0)
                    optimizer.step()
                done += 1
    finally:
        for p, want in zip(parameters, wanted):
            p.grad = None
            p.requires_grad_(want)
    with torch.no_grad():
        better = float(_distance(walk, targets, aside, keeps[aside])) < first
        if not better:
            for p, old in zip(parameters, before):
                p.copy_(old)
    return better


def _typical(parameter: nn.Parameter, mask: Tensor | None) -> float:
    """The root mean square of what is kept."""
    values = parameter.detach() if mask is None else parameter.detach()[mask]
    return max(1e-3, float(values.double().square().mean().sqrt())) if values.numel() else 1e-3


def _distance(walk: UnitWalk, targets: UnitWalk, index: int, keep: Tensor | None) -> Tensor:
    """Squared distance of the unit's output from the dense network's, relative to the variance of the latter."""
    output = next(t for t in leaves(walk.run(index)) if t.is_floating_point())
    target = next(t for t in leaves(targets.outputs[index]) if t.is_floating_point())
    if keep is not None and output.dim() == 3 and output.shape[:2] == keep.shape:
        output, target = output[keep], target[keep]
    return (output - target).square().mean() / target.var().clamp_min(1e-12)
