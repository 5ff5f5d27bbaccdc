"""The 1/sqrt(density) rescaling of pruned layers (ledger K-5), and batch-norm statistics after pruning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from prunus.adapters import Batch, call, main_output
from prunus.adapters import batches as adapted
from prunus.contract import Masks
from prunus.data import Labelled
from prunus.errors import BadInput
from prunus.layers import prunable_weights
from prunus.training.batches import augmentation, generator
from prunus.training.objective import loss_of

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@contextmanager
def rescaled(model: nn.Module, masks: Masks) -> Iterator[nn.Module]:
    """Inside, each masked layer computes W x / sqrt(density) + b; on leaving the factor is folded into its weights.

    Rescaling the weights themselves and training on is not the same (K-5): the gradient would lack the factor, and the
    tangent kernel would not be that of the dense network. Here the factor multiplies the layer's input, so it enters
    the derivative too. The masks are applied on entering; hold them with `fit(..., masks=masks)`.

    Args:
        model: A model of linear and convolution layers; it is changed.
        masks: Masks of such layers.

    Returns:
        A context manager that gives the model.

    Raises:
        BadInput: A masked weight belongs to another kind of layer, or a layer has no weight left.

    Example:
        >>> layer = torch.nn.Linear(4, 2, bias=False)
        >>> x = torch.ones(1, 4)
        >>> with prunus.training.rescaled(layer, prunus.find_masks(layer, 0.75)):
        ...     inside = layer(x)
        >>> torch.allclose(layer(x), inside)
        True
    """
    weights = prunable_weights(model)
    masks.apply_(model)
    factors: list[tuple[nn.Parameter, float]] = []
    handles = []
    for row in masks.layers:
        weight = weights.get(row.name)
        if weight is None or not isinstance(weight.module, _LINEAR):
            raise BadInput(f"{row.name} is no weight of a linear or convolution layer: rescaled knows only these.")
        if row.kept == 0:
            raise BadInput(f"The masks leave no weight in {row.name}: its density is 0 and cannot be rescaled.")
        factor = 1.0 / math.sqrt(row.kept / row.total)
        factors.append((model.get_parameter(row.name), factor))
        handles.append(weight.module.register_forward_pre_hook(_scale_input(factor)))
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for parameter, factor in factors:
                parameter.mul_(factor)


def _scale_input(factor: float) -> Callable[[nn.Module, Any], Any]:
    def hook(module: nn.Module, inputs: Any) -> Any:
        return (inputs[0] * factor, *inputs[1:])

    return hook


def recalibrate(
    model: nn.Module,
    data: Any,
    batches: int = 10,
    batch_size: int = 128,
    *,
    augment: str | Callable[[Tensor, torch.Generator], Tensor] = "own",
    teacher: nn.Module | None = None,
    seed: int = 0,
) -> nn.Module:
    """Measure batch-norm statistics anew where that makes the model better; returns the model.

    Statistics are those of what training saw: images of a data set of Prunus are cropped and mirrored as usual, with
    its black as the border. Plain images would have other statistics and cost a trained ResNet-20 three points. Of the
    old and the new ones, those stay that give the smaller loss on as many other batches, held aside and taken as they
    come; `model.recalibrated` says which. Weights and the mode of the model are left alone, and a
    model without batch norm is returned as it is.

    Args:
        model: changed in place.
        data: anything that `prunus.adapters.batches` reads. Without labels (and without a teacher) nothing can be
            compared, and the new statistics are taken.
        batches: how many are measured; as many more are held aside, fewer where the data end.
        batch_size: samples in a batch, where the data do not come in batches.
        augment: "own" (crop and flip for images of the data sets of Prunus, nothing else), "none", "crop-flip",
            "resized-crop-flip", or a function of (inputs, generator).
        teacher: the dense network: its outputs take the place of labels.
        seed: of the order and of the augmentation.

    Returns:
        The model.

    Raises:
        BadInput: if batches is less than one, or the data are empty.

    Example:
        >>> import prunus
        >>> model = prunus.models.make("resnet20:width=0.25", seed=0)
        >>> images = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
        >>> recalibrate(model, images, batches=1, batch_size=32).recalibrated.split()[1:3]
        ['statistics', 'kept']
    """
    if batches < 1:
        raise BadInput(f"batches is {batches!r}; at least one is needed to measure statistics.")
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    found = list(adapted(data, size=batch_size, limit=2 * batches, shuffle=True, seed=seed))
    # Data for no more than `batches` are shared between measuring and comparing, unless there is a single batch.
    count = batches if len(found) > batches else max(1, len(found) // 2)
    measured, aside = found[:count], found[count:]
    change = augmentation("crop-flip" if augment == "own" and _pictures(data, found[0]) else augment, data)
    still = nullcontext() if teacher is None else _kept_modes(teacher, [])
    with _kept_modes(model, norms), still, torch.no_grad():
        old = _statistics(norms)
        before = _losses(model, aside, teacher)
        _measure(model, norms, measured, change, seed)
        after = _losses(model, aside, teacher)
        better = before is None or after is None or after < before
        if not better:
            _set(norms, old)
    told = "" if before is None else f" (loss {after:.4g} with the new ones, {before:.4g} with the old)"
    model.recalibrated = f"{'new' if better else 'old'} statistics kept{told}"  # type: ignore[assignment]
    return model


def _pictures(data: Any, batch: Batch) -> bool:
    """Images of one of our data sets in colour: those are trained with crops and flips."""
    inner = data.dataset if isinstance(data, Subset) else data
    return isinstance(inner, Labelled) and batch.inputs.dim() == 4 and batch.inputs.shape[1] == 3


@contextmanager
def _kept_modes(model: nn.Module, norms: list[Any]) -> Iterator[None]:
    modes, momenta = [(module, module.training) for module in model.modules()], [norm.momentum for norm in norms]
    model.eval()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training


def _measure(model: nn.Module, norms: list[Any], measured: list[Batch], change: Any, seed: int) -> None:
    device = next(model.parameters()).device
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.training = True
    for number, batch in enumerate(measured):
        if batch.size < 2:
            continue
        if change is not None:
            inputs = change(batch.inputs, generator(seed, "recalibrate", number))
            batch = Batch((inputs, *batch.args[1:]), batch.kwargs, batch.labels, batch.size)
        call(model, batch.to(device))
    for norm in norms:
        norm.training = False


def _losses(model: nn.Module, aside: list[Batch], teacher: nn.Module | None) -> float | None:
    """The mean loss on the batches held aside; None where there is nothing to compare with."""
    if not aside or (teacher is None and any(batch.labels is None for batch in aside)):
        return None
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for batch in aside:
        batch = batch.to(device)
        outputs = main_output(call(model, batch))
        if teacher is not None:
            loss = torch.nn.functional.mse_loss(outputs, main_output(call(teacher, batch)))
        else:
            assert batch.labels is not None
            loss = loss_of("auto", outputs, batch.labels)
        total, count = total + float(loss) * batch.size, count + batch.size
    return total / count


def _statistics(norms: list[Any]) -> list[tuple[Tensor, ...]]:
    return [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]


def _set(norms: list[Any], values: list[tuple[Tensor, ...]]) -> None:
    for norm, (mean, variance) in zip(norms, values):
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
