"""Rules of operators that only move entries: one rule for all of them.

Such an operator is run once on the numbers of its input's entries, which tells where every entry of the output comes
from, whatever the operator's arguments are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from prunus.certificates.reading.linear import fitted, gather, reshape, shift
from prunus.certificates.reading.pieces import Affine, Join
from prunus.certificates.reading.rules import BatchNumber, Call, Value, register_rule, stored

_UNCHANGED = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "view_as", "dropout", "feature_dropout")
_MOVES = (
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("expand", "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "roll", "flip", "narrow", "repeat"),
    *(
        "index_select",
        "index",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "movedim",
        "swapaxes",
        "diagonal",
    ),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "reflection_pad1d", "reflection_pad2d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d", "_pad_circular", "view_copy", "repeat_interleave"),
)


@register_rule(*(f"aten.{name}" for name in _UNCHANGED))
def _unchanged(call: Call) -> None:
    if "dropout" in call.op and call.get(2, "train", True):
        raise call.refuse("dropout in training mode is random; call model.eval()")


@register_rule("aten._to_copy", "aten.to")
def _cast(call: Call) -> Affine | None:
    kind = call.kwargs.get("dtype") or next((item for item in call.args if isinstance(item, torch.dtype)), None)
    if kind is not None and not kind.is_floating_point:
        raise call.refuse(f"a change to {kind} has no rule")
    if call.dtype == torch.float64:
        return None
    # One more rounding; a type that stays the same is rounded for nothing.
    return Affine("cast", lambda _, x: x, lambda _: 1.0, terms=1)


@register_rule(*(f"aten.{name}" for name in _MOVES))
def _move(call: Call) -> Any:
    if call.op == "aten.view.dtype":
        raise call.refuse("it takes the bits of numbers as numbers of another type")
    if call.op.split(".")[1] in ("roll", "flip"):
        dims = call.get(1 if "flip" in call.op else 2, "dims", ())
        if not dims:
            raise call.refuse("it moves entries between the examples of a batch")
        for dimension in dims:
            call.axis(int(dimension))
    return moved(call, 0)


@register_rule("aten.constant_pad_nd", "aten.pad")
def _pad(call: Call) -> Any:
    if call.op.startswith("aten.pad") and call.get(2, "mode", "constant") != "constant":
        return moved(call, 0)
    place = 2 if "constant_pad_nd" in call.op else 3
    return moved(call, float(call.get(place, "value", 0.0) or 0.0), place)


def moved(call: Call, fill: float, fill_place: int | None = None) -> Any:
    """The operator as a gather: `fill` is what it puts where nothing comes from the input."""
    value = call.value
    if len(call.values) != 1 or any(isinstance(item, Tensor) and item.is_floating_point() for item in call.args):
        raise call.refuse("only its input may depend on the network's input")
    numbers = torch.arange(1, math.prod(value.real) + 1, dtype=torch.float64).reshape(value.real)

    def plain(item: Any) -> Any:
        if item is value:
            return numbers
        if isinstance(item, list):
            return [plain(part) for part in item]
        return int(item) if isinstance(item, BatchNumber) else item

    args = [plain(item) for item in call.args]
    kwargs = {key: plain(item) for key, item in call.kwargs.items()}
    if fill_place is not None and fill_place < len(args):
        args[fill_place] = 0.0
    kwargs.pop("value", None)
    result = call.function(*args, **kwargs)
    if not isinstance(result, (tuple, list)):
        return _one(call, value, result, call.real, call.varies, fill)
    return tuple(
        _one(call, value, part, real, varies, fill) for part, (real, varies) in zip(result, call.outputs, strict=True)
    )


def _one(
    call: Call, value: Value, result: Tensor, real: tuple[int, ...], varies: tuple[bool, ...], fill: float
) -> Value:
    if not any(varies):
        raise call.refuse("it takes one example out of the batch")
    index = result.reshape(-1).round().long() - 1
    shape = stored(real, varies)
    order = torch.arange(math.prod(value.real))
    if index.numel() == order.numel() and torch.equal(index, order):
        if shape == value.shape:
            return Value(value.index, shape, real, varies)
        made = call.emit(reshape(shape), [value], shape)
    else:
        made = call.emit(gather(index, shape), [value], shape)
        if fill and bool((index < 0).any()):
            made = call.emit(shift((index < 0).double().reshape(shape) * fill), [made], shape)
    return Value(made.index, shape, real, varies)


@register_rule("aten.slice_scatter", "aten.select_scatter")
def _scatter(call: Call) -> Value:
    """A value with one part replaced by another: both are moved into their places and added."""
    target, source = call.args[0], call.args[1]
    if not isinstance(target, Value) or not isinstance(source, Value):
        raise call.refuse("a constant written into a part of a value has no rule")
    parts = []
    for chosen, other in ((target, source), (source, target)):
        numbers = torch.arange(1, math.prod(chosen.real) + 1, dtype=torch.float64).reshape(chosen.real)
        blank = torch.zeros(other.real, dtype=torch.float64)
        pair = (numbers, blank) if chosen is target else (blank, numbers)
        index = call.function(*pair, *call.args[2:], **call.kwargs).reshape(-1).round().long() - 1
        parts.append(call.emit(gather(index, call.shape), [chosen], call.shape))
    return call.emit(Join("sum"), parts, call.shape)


@register_rule("aten.copy")
def _copy(call: Call) -> Value:
    source = call.args[1]
    if not isinstance(source, Value):
        raise call.refuse("a constant written over a value has no rule")
    return fitted(call, source)


@register_rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _where(call: Call) -> Value:
    """A choice by a constant mask: both sides are moved into their places and added."""
    return _chosen(call, call.args[0], call.args[1], call.args[2])


@register_rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(call: Call) -> Value:
    return _chosen(call, call.args[1], call.args[2], call.args[0])


def _chosen(call: Call, mask: Any, inside: Any, outside: Any) -> Value:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise call.refuse("a choice that depends on the input has no rule")
    try:
        keep = mask.expand(call.real).reshape(-1)
    except RuntimeError:
        raise call.refuse("its mask does not fit the value") from None
    parts = []
    constant = torch.zeros(call.shape, dtype=torch.float64)
    for item, where in ((inside, keep), (outside, ~keep)):
        if isinstance(item, Value):
            wide = fitted(call, item)
            index = torch.where(where, torch.arange(where.numel()), -1)
            parts.append(call.emit(gather(index, call.shape), [wide], call.shape))
        else:
            fill = torch.as_tensor(item, dtype=torch.float64).expand(call.real).reshape(-1)
            if not bool(torch.isfinite(fill[where]).all()):
                raise call.refuse("a constant in it is not finite")
            constant = constant + torch.where(where, fill, 0.0).reshape(call.shape)
    made = parts[0] if len(parts) == 1 else call.emit(Join("sum"), parts, call.shape)
    return call.emit(shift(constant), [made], call.shape) if bool(constant.any()) else made
