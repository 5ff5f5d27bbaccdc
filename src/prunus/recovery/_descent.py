"""Gradient steps on the output of a whole block, zeros held: what its layers cannot mend one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prunus.recovery._shelf import Shelf, leaves
from prunus.recovery._units import UnitWalk
from prunus.settings.recovery import ReconstructOptions

ASIDE = 8
"""One batch of so many, and at least one, is held aside to judge the steps."""


def descend(
    walk: UnitWalk, targets: UnitWalk, masks: Mapping[nn.Parameter, Tensor], keeps: Sequence[Tensor | None],
    options: ReconstructOptions,
) -> bool:  # fmt: skip
    """Move the present unit of `walk` towards the outputs `targets` holds; True if batches held aside came closer.

    Weights, biases and the scales of norms are moved; running statistics are not. After each pass over the samples the
    batches held aside are looked at, and the state that is best on them stays: perhaps the one at the start.
    """
    parameters = [p for p in walk.module.parameters() if p.is_floating_point()]
    count = len(keeps)
    aside = range(count - max(1, count // ASIDE), count)
    if not parameters or count < 2:
        return False
    inputs = Shelf(walk.room)
    for index in range(count):
        inputs[index] = walk.inputs(index)

    def distance(index: int) -> Tensor:
        args, kwargs = inputs.copy(index)  # a model may work in place
        output = next(t for t in leaves(walk.module(*args, **kwargs)) if t.is_floating_point())
        target = next(t for t in leaves(targets.outputs[index]) if t.is_floating_point())
        return _relative(output, target, keeps[index])

    def judge() -> float:
        return sum(float(distance(index)) for index in aside)

    best = first = judge()
    state = [p.detach().clone() for p in parameters]
    groups = [{"params": [p], "lr": options.rate * _typical(p, masks.get(p))} for p in parameters]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    rates = [group["lr"] for group in optimizer.param_groups]
    total, done = options.descent * aside.start, 0
    for _ in range(options.descent):
        with _moving(parameters):
            for index in range(aside.start):
                for group, rate in zip(optimizer.param_groups, rates):
                    group["lr"] = rate * (1.0 - done / total)
                optimizer.zero_grad(set_to_none=True)
                with torch.enable_grad():
                    distance(index).backward()
                for p in parameters:
                    if p.grad is not None and p in masks:
                        p.grad.masked_fill_(~masks[p], 0.0)
                optimizer.step()
                done += 1
        now = judge()
        if now < best:
            best, state = now, [p.detach().clone() for p in parameters]
    for p, value in zip(parameters, state):
        p.copy_(value)
    inputs.clear()
    return best < first


@contextmanager
def _moving(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, the parameters get gradients."""
    wanted = [p.requires_grad for p in parameters]
    try:
        for p in parameters:
            p.requires_grad_(True)
        yield
    finally:
        for p, want in zip(parameters, wanted):
            p.grad = None
            p.requires_grad_(want)


def _typical(parameter: nn.Parameter, mask: Tensor | None) -> float:
    """The root mean square of what is kept."""
    values = parameter.detach() if mask is None else parameter.detach()[mask]
    return max(1e-3, float(values.double().square().mean().sqrt())) if values.numel() else 1e-3


def _relative(output: Tensor, target: Tensor, keep: Tensor | None) -> Tensor:
    """Squared distance of the unit's output from the dense network's, relative to the variance of the latter."""
    if keep is not None and output.dim() == 3 and output.shape[:2] == keep.shape:
        output, target = output[keep], target[keep]
    return (output - target).square().mean() / target.var().clamp_min(1e-12)
