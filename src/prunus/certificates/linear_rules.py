"""Rules of linear operations: layers, batch norm, average pooling, reshaping, slicing, padding."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.certificates.pieces import Affine
from prunus.certificates.rules import Call, Value, register_rule
from prunus.operators import (
    Geometry,
    adaptive_average_pool_norm,
    average_pool_norm,
    convolution_norm,
    convolve,
    matrix_norm,
)

_CONVOLUTIONS: dict[int, Any] = {1: functional.conv1d, 3: functional.conv3d}


def _many(value: Any, axes: int) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, (list, tuple, torch.Size)) else (value,)
    return items * axes if len(items) == 1 else items


def linear(weight: Tensor, bias: Tensor | None) -> Affine:
    """A fully connected layer over the last axis."""
    return Affine(
        "linear",
        lambda w, x: functional.linear(x, w),
        matrix_norm,
        weight,
        bias,
        terms=weight.shape[1],
        scaled=lambda w, factors: w * factors[:, None],
    )


def diagonal(factors: Tensor, bias: Tensor | None = None, axis: int = 1) -> Affine:
    """A factor (and an offset) for every index of one axis, counted with the batch; batch norm in evaluation mode."""

    def apply(w: Tensor, x: Tensor) -> Tensor:
        return x * w.reshape(-1, *[1] * (x.ndim - 1 - axis))

    def norm(w: Tensor) -> float:
        return float(w.abs().max()) if w.numel() else 0.0

    return Affine("diagonal", apply, norm, factors, bias, settings=(axis,), scaled=lambda w, f: w * f)


def convolution(
    weight: Tensor,
    bias: Tensor | None,
    image: tuple[int, ...],
    *,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    circular: bool = False,
) -> Affine:
    """A convolution over an image, with zero or circular padding given per side."""
    geometry = Geometry(image, stride, padding, dilation, groups, circular)
    axes = weight.ndim - 2
    sides = [side for pair in reversed(padding) for side in pair]
    symmetric = all(left == right for left, right in padding) and not circular
    inside = tuple(left for left, _ in padding) if symmetric else (0,) * axes

    def apply(w: Tensor, x: Tensor) -> Tensor:
        if not symmetric:
            x = functional.pad(x, sides, mode="circular" if circular else "constant")
        if axes == 2:
            return convolve(x, w, stride, inside, dilation, groups)
        return _CONVOLUTIONS[axes](x, w, None, stride, inside, dilation, groups)

    return Affine(
        "convolution",
        apply,
        lambda w: convolution_norm(w, geometry),
        weight,
        None if bias is None else bias.reshape(-1, *[1] * axes),
        terms=weight[0].numel(),
        settings=(geometry,),
        scaled=lambda w, factors: w * factors.reshape(-1, *[1] * (w.ndim - 1)),
    )


def _plain(kind: str, function: Any, norm: float, terms: int = 1, settings: tuple[Any, ...] = ()) -> Affine:
    return Affine(kind, lambda _, x: function(x), lambda _: norm, terms=terms, settings=settings)


@register_rule(nn.Linear)
def _linear_module(call: Call) -> Affine:
    module: Any = call.module
    return linear(module.weight.detach(), None if module.bias is None else module.bias.detach())


@register_rule(functional.linear, "aten.linear")
def _linear_function(call: Call) -> Affine:
    weight, bias = call.get(1, "weight"), call.get(2, "bias")
    if not isinstance(weight, Tensor):
        raise call.refuse("its weight is not a parameter of the model")
    return linear(weight, bias)


@register_rule("aten.addmm")
def _addmm(call: Call) -> Affine:
    bias, weight = call.get(0, "input"), call.get(2, "mat2")
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise call.refuse("its weight is not a parameter of the model")
    return linear(weight.T, bias)


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution_module(call: Call) -> Affine:
    module: Any = call.module
    if module.padding_mode not in ("zeros", "circular"):
        raise call.refuse(f"padding mode {module.padding_mode!r} has no rule (zeros and circular have)")
    return _laid_out(
        call,
        module.weight.detach(),
        None if module.bias is None else module.bias.detach(),
        (module.stride, module.padding, module.dilation, module.groups),
        circular=module.padding_mode == "circular",
    )


@register_rule(functional.conv1d, functional.conv2d, functional.conv3d, "aten.conv1d", "aten.conv2d", "aten.conv3d")
def _convolution_function(call: Call) -> Affine:
    weight, bias = call.get(1, "weight"), call.get(2, "bias")
    if not isinstance(weight, Tensor):
        raise call.refuse("its weight is not a parameter of the model")
    settings = (
        call.get(3, "stride", 1),
        call.get(4, "padding", 0),
        call.get(5, "dilation", 1),
        call.get(6, "groups", 1),
    )
    return _laid_out(call, weight, bias, settings, circular=False)


def _laid_out(call: Call, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...], circular: bool) -> Affine:
    stride, padding, dilation, groups = settings
    axes = weight.ndim - 2
    dilation = _many(dilation, axes)
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:])]
        sides = tuple((total // 2, total - total // 2) for total in totals)
    else:
        sides = tuple((size, size) for size in _many(padding, axes))
    return convolution(
        weight,
        bias,
        call.value.shape[1:],
        stride=_many(stride, axes),
        padding=sides,
        dilation=dilation,
        groups=int(groups),
        circular=circular,
    )


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm_module(call: Call) -> Affine:
    module: Any = call.module
    if module.running_mean is None:
        raise call.refuse("batch norm without running statistics has no bound; train it with track_running_stats=True")
    return _batch_norm(call, module.weight, module.bias, module.running_mean, module.running_var, module.eps)


@register_rule(functional.batch_norm)
def _batch_norm_function(call: Call) -> Affine:
    if call.get(5, "training", False):
        raise call.refuse("batch norm in training mode has no bound; call model.eval()")
    mean, variance = call.get(1, "running_mean"), call.get(2, "running_var")
    return _batch_norm(call, call.get(3, "weight"), call.get(4, "bias"), mean, variance, call.get(7, "eps", 1e-5))


@register_rule("aten.batch_norm")
def _batch_norm_aten(call: Call) -> Affine:
    if call.get(5, "training", False):
        raise call.refuse("batch norm in training mode has no bound; call model.eval()")
    mean, variance = call.get(3, "running_mean"), call.get(4, "running_var")
    return _batch_norm(call, call.get(1, "weight"), call.get(2, "bias"), mean, variance, call.get(7, "eps", 1e-5))


def _batch_norm(call: Call, weight: Any, bias: Any, mean: Tensor, variance: Tensor, eps: float) -> Affine:
    """Folded (ledger P-31): factor gamma / sqrt(v + eps), offset beta - mean * factor."""
    factors = (torch.ones_like(mean) if weight is None else weight.detach()) / torch.sqrt(variance + eps)
    offset = (torch.zeros_like(mean) if bias is None else bias.detach()) - mean * factors
    return diagonal(factors, offset.reshape(-1, *[1] * (len(call.shape) - 1)))


@register_rule(nn.AvgPool1d, nn.AvgPool2d)
def _average_pool_module(call: Call) -> Affine:
    module: Any = call.module
    override = getattr(module, "divisor_override", None)
    return _average_pool(
        call, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad, override
    )


@register_rule(functional.avg_pool1d, functional.avg_pool2d, "aten.avg_pool1d", "aten.avg_pool2d")
def _average_pool_function(call: Call) -> Affine:
    names = (("kernel_size", None), ("stride", None), ("padding", 0), ("ceil_mode", False), ("count_include_pad", True))
    kernel, stride, padding, ceil_mode, include = (
        call.get(position + 1, name, default) for position, (name, default) in enumerate(names)
    )
    return _average_pool(call, kernel, stride, padding, ceil_mode, include, call.get(6, "divisor_override"))


def _average_pool(
    call: Call, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, override: int | None
) -> Affine:
    axes = len(call.shape) - 1
    if override is not None:
        raise call.refuse("average pooling with a divisor of its own has no rule")
    kernel, padding = _many(kernel, axes), _many(padding, axes)
    stride = _many(stride, axes) if stride not in (None, [], ()) else kernel
    norm = average_pool_norm(
        call.value.shape[1:], kernel, stride, padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad
    )
    run = functional.avg_pool1d if axes == 1 else functional.avg_pool2d

    def pool(x: Tensor) -> Tensor:
        return run(x, kernel, stride, padding, ceil_mode, count_include_pad)

    settings = (kernel, stride, padding, ceil_mode, count_include_pad)
    return _plain("average pooling", pool, norm, math.prod(kernel), settings)


@register_rule(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
@register_rule(functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d)
@register_rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d")
def _adaptive_average_pool(call: Call) -> Affine:
    image, output = call.value.shape[1:], call.shape[1:]
    run: Any = functional.adaptive_avg_pool1d if len(output) == 1 else functional.adaptive_avg_pool2d
    norm = adaptive_average_pool_norm(image, output)
    return _plain("average pooling", lambda x: run(x, output), norm, math.prod(image), (image, output))


@register_rule(torch.mean, "mean", "aten.mean")
def _mean(call: Call) -> Affine | None:
    axes = call.get(1, "dim")
    if axes is None:
        raise call.refuse("a mean over the batch has no bound; name the axes")
    rank = len(call.value.shape) + 1
    axes = sorted(axis % rank for axis in _many(axes, 1))
    if 0 in axes:
        raise call.refuse("a mean over the batch has no bound; name other axes")
    keep = bool(call.get(2, "keepdim", False))
    count = math.prod(call.value.shape[axis - 1] for axis in axes)
    norm = 1.0 / math.sqrt(count) * (1 + 1e-15)
    return _plain("mean", lambda x: x.mean(axes, keepdim=keep), norm, count, (tuple(axes), keep))


@register_rule(nn.Flatten, nn.Unflatten, torch.flatten, "flatten", "view", "reshape", torch.reshape, "unflatten")
@register_rule("squeeze", "unsqueeze", torch.squeeze, torch.unsqueeze)
@register_rule("aten.flatten", "aten.view", "aten.reshape", "aten.squeeze", "aten.unsqueeze", "aten.unflatten")
def _reshape(call: Call) -> Affine | None:
    shape = call.shape
    if math.prod(shape) != math.prod(call.value.shape):
        raise call.refuse("it moves entries between the examples of a batch")
    if shape == call.value.shape:
        return None
    return _plain("reshape", lambda x: x.reshape(x.shape[0], *shape), 1.0, 0, (shape,))


@register_rule("permute", torch.permute, "aten.permute")
def _permute(call: Call) -> Affine:
    order = call.args[1] if isinstance(call.args[1], (list, tuple)) else call.args[1:]
    axes = [axis % (len(call.shape) + 1) for axis in order]
    if axes[0] != 0:
        raise call.refuse("it moves the batch to another place")
    return _plain("permute", lambda x: x.permute(axes), 1.0, 0, (tuple(axes),))


@register_rule("transpose", torch.transpose, "aten.transpose")
def _transpose(call: Call) -> Affine:
    first, second = (int(axis) % (len(call.shape) + 1) for axis in call.args[1:3])
    if 0 in (first, second):
        raise call.refuse("it moves the batch to another place")
    return _plain("transpose", lambda x: x.transpose(first, second), 1.0, 0, (first, second))


@register_rule(operator.getitem)
def _slice(call: Call) -> Affine:
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    plain = all(isinstance(item, (int, slice)) or item is Ellipsis for item in index)
    if not plain or index[0] != slice(None):
        raise call.refuse("only slices that leave the batch alone have a rule")
    return _plain("slice", lambda x: x[index], 1.0, 0, (str(index),))


@register_rule("aten.slice")
def _aten_slice(call: Call) -> Affine | None:
    axis, start, stop, step = call.get(1, "dim", 0), call.get(2, "start"), call.get(3, "end"), call.get(4, "step", 1)
    if call.shape == call.value.shape:
        return None
    if axis == 0:
        raise call.refuse("it slices the batch")
    index = (slice(None),) * axis + (slice(start, stop, step),)
    return _plain("slice", lambda x: x[index], 1.0, 0, (str(index),))


@register_rule(nn.ZeroPad2d)
def _zero_pad_module(call: Call) -> Affine:
    module: Any = call.module
    return _padded(list(module.padding))


@register_rule(functional.pad, "aten.pad", "aten.constant_pad_nd")
def _pad(call: Call) -> Affine:
    mode, value = call.get(2, "mode", "constant"), call.get(3, "value")
    if isinstance(mode, (int, float)):
        mode, value = "constant", mode
    if mode != "constant" or (value or 0) != 0:
        raise call.refuse("only padding with zeros has a rule")
    return _padded(list(call.get(1, "pad")))


def _padded(sides: list[int]) -> Affine:
    return _plain("pad", lambda x: functional.pad(x, sides), 1.0, 0, (tuple(sides),))


@register_rule(functional.interpolate, nn.Upsample)
def _interpolate(call: Call) -> Affine | None:
    """Bilinear resizing is separable: the product of the norms of its one-dimensional factors."""
    source: Any = call.module
    mode = source.mode if source is not None else call.get(3, "mode", "nearest")
    corners = source.align_corners if source is not None else call.get(4, "align_corners")
    image, output = call.value.shape[1:], call.shape[1:]
    if mode not in ("bilinear", "nearest", "linear"):
        raise call.refuse(f"resizing in mode {mode!r} has no rule (nearest, linear and bilinear have)")
    if image == output:
        return None
    one = "linear" if mode in ("bilinear", "linear") else "nearest"
    norm = 1.0
    for size, count in zip(image, output):
        units = torch.eye(size, dtype=torch.float64)[:, None]
        options = {"align_corners": corners} if one == "linear" else {}
        norm *= matrix_norm(functional.interpolate(units, size=count, mode=one, **options).squeeze(1))
    options = {"align_corners": corners} if mode != "nearest" else {}

    def resize(x: Tensor) -> Tensor:
        return functional.interpolate(x, size=output, mode=mode, **options)

    return _plain("resize", resize, norm, 4, (output, mode, corners))


@register_rule(operator.mul, torch.mul, "mul", "aten.mul", operator.truediv, torch.div, "div", "aten.div")
def _scale(call: Call) -> Affine:
    left, right = call.get(0, "input"), call.get(1, "other")
    factor = right if isinstance(left, Value) else left
    divides = "div" in call.name
    if not isinstance(factor, (int, float)) or (divides and not isinstance(left, Value)):
        raise call.refuse("a product of two values of the graph has no rule, only one with a number")
    number = 1.0 / factor if divides else float(factor)
    return diagonal(torch.full((call.shape[0],), number, dtype=torch.float64))
