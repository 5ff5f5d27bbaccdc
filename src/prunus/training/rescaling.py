"""The 1/sqrt(density) rescaling of pruned layers (ledger K-5), and batch-norm statistics after pruning."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from prunus.adapters import Batch, call, check_finite, main_output
from prunus.adapters import batches as adapted
from prunus.contract import Masks
from prunus.data import Labelled
from prunus.errors import BadInput, first_line
from prunus.layers import prunable_weights, require_module
from prunus.training.batches import augmentation, generator
from prunus.training.objective import loss_of

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MARGIN = 0.1
"""By how much new statistics must fit better where neither labels nor the augmentation of training are known."""


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
    its black as the border. Plain images would have other statistics and cost a trained ResNet-20 three points.

    Of the old and the new ones, those stay that do better on other samples, held aside and taken as they come;
    `model.recalibrated` says which, and why. With labels or a teacher the smaller loss is better. Without, the smaller
    error of normalisation is: a batch norm ought to give each channel mean 0 and deviation 1, and the error is the mean
    over channels and layers of mean^2 + (deviation - 1)^2 as they come out. Both judge by the samples you give: pass
    such as the network will meet.

    Without labels, name the augmentation of training; if it is not named, the new statistics must win by 0.1. On a
    trained ResNet-20 those of plain images win by 0.02 (by 0.08 with 50 % zeros) and yet cost three points, as training
    saw cropped ones; with 60 % zeros they win by 0.11 and give five points more, with 70 % by 0.21 and give twenty.
    Where nothing can be compared the old ones stay.

    Weights and the mode of the model are left alone, and after an error the statistics are what they were. A model
    without batch norm stays as it is.

    Args:
        model: changed in place.
        data: anything that `prunus.adapters.batches` reads, with labels or without.
        batches: how many are measured; as many more are held aside, fewer where the data end. Of few data, every other
            sample is held aside.
        batch_size: samples in a batch, where the data do not come in batches.
        augment: "own" (crop and flip for images of the data sets of Prunus, nothing else), "none", "crop-flip",
            "resized-crop-flip", or a function of (inputs, generator).
        teacher: the dense network: its outputs take the place of labels.
        seed: of the order and of the augmentation.

    Returns:
        The model.

    Raises:
        BadInput: if batches or batch_size is no whole number of at least one, the data are empty or do not fit the
            model, or the data or what a batch norm is given holds NaN or infinity.

    Example:
        >>> import prunus
        >>> model = prunus.models.make("resnet20:width=0.25", seed=0)
        >>> images = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
        >>> recalibrate(model, images, batches=1, batch_size=32).recalibrated.split()[1:3]
        ['statistics', 'kept']
    """
    _check_arguments(model, data, batches, batch_size, teacher)
    norms = _norms(model)
    if not norms:
        model.recalibrated = "nothing to measure: no batch norm keeps statistics"  # type: ignore[assignment]
        return model
    found = [check_finite(batch) for batch in adapted(data, batch_size, limit=2 * batches, shuffle=True, seed=seed)]
    measured, aside = _shared(found, batches)
    inner = data
    while isinstance(inner, Subset):
        inner = inner.dataset
    own = "crop-flip" if isinstance(augment, str) and augment == "own" and _pictures(inner, found[0]) else augment
    change = augmentation(own, inner)
    labelled = teacher is not None or all(batch.labels is not None for batch in aside)
    margin = _MARGIN if not labelled and own == "own" else 0.0
    if not measured or sum(batch.size for batch in aside) < (1 if labelled else 2):
        told = "too few samples in a batch: nothing could be measured and compared"
        model.recalibrated = f"old statistics kept ({told})"  # type: ignore[assignment]
        return model

    def judge() -> float:
        return _loss(model, aside, teacher, _device(norms)) if labelled else _misfit(model, norms, aside)

    still = nullcontext() if teacher is None else _restored(teacher, {})
    with still, _restored(model, norms) as old, torch.no_grad():
        before = judge()
        _measure(model, norms, measured, change, seed)
        _put_back(norms, {name: old[name] for name, norm in norms.items() if not norm.num_batches_tracked})
        _check_statistics(norms)
        after = judge()
        better = math.isfinite(after) and not before - after <= margin  # old ones that are NaN or infinite lose
        if not better:
            _put_back(norms, old)
    what = "loss" if labelled else "error of normalisation"
    told = f"{what} {after:.4g} with the new ones, {before:.4g} with the old"
    if margin:
        told += f"; without labels and augmentation the new ones must win by {margin:g}"
    model.recalibrated = f"{'new' if better else 'old'} statistics kept ({told})"  # type: ignore[assignment]
    return model


def _check_arguments(model: Any, data: Any, batches: Any, batch_size: Any, teacher: Any) -> None:
    require_module(model)
    if teacher is not None:
        require_module(teacher)
    for name, value in (("batches", batches), ("batch_size", batch_size)):
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
            raise BadInput(f"{name} is {value!r}; it must be a whole number of at least one.")
    if data is None:
        raise BadInput("recalibrate needs data to measure statistics on: give a data set, a loader or a tensor.")


def _norms(model: nn.Module) -> dict[str, Any]:
    """The batch norms that keep statistics, by name."""
    kind = nn.modules.batchnorm._BatchNorm
    found = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    return {name: norm for name, norm in found.items() if norm.track_running_stats and norm.running_mean is not None}


