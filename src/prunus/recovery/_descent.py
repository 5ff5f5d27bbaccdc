"""Gradient steps on the output of a block, zeros held: what its layers cannot mend one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import unpadded
from prunus.errors import BadInput
from prunus.recovery._record import Keep, Recorder, Stop, is_batch_norm, unseen
from prunus.recovery._shelf import Shelf, leaves
from prunus.recovery._units import Inputs, UnitWalk
from prunus.settings.recovery import ReconstructOptions

ASIDE = 8
"""One batch of so many, and at least one, is held aside to judge the steps."""


class Descent:
    """Gradient steps for the units of a reconstruction: on attention and MLP apart, else on a unit as a whole.

    `dense` gives the outputs to come close to, `pruned` is moved; `masks` are those of the weights done so far.
    """

    def __init__(
        self, dense: UnitWalk, pruned: UnitWalk, masks: Mapping[Tensor, Tensor], keeps: Sequence[Keep],
        options: ReconstructOptions,
    ) -> None:  # fmt: skip
        self.dense, self.pruned, self.masks, self.keeps, self.options = dense, pruned, masks, keeps, options
        self.parts: list[str] = []
        self.still: set[Tensor] = set()

    def begin(self, weights: Iterable[Tensor]) -> None:
        """Start on the present unit, with these weights to be pruned."""
        name, module, counts = self.pruned.units[self.pruned.here], self.pruned.module, self.pruned.counts
        self.parts = sublayers(module, name, set(weights), counts or {}) if self.options.descent else []
        self.still = set()

    def after(self, waiting: Iterable[Tensor]) -> None:
        """Move parts of the unit that have all their weights; the last is moved by `end`, with what is behind it."""
        open_ = set(waiting)
        for name in self.parts if open_ else ():
            part = self.pruned.model.get_submodule(name)
            if open_.isdisjoint(part.parameters()) and self.still.isdisjoint(part.parameters()):
                self._part(name, part)
                self.still.update(part.parameters())

    def _part(self, name: str, part: nn.Module) -> None:
        self.pruned.parts.clear()  # what was kept of it is of its old weights
        inputs, targets = Shelf(self.pruned.room), Shelf(self.pruned.room)
        for index in range(len(self.keeps)):
            _, wanted, there = watch(self.dense, self.dense.model.get_submodule(name), index)
            inputs[index], _, here = watch(self.pruned, part, index)
            # What the pruned network lacks in the sum behind the part, the part can add.
            targets[index] = wanted if there is None or here is None else wanted + there - here

        def run(index: int) -> Any:
            args, kwargs = _own(inputs.copy(index))
            return part(*args, **kwargs)

        descend(part, run, targets.copy, self.masks, self.keeps, self.options)
        inputs.clear()
        targets.clear()

    def end(self) -> None:
        """Move the rest of the unit, or all of it where no part was moved, towards the dense unit's outputs."""
        walk, module = self.pruned, self.pruned.module
        if not self.options.descent or not any(True for _ in module.children()):  # one layer is at its optimum
            return
        walk.parts.clear()
        if self.still:
            walk.settle(self.still, (p for p in module.parameters() if p not in self.still))
        inputs = Shelf(walk.room)
        for index in range(len(self.keeps)):
            inputs[index] = walk.inputs(index)

        def run(index: int) -> Any:
            return walk.call(index, *_own(inputs.copy(index)))

        descend(module, run, self.dense.outputs.copy, self.masks, self.keeps, self.options, self.still)
        inputs.clear()
        walk.parts.clear()


def sublayers(module: nn.Module, name: str, weights: Collection[Tensor], counts: Mapping[str, int]) -> list[str]:
    """The parts of a unit that hold at least two of `weights`, but not all, and run once: its attention, its MLP."""
    held = {
        (f"{name}.{own}" if name else own, child): sum(p in weights for p in child.parameters())
        for own, child in module.named_children()
    }
    total = sum(p in weights for p in module.parameters())
    for (path, child), count in held.items():
        if count == total:
            return sublayers(child, path, weights, counts)
    return [
        path
        for (path, child), count in held.items()
        if count > 1 and counts.get(path) == 1 and not any(map(is_batch_norm, child.modules()))
    ]


