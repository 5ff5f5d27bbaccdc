"""Calling a model with a batch, and the tensor that its output is about."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters._data import Batch
from prunus.errors import BadInput, first_line


def forward_names(model: nn.Module) -> tuple[list[str], bool]:
    """The names of the arguments of the model's forward, and whether it takes any other name too."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds], any(p.kind == p.VAR_KEYWORD for p in parameters)


def as_inputs(model: nn.Module, batch: Batch, *, named: bool = True) -> Batch:
    """A batch whose labels are an input, where the model's forward says so, as that input.

    Args:
        model: any module.
        batch: as `as_batch` makes it, which takes the last of several tensors, and names such as "y", for labels.
        named: also where forward has an argument of that name which it does not need, other than "labels", which is
            for the loss.

    Returns:
        The batch; without labels where they were an input.

    Example:
        >>> import torch
        >>> class Two(torch.nn.Module):
        ...     def forward(self, u, v):
        ...         return u + v
        >>> len(as_inputs(Two(), as_batch((torch.ones(4, 2), torch.ones(4, 2)))).args)
        2
    """
    if batch.labels is None:
        return batch
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # compiled code may have none
        return batch
    needed = [
        p for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if batch.called is None:
        by_place = [p for p in needed if p.kind is not p.KEYWORD_ONLY and p.name not in batch.kwargs]
        if batch.args and len(by_place) > len(batch.args):
            return replace(batch, args=(*batch.args, batch.labels), labels=None)
    elif batch.called in parameters:
        wanted = named and batch.called != "labels"
        if wanted or any(p.name == batch.called for p in needed):
            return replace(batch, kwargs={**batch.kwargs, batch.called: batch.labels}, labels=None, called=None)
    return batch


def arguments(model: nn.Module, batch: Batch, *, labels: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) for `model`: names that its forward does not know are left out.

    If it knows none of them, the first tensor is passed by position. Numbers get the precision of the model's weights.
    Labels that the forward cannot do without are inputs. With `labels` they are passed too, where the forward takes
    them.
    """
    batch = as_inputs(model, batch, named=False) if not labels else batch
    args = tuple(as_weights(model, value) for value in batch.args)
    named = {name: as_weights(model, value) for name, value in batch.kwargs.items()}
    if not named and not labels:
        return args, {}
    names, _ = forward_names(model)
    known = {name: value for name, value in named.items() if name in names}
    if labels and batch.labels is not None and "labels" in names:
        known["labels"] = batch.labels
    if args or known.keys() - {"labels"} or not named:
        return args, known
    # A forward(**kwargs) of a wrapper takes all; a forward(x) takes the one tensor there is to give.
    if not names:
        return (), named
    return (as_weights(model, batch.inputs),), known


def as_weights(model: nn.Module, value: Any) -> Any:
    """Numbers in the precision of the model's weights; token ids, masks and other things as they are."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(next((p.dtype for p in model.parameters() if p.is_floating_point()), value.dtype))


def call(model: nn.Module, batch: Batch, *, labels: bool = False) -> Any:
    """The model's output for a batch.

    Args:
        model: any module.
        batch: as `batches` gives it.
        labels: pass the labels too, where the model's forward has an argument of that name (it then gives a loss).

    Returns:
        The model's own output; see `main_output`.

    Raises:
        BadInput: if the model does not take such inputs.
    """
    positional, named = arguments(model, batch, labels=labels)
    try:
        return model(*positional, **named)
    except (TypeError, IndexError, KeyError, AttributeError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, BadInput):
            raise
        given = [*(f"a {_shown(value)}" for value in positional), *(f"{k}={_shown(v)}" for k, v in named.items())]
        raise BadInput(
            f"The model cannot run on the data ({first_line(error).rstrip('.')}): it was given {', '.join(given)}."
        ) from error


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return type(value).__name__


def batch_loss(model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """The loss of one batch.

    Args:
        model: any module.
        batch: with labels.
        loss: a function of (outputs, labels). Without it the loss that the model computes itself, where its forward
            takes labels (a language model shifts them by one), else cross-entropy.

    Returns:
        The loss, a scalar.

    Raises:
        BadInput: if the batch has no labels, or the model does not take it.
    """
    if batch.labels is None:
        raise BadInput("The loss needs labels: pass data that give (inputs, labels), or dicts with labels.")
    output = call(model, batch, labels=loss is None)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(own, Tensor):
        return own
    outputs = main_output(output)
    try:
        return (loss or nn.functional.cross_entropy)(outputs, batch.labels)
    except (IndexError, RuntimeError, ValueError) as error:  # torch's errors for labels that do not fit
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"The loss cannot be computed ({first_line(error)}): the outputs have shape {tuple(outputs.shape)}, the "
            f"labels {_described(batch.labels)}."
        ) from error


def _described(labels: Tensor) -> str:
    shape = f"shape {tuple(labels.shape)}"
    whole = labels.numel() and not labels.is_floating_point()
    return f"{shape} and run from {int(labels.min())} to {int(labels.max())}" if whole else shape


def check_finite(batch: Batch) -> Batch:
    """Refuse a batch that holds NaN or infinity: nothing computed from it would mean anything.

    Args:
        batch: any batch. Masks may hold -inf, so what has "mask" in its name is passed over.

    Returns:
        The batch.

    Raises:
        BadInput: if a number is not finite.

    Example:
        >>> import torch
        >>> check_finite(as_batch(torch.zeros(3, 4))).size
        3
    """
    named = [value for name, value in batch.kwargs.items() if "mask" not in name]
    for value in (*batch.args, *named):
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            count = int((~torch.isfinite(value)).sum())
            raise BadInput(f"The data holds {count} NaN or infinite values in one batch: repair it or leave it out.")
    return batch


_MAIN = ("logits", "sentence_embedding", "last_hidden_state", "prediction_logits", "pooler_output")


def main_output(output: Any) -> Tensor:
    """The one tensor that an output is about: logits, else the last hidden state, else the first tensor.

    Args:
        output: a tensor, a record of transformers, a dict, or a tuple.

    Returns:
        The tensor.

    Raises:
        BadInput: if there is none.

    Example:
        >>> import torch
        >>> main_output({"loss": torch.tensor(1.0), "logits": torch.zeros(2, 3)}).shape
        torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    for name in _MAIN:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = [value for name, value in output.items() if name != "loss"]
    elif isinstance(output, (tuple, list)):
        parts = output
    for part in parts:
        if isinstance(part, (Tensor, Mapping, tuple, list)):
            return main_output(part)
    raise BadInput(
        f"The model answers with {type(output).__name__}; pass a model whose output is a tensor, a tuple, or a record "
        "with logits or last_hidden_state."
    )


def output_tensors(output: Any) -> list[Tensor]:
    """Every floating-point tensor in an output, in order; caches and other objects are left out."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    return [tensor for part in _parts(output) for tensor in output_tensors(part)]


def _parts(output: Any) -> Iterable[Any]:
    """What lies in a mapping, a tuple, a list or a dataclass; nothing else is opened."""
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, (tuple, list)):
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in dataclasses.fields(output)]
    return vars(output).values() if isinstance(output, SimpleNamespace) else ()
