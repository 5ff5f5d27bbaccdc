"""Quality without training: the layers of a shrunk model are solved for, one after another, on the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, call, main_output, unpadded
from prunus.structure._features import Solvable, at
from prunus.structure._labels import Array
from prunus.structure.elimination import damping
from prunus.structure.groups import Coupling

RIDGE = 1e-3
TRIAL_TOKENS = 2048
"""Of texts, for a measurement of the outputs."""
TEXTS = 2
"""Sides of a batch of token ids."""


def joined(batches: Sequence[Batch]) -> list[Batch]:
    """One batch where the batches have equal shapes or are texts with a mask, else the list as it is."""
    batches = _padded(batches)
    first = batches[0]
    shapes = {
        tuple((name, tuple(value.shape[1:])) for name, value in [*enumerate(batch.args), *batch.kwargs.items()])
        for batch in batches
    }
    if len(batches) < 2 or len(shapes) > 1:
        return list(batches)
    args = tuple(torch.cat([batch.args[at] for batch in batches]) for at in range(len(first.args)))
    kwargs = {name: torch.cat([batch.kwargs[name] for batch in batches]) for name in first.kwargs}
    labels = None if first.labels is None else torch.cat([batch.labels for batch in batches])  # type: ignore[misc]
    return [Batch(args, kwargs, labels, sum(batch.size for batch in batches))]


def _padded(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Texts of different lengths brought to one, where an attention mask says what is padding."""
    if not all("attention_mask" in batch.kwargs and not batch.args for batch in batches):
        return batches
    sides = [{tuple(value.shape[1:]) for value in batch.kwargs.values()} for batch in batches]
    if any(len(side) != 1 or len(next(iter(side))) != 1 for side in sides):
        return batches  # something else than (texts, positions) among the inputs
    longest = max(next(iter(side))[0] for side in sides)

    def wider(batch: Batch) -> Batch:
        kwargs = {name: nn.functional.pad(value, (0, longest - value.shape[1])) for name, value in batch.kwargs.items()}
        return Batch(batch.args, kwargs, batch.labels, batch.size)

    return [wider(batch) for batch in batches]


def first_rows(batch: Batch, count: int, tokens: int = TRIAL_TOKENS) -> Batch:
    """The first rows of a batch, for what need not be measured on all of them; of texts no more than `tokens` allows.

    Two rows at least, or what there is: a text may be long, and every token has as many outputs as there are words.
    """
    if long := tokens_each(batch):
        count = min(count, max(2, tokens // long))
    if count >= batch.size:
        return batch

    def cut(value: Any) -> Any:
        whole = isinstance(value, Tensor) and value.ndim > 0 and len(value) == batch.size
        return value[:count] if whole else value

    kwargs = {name: cut(value) for name, value in batch.kwargs.items()}
    return Batch(tuple(map(cut, batch.args)), kwargs, cut(batch.labels), min(count, batch.size))


def tokens_each(batch: Batch) -> int:
    """How many tokens each text of a batch has, with its padding; 0 for other data."""
    inputs = batch.inputs
    return inputs.shape[1] if inputs.dim() == TEXTS and not inputs.is_floating_point() else 0


def solve(
    small: nn.Module, model: nn.Module, coupling: Coupling, stays: Array, layers: Sequence[Solvable], batch: Batch
) -> None:
    """Least squares for every layer of `small`, in the order in which they run, so that it gives what `model` gives.

    Each layer sees what the solved layers before it give, and is asked for the original's outputs (those that stay):
    W = argmin |Y - X W'|^2 / rows + ridge |W - W_0|^2, with a bias where the layer has one and a larger ridge where the
    data has few rows. In place.
    """
    targets: dict[str, Tensor] = {}
    originals = at(model, layers)
    kept = {layer.name: _kept_outputs(coupling, stays, layer) for layer in originals}
    real = batch.real_positions()

    def keep(layer: Solvable, number: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            targets[layer.name] = layer.results(output, number, real)[:, kept[layer.name]]

        return hook

    def settle(layer: Solvable, number: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            _solve_one(layer, layer.rows(args[0], number, real).double(), targets.pop(layer.name).double())

        return hook

    _run(model, [layer.module.register_forward_hook(keep(layer, n)) for n, layer in enumerate(originals)], batch)
    own = at(small, layers)
    _run(small, [layer.module.register_forward_pre_hook(settle(layer, n)) for n, layer in enumerate(own)], batch)


def _kept_outputs(coupling: Coupling, stays: Array, layer: Solvable) -> Tensor:
    name = f"{layer.name}.weight"
    dim = next(p.outputs for p in coupling.walk.products if p.weight == name)
    labels = coupling.walk.tensors[name]
    mask = torch.ones(labels.shape[dim], dtype=torch.bool)
    for block in labels.blocks:
        if block.dims == (dim,):
            mask = torch.from_numpy(coupling.of_atoms(stays, block.atoms))
    return mask


def _solve_one(layer: Solvable, x: Tensor, y: Tensor) -> None:
    bias = getattr(layer.module, "bias", None)
    old = layer.matrix
    if not bool(x.isfinite().all() and y.isfinite().all()):
        return
    if bias is not None:
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
    second = x.T @ x / len(x)
    share = damping(len(x), x.shape[1])
    ridge = RIDGE * second.diagonal().mean() + share * second.diagonal() + 1e-12
    second = (1 - share) * second + torch.diag(ridge)
    new = torch.linalg.solve(second, (1 - share) * (x.T @ y) / len(x) + ridge[:, None] * old.T).T
    layer.assign(new)
    if bias is not None:
        with torch.no_grad():
            bias.copy_((mean_y - new @ mean_x).to(bias.dtype))


def _run(model: nn.Module, handles: Sequence[torch.utils.hooks.RemovableHandle], batch: Batch) -> None:
    try:
        with torch.no_grad():
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()


def recalibrate(small: nn.Module, wanted: Sequence[Tensor], batches: Sequence[Batch]) -> None:
    """Batch-norm statistics of the data, kept only where the outputs come nearer to the original's; in place."""
    norms = [module for module in small.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]
    if not norms:
        return
    before = [{name: value.clone() for name, value in norm.named_buffers()} for norm in norms]
    old = distance(small, wanted, batches)
    settings = [(norm, norm.momentum, norm.training) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.training = True
    with torch.no_grad():
        for batch in batches:
            call(small, batch)
    for norm, momentum, training in settings:
        norm.momentum, norm.training = momentum, training
    if not distance(small, wanted, batches) < old:
        for norm, buffers in zip(norms, before):
            for name, value in norm.named_buffers():
                value.copy_(buffers[name])


def answers(model: nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
    """The main output for each batch without what is padding, in double precision."""
    with torch.no_grad():
        return [unpadded(main_output(call(model, batch)), batch.real_positions()).double() for batch in batches]


def distance(model: nn.Module, wanted: Sequence[Tensor], batches: Sequence[Batch]) -> float:
    """Mean square of the difference to the wanted outputs, relative to their variation over the data.

    Where they do not vary (a single sample), it is relative to their size.
    """
    gap = size = whole = 0.0
    for right, found in zip(wanted, answers(model, batches)):
        gap += float((right - found).square().sum())
        size += float((right - right.mean(0)).square().sum())
        whole += float(right.square().sum())
    value = gap / max(size if size > 1e-12 * whole else whole, 1e-300)
    return value if value == value else float("inf")