def watch(walk: UnitWalk, part: nn.Module, index: int) -> tuple[Inputs, Tensor, Tensor | None]:
    """What a part of the present unit is given for a batch, what it gives, and what is added to that behind it."""
    given: list[Inputs] = []
    made: list[Tensor] = []
    version = 0
    kept: list[Tensor] = []
    beside: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with unseen():
            given.append(_own((args, kwargs)))

    def after(_: nn.Module, args: Any, output: Any) -> None:
        nonlocal version
        made.append(_first(output))
        version = made[0]._version
        with unseen():  # a copy is not what the model computes from it
            kept.append(made[0].detach().clone())

    def summed(first: Tensor, second: Tensor) -> None:
        same = made and first.data_ptr() == made[0].data_ptr() and first.shape == made[0].shape
        if same and not beside and first._version == version:
            beside.append(second.clone())
            walk.parts.stop()

    hooks = (part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after))
    try:
        with Recorder((), lambda use: None, summed=summed), suppress(Stop):
            walk.run(index)
    finally:
        for hook in hooks:
            hook.remove()
    return given[0], kept[0], beside[0] if beside else None


def descend(
    module: nn.Module, run: Callable[[int], Any], aim: Callable[[int], Any], masks: Mapping[Tensor, Tensor],
    keeps: Sequence[Keep], options: ReconstructOptions, still: Collection[Tensor] = (),
) -> bool:  # fmt: skip
    """Move `module`, which gives `run(index)`, towards `aim(index)`; True if batches held aside came closer.

    Weights, biases and the scales of norms are moved, those `still` are not, nor running statistics. After each pass
    over the samples the batches held aside are looked at, and the state that is best on them stays: perhaps the one at
    the start.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point() and p not in still]
    count = len(keeps)
    aside = range(count - max(1, count // ASIDE), count)
    if not parameters or count < 2:
        return False

    def distance(index: int) -> Tensor:
        return _relative(_first(run(index)), _first(aim(index)), keeps[index])

    def judge() -> float:
        return sum(float(distance(index)) for index in aside)

    best = first = judge()
    state = [p.detach().clone() for p in parameters]
    groups = [{"params": [p], "lr": options.rate * _typical(p, masks.get(p))} for p in parameters]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    rates = [group["lr"] for group in optimizer.param_groups]
    total, done = options.descent * aside.start, 0
    for _ in range(options.descent):
        with _moving(module, parameters):
            for index in range(aside.start):
                for group, rate in zip(optimizer.param_groups, rates):
                    group["lr"] = rate * (1.0 - done / total)
                optimizer.zero_grad(set_to_none=True)
                with torch.enable_grad():
                    _back(distance(index))
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
    return best < first


def _back(distance: Tensor) -> None:
    try:
        distance.backward()
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        raise BadInput(
            "The model changes values in place that gradients need, so descent cannot follow it: leave descent at 0."
        ) from error


def _own(inputs: Inputs) -> Inputs:
    """Inputs that a call may change: models work in place, and the cache of a language model grows."""
    return copy.deepcopy(inputs)


def _first(output: Any) -> Tensor:
    return next(tensor for tensor in leaves(output) if tensor.is_floating_point())


@contextmanager
def _moving(module: nn.Module, parameters: Collection[Tensor]) -> Iterator[None]:
    """Inside, these parameters of the module get gradients, and no others."""
    chosen, wanted = set(parameters), {p: p.requires_grad for p in module.parameters()}
    try:
        for p in wanted:
            p.requires_grad_(p in chosen)
        yield
    finally:
        for p, want in wanted.items():
            p.grad = None
            p.requires_grad_(want)


def _typical(parameter: nn.Parameter, mask: Tensor | None) -> float:
    """The root mean square of what is kept."""
    values = parameter.detach() if mask is None else parameter.detach()[mask]
    return max(1e-3, float(values.double().square().mean().sqrt())) if values.numel() else 1e-3


def _relative(output: Tensor, target: Tensor, keep: Keep) -> Tensor:
    """Squared distance of a block's output from the dense network's, relative to the variance of the latter."""
    output, target = unpadded(output, keep), unpadded(target, keep)
    return (output - target).square().mean() / target.var().clamp_min(1e-12)