def _shared(found: list[Batch], batches: int) -> tuple[list[Batch], list[Batch]]:
    """(those to measure, those held aside); statistics need two samples."""
    count = batches if len(found) > batches else max(1, len(found) // 2)
    measured, aside = found[:count], found[count:]
    if 4 * sum(batch.size for batch in aside) < sum(batch.size for batch in measured):
        measured, aside = ([batch.every(start, 2) for batch in found] for start in (0, 1))
    return [batch for batch in measured if batch.size > 1], [batch for batch in aside if batch.size]


def _pictures(data: Any, batch: Batch) -> bool:
    """Images of one of our data sets in colour: those are trained with crops and flips."""
    return isinstance(data, Labelled) and batch.inputs.dim() == 4 and batch.inputs.shape[1] == 3


@contextmanager
def _restored(model: nn.Module, norms: Mapping[str, Any]) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Inside, the model evaluates; gives the statistics of the norms, which come back where an error leaves the block.

    The modes and the momenta always come back.
    """
    modes, momenta = [(module, module.training) for module in model.modules()], [n.momentum for n in norms.values()]
    old = {name: {key: value.clone() for key, value in norm.named_buffers()} for name, norm in norms.items()}
    try:
        model.eval()
        yield old
    except BaseException:
        _put_back(norms, old)
        raise
    finally:
        for norm, momentum in zip(norms.values(), momenta):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training


def _put_back(norms: Mapping[str, Any], values: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Set the statistics of the norms that are named in `values`."""
    with torch.no_grad():
        for name, buffers in values.items():
            for key, value in buffers.items():
                norms[name].get_buffer(key).copy_(value)


def _measure(model: nn.Module, norms: Mapping[str, Any], measured: list[Batch], change: Any, seed: int) -> None:
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.training = True
    for number, batch in enumerate(measured):
        if change is not None:
            batch = check_finite(_changed(batch, change, generator(seed, "recalibrate", number)))
        call(model, batch.to(_device(norms)))
    for norm in norms.values():
        norm.training = False


def _changed(batch: Batch, change: Any, source: torch.Generator) -> Batch:
    """The batch with its first tensor augmented."""
    before = batch.inputs
    after = change(before, source)
    if not isinstance(after, Tensor):
        raise BadInput(f"augment gave {type(after).__name__}: it must return the changed inputs, a tensor.")
    named = {name: after if value is before else value for name, value in batch.kwargs.items()}
    return replace(batch, args=tuple(after if value is before else value for value in batch.args), kwargs=named)


def _check_statistics(norms: Mapping[str, Any]) -> None:
    for name, norm in norms.items():
        if norm.num_batches_tracked and not bool((norm.running_mean.isfinite() & norm.running_var.isfinite()).all()):
            raise BadInput(
                f"The batch norm {name or type(norm).__name__} is given NaN or infinite values: check the weights "
                "before it and the scale of the data; the statistics were left as they are."
            )


def _loss(model: nn.Module, aside: list[Batch], teacher: nn.Module | None, device: torch.device) -> float:
    """The mean loss on the batches held aside."""
    total, count = 0.0, 0
    for batch in aside:
        batch = batch.to(device)
        outputs = main_output(call(model, batch))
        wanted = batch.labels if teacher is None else main_output(call(teacher, batch))
        assert wanted is not None
        if teacher is not None and wanted.shape != outputs.shape:
            raise BadInput(
                f"The teacher's outputs have shape {tuple(wanted.shape)}, the model's {tuple(outputs.shape)}: give a "
                "teacher with the same outputs."
            )
        try:
            loss = loss_of("auto" if teacher is None else "mse", outputs, wanted)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(
                f"The loss cannot be computed ({first_line(error)}): give labels that fit outputs of shape "
                f"{tuple(outputs.shape)}, or none."
            ) from error
        total, count = total + float(loss) * batch.size, count + batch.size
    return total / count


def _misfit(model: nn.Module, norms: Mapping[str, Any], aside: list[Batch]) -> float:
    """How far the normalised channels are from mean 0 and deviation 1 on the batches held aside.

    mean^2 + (deviation - 1)^2 is the squared Wasserstein distance to the standard normal distribution. A channel that
    never varies (all its weights are pruned) counts by its mean alone: no deviation changes what it gives.
    """
    sums: dict[str, list[Any]] = {name: [0, 0.0, 0.0] for name in norms}

    def watch(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            norm, x = norms[name], inputs[0].detach().transpose(0, 1).flatten(1).double()
            x = x - norm.running_mean.double()[:, None]
            held = sums[name]
            held[0], held[1], held[2] = held[0] + x.shape[1], held[1] + x.sum(1), held[2] + x.square().sum(1)

        return hook

    handles = [norm.register_forward_pre_hook(watch(name)) for name, norm in norms.items()]
    try:
        for batch in aside:
            call(model, batch.to(_device(norms)))
    finally:
        for handle in handles:
            handle.remove()
    errors = []
    for name, (count, first, second) in sums.items():
        if count:
            norm = norms[name]
            assumed = norm.running_var.double() + norm.eps
            mean = first / count
            variance = (second / count - mean.square()).clamp_min(0.0)
            spread = (((variance + norm.eps) / assumed).sqrt() - 1.0).square()
            spread[variance <= 1e-9 * (mean.square() + assumed)] = 0.0
            errors.append((mean.square() / assumed + spread).mean())
    return float(torch.stack(errors).mean()) if errors else math.nan


def _device(norms: Mapping[str, Any]) -> torch.device:
    device: torch.device = next(iter(norms.values())).running_mean.device
    return device
