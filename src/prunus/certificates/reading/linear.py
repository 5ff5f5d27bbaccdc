"""Rules of linear operators: layers, batch norm, average pooling, sums, products with constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prunus.certificates.reading.activations import square
from prunus.certificates.reading.layers import convolution, diagonal, linear
from prunus.certificates.reading.pieces import Affine, Join, ValueProduct
from prunus.certificates.reading.rules import Call, Value, register_rule
from prunus.operators import (
    adaptive_average_pool_norm,
    average_pool_norm,
    matrix_norm,
)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, (list, tuple, torch.Size)) else (value,)
    return items * axes if len(items) == 1 else items


def plain(kind: str, function: Any, norm: float, terms: int = 1, settings: tuple[Any, ...] = ()) -> Affine:
    return Affine(kind, lambda _, x: function(x), lambda _: norm, terms=terms, settings=settings)


def scaling(factors: Tensor, bias: Tensor | None = None) -> Affine:
    """Every entry times its own factor."""

    def norm(w: Tensor) -> float:
        return float(w.abs().max()) if w.numel() else 0.0

    # A number written in the code may be rounded to half precision before it is used.
    return Affine("scaling", lambda w, x: x * w, norm, factors, bias, roundings=2)


def fitted(call: Call, value: Value) -> Value:
    """A value broadcast to the output's shape."""
    if value.shape == call.shape:
        return value
    places = torch.arange(math.prod(value.shape)).reshape(value.real)
    try:
        index = places.expand(call.real).reshape(-1)
    except RuntimeError:
        raise call.refuse("its values do not fit each other") from None
    return call.emit(gather(index, call.shape), [value], call.shape)


def gather(index: Tensor, shape: tuple[int, ...]) -> Affine:
    """Entries moved, repeated or dropped: output i is input index[i]; -1 stands for zero."""
    inputs = int(index.max()) + 1 if index.numel() else 0
    zeros = index < 0
    counts = torch.bincount(index[~zeros], minlength=max(1, inputs))
    source = index.clamp_min(0)
    keep = (~zeros).double() if bool(zeros.any()) else None

    def apply(_: Any, x: Tensor) -> Tensor:
        y = x.flatten(1)[:, source]
        return (y if keep is None else y * keep.to(y.dtype)).reshape(x.shape[0], *shape)

    norm = math.sqrt(int(counts.max())) * (1 + 1e-15) if int(counts.max()) > 1 else 1.0
    return Affine("gather", apply, lambda _: norm, terms=0, settings=(shape, hash(tuple(index.tolist()))))


def reshape(shape: tuple[int, ...]) -> Affine:
    """The same entries under another shape."""
    return plain("reshape", lambda x: x.reshape(x.shape[0], *shape), 1.0, 0, (shape,))


def constant_value(call: Call, tensor: Tensor, shape: tuple[int, ...]) -> Value:
    """A constant as a value of the graph: nothing of the input, and the constant as its bias."""
    source = call.values[0]

    def apply(_: Any, x: Tensor) -> Tensor:
        return (x.flatten(1)[:, :1] * 0.0).expand(-1, math.prod(shape)).reshape(x.shape[0], *shape)

    piece = Affine("constant", apply, lambda _: 0.0, bias=tensor.reshape(shape), terms=0, settings=(shape,))
    return call.emit(piece, [source], shape)


def _weight(call: Call, weight: Any) -> Tensor:
    if not isinstance(weight, Tensor):
        raise call.refuse("its weight depends on the input")
    if not bool(torch.isfinite(weight).all()):
        raise call.refuse("its weight is not finite")
    return weight


@register_rule("aten.linear")
def _linear(call: Call) -> Affine:
    weight, bias = _weight(call, call.get(1, "weight")), call.get(2, "bias")
    if not isinstance(call.get(0, "input"), Value) or isinstance(bias, Value):
        raise call.refuse("only its input may depend on the network's input")
    call.axis(-1)
    return linear(weight, bias)


@register_rule("aten.addmm")
def _addmm(call: Call) -> Affine:
    bias, weight = call.get(0, "self"), _weight(call, call.get(2, "mat2"))
    if not isinstance(bias, Tensor) or bias.ndim != 1 or call.kwargs.get("beta", 1) != 1:
        raise call.refuse("only a constant bias over the outputs has a rule")
    if call.kwargs.get("alpha", 1) != 1:
        raise call.refuse("a factor on the product has no rule")
    call.axis(-1)
    return linear(weight.T.contiguous(), bias)


@register_rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
def _convolution(call: Call) -> Affine:
    weight, bias = _weight(call, call.get(1, "weight")), call.get(2, "bias")
    if isinstance(bias, Value) or not isinstance(call.get(0, "input"), Value):
        raise call.refuse("only its input may depend on the network's input")
    axes = weight.ndim - 2
    if call.op.startswith("aten.convolution"):
        if call.get(6, "transposed"):
            raise call.refuse("a transposed convolution is read as aten.conv_transpose")
        groups = call.get(8, "groups", 1)
    else:
        groups = call.get(6, "groups", 1)
    stride, padding, dilation = call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(5, "dilation", 1)
    dilation = per_axis(dilation, axes)
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:])]
        sides = tuple((total // 2, total - total // 2) for total in totals)
    else:
        sides = tuple((size, size) for size in per_axis(padding, axes))
    return convolution(
        weight,
        bias,
        call.image(axes),
        stride=per_axis(stride, axes),
        padding=sides,
        dilation=dilation,
        groups=int(groups),
    )


@register_rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _transposed(call: Call) -> Affine:
    weight, bias = _weight(call, call.get(1, "weight")), call.get(2, "bias")
    axes = weight.ndim - 2
    call.image(axes)
    stride, padding = per_axis(call.get(3, "stride", 1), axes), per_axis(call.get(4, "padding", 0), axes)
    extra, groups = per_axis(call.get(5, "output_padding", 0), axes), int(call.get(6, "groups", 1))
    dilation = per_axis(call.get(7, "dilation", 1), axes)
    run: Any = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}[axes]
    shape = call.value.shape

    def apply(w: Tensor, x: Tensor) -> Tensor:
        result: Tensor = run(x, w, None, stride, padding, extra, groups, dilation)
        return result

    return Affine(
        "transposed convolution",
        apply,
        lambda w: _schur(lambda x: apply(w.abs(), x), shape),
        weight,
        None if bias is None else bias.reshape(-1, *[1] * axes),
        terms=weight.shape[0] // groups * math.prod(weight.shape[2:]),
        settings=(shape, stride, padding, extra, groups, dilation),
        roundings=math.prod(weight.shape[2:]) + 2,  # its taps are added up in the network's own type
    )


def _schur(magnitude: Any, shape: tuple[int, ...]) -> float:
    """Schur's test: the norm is at most the root of largest row sum times largest column sum of the magnitudes."""
    with torch.enable_grad():
        start = torch.ones(1, *shape, dtype=torch.float64, requires_grad=True)
        rows = magnitude(start)
        (columns,) = torch.autograd.grad(rows.sum(), start)
    return math.sqrt(float(rows.max()) * float(columns.max())) * (1 + 1e-12)


@register_rule("aten._native_batch_norm_legit_no_training", "aten.batch_norm")
def _batch_norm(call: Call) -> tuple[Value, ...] | Affine:
    """Folded (ledger P-31): factor gamma / sqrt(v + eps), offset beta - mean * factor."""
    whole = call.op.startswith("aten.batch_norm")
    weight, bias, mean, variance = (call.get(place, "") for place in (1, 2, 3, 4))
    if whole and call.get(5, "training", False):
        raise call.refuse("batch norm in training mode has no bound; call model.eval()")
    eps = float(call.get(7 if whole else 6, "eps"))
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        raise call.refuse("batch norm without running statistics has no bound")
    call.axis(1)
    factors = (torch.ones_like(mean) if weight is None else weight) / torch.sqrt(variance + eps)
    own = torch.zeros_like(mean) if bias is None else bias
    offset, size = own - mean * factors, own.abs() + (mean * factors).abs()
    wide = (-1, *[1] * (len(call.shape) - 1))
    piece = diagonal(factors, offset.reshape(wide))
    piece = replace(piece, terms=8, bias_size=size.reshape(wide))
    return piece if whole else (call.emit(piece, [call.value], call.shape), None, None)  # type: ignore[return-value]


@register_rule("aten.avg_pool1d", "aten.avg_pool2d")
def _average_pool(call: Call) -> Affine:
    names = (("kernel_size", None), ("stride", None), ("padding", 0), ("ceil_mode", False), ("count_include_pad", True))
    kernel, stride, padding, ceil_mode, include = (
        call.get(position + 1, name, default) for position, (name, default) in enumerate(names)
    )
    axes = 1 if "avg_pool1d" in call.op else 2
    if call.get(6, "divisor_override") is not None:
        raise call.refuse("average pooling with a divisor of its own has no rule")
    kernel, padding = per_axis(kernel, axes), per_axis(padding, axes)
    stride = per_axis(stride, axes) if stride not in (None, [], ()) else kernel
    norm = average_pool_norm(
        call.image(axes), kernel, stride, padding, ceil_mode=bool(ceil_mode), count_include_pad=bool(include)
    )
    run = functional.avg_pool1d if axes == 1 else functional.avg_pool2d

    def pool(x: Tensor) -> Tensor:
        return run(x, kernel, stride, padding, bool(ceil_mode), bool(include))

    return plain("average pooling", pool, norm, math.prod(kernel), (kernel, stride, padding, ceil_mode, include))


@register_rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d")
def _adaptive_average_pool(call: Call) -> Affine:
    output = call.shape[1:]
    image = call.image(len(output))
    run: Any = functional.adaptive_avg_pool1d if len(output) == 1 else functional.adaptive_avg_pool2d
    norm = adaptive_average_pool_norm(image, output)
    return plain("average pooling", lambda x: run(x, output), norm, math.prod(image), (image, output))


@register_rule("aten.mean.dim", "aten.sum.dim_IntList", "aten.mean.default", "aten.sum.default")
def _mean(call: Call) -> Affine | None:
    dims = call.get(1, "dim")
    value = call.value
    if call.op.endswith("default") or dims in (None, []):
        raise call.refuse("a mean or sum over the batch has no bound; name other axes")
    if call.kwargs.get("dtype") is not None:
        raise call.refuse("a sum in another precision has no rule")
    axes = sorted(call.axis(int(dim)) for dim in per_axis(dims, 1))
    count = math.prod(value.shape[axis - 1] for axis in axes)
    average = "mean" in call.op
    norm = (1.0 / math.sqrt(count) if average else math.sqrt(count)) * (1 + 1e-15)

    def total(x: Tensor) -> Tensor:
        return (x.mean(axes) if average else x.sum(axes)).reshape(x.shape[0], *call.shape)

    return plain("mean" if average else "sum over axes", total, norm, count, (tuple(axes), call.shape))


@register_rule("aten.upsample_bilinear2d", "aten.upsample_linear1d")
def _interpolate(call: Call) -> Affine | None:
    """Bilinear resizing is separable: the product of the norms of its one-dimensional factors."""
    axes = 1 if "linear1d" in call.op else 2
    image, output = call.image(axes), call.shape[1:]
    corners, scales = bool(call.get(2, "align_corners", False)), call.get(3, "scale_factors")
    if scales is not None and any(
        abs(s * size - count) > 1e-9 * count for s, size, count in zip(scales, image, output)
    ):
        raise call.refuse("resizing by a factor that does not give whole sizes has no rule")
    if image == output:
        return None
    norm = 1.0
    for size, count in zip(image, output):
        units = torch.eye(size, dtype=torch.float64)[:, None]
        resized = functional.interpolate(units, size=count, mode="linear", align_corners=corners)
        norm *= matrix_norm(resized.squeeze(1))
    mode = "linear" if axes == 1 else "bilinear"

    def resize(x: Tensor) -> Tensor:
        return functional.interpolate(x, size=output, mode=mode, align_corners=corners)

    pool: Any = functional.max_pool1d if axes == 1 else functional.max_pool2d
    # The places between two inputs are computed in float32, so their weights are off by an error that grows with the
    # image: it moves an output by as much of the inputs around it.
    piece = plain("resize", resize, norm, 8 + 4 * sum(image) + 4 * sum(output), (output, mode, corners))
    return replace(piece, sizes=lambda x: 2 * resize(pool(x, 3, 1, 1)))


def _operands(call: Call) -> tuple[Any, Any]:
    left, right = call.get(0, "self"), call.get(1, "other")
    return (right, left) if call.op.startswith("aten.rsub") else (left, right)


@register_rule("aten.add", "aten.sub", "aten.rsub")
def _add(call: Call) -> Value | Affine | Join:
    left, right = _operands(call)
    factor = float(call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1))
    if call.op.startswith("aten.rsub") and factor != 1.0:
        raise call.refuse("a difference with a factor has no rule")
    factor = factor if call.op.startswith("aten.add") else -factor
    if isinstance(left, Value) and isinstance(right, Value):
        other = fitted(call, right)
        if factor != 1.0:
            other = call.emit(scaling(torch.full(call.shape, factor, dtype=torch.float64)), [other], call.shape)
        return call.emit(Join("sum"), [fitted(call, left), other], call.shape)
    if isinstance(left, Value):
        return call.emit(shift(call.constant(right) * factor), [fitted(call, left)], call.shape)
    value = fitted(call, right)
    if factor == 1.0:
        return call.emit(shift(call.constant(left)), [value], call.shape)
    factors = torch.full(call.shape, factor, dtype=torch.float64)
    return call.emit(scaling(factors, call.constant(left)), [value], call.shape)


def shift(offset: Tensor) -> Affine:
    return Affine("shift", lambda _, x: x, lambda _: 1.0, bias=offset, terms=1, roundings=2)


@register_rule("aten.neg")
def _negative(call: Call) -> Affine:
    return scaling(torch.full(call.shape, -1.0, dtype=torch.float64))


@register_rule("aten.mul", "aten.div")
def _product(call: Call) -> Value:
    left, right = call.get(0, "self"), call.get(1, "other")
    if call.kwargs.get("rounding_mode") is not None:
        raise call.refuse("a division that rounds has no rule")
    divides = call.op.startswith("aten.div")
    if isinstance(left, Value) and isinstance(right, Value):
        if divides:
            raise call.refuse("a quotient of two values that depend on the input has no rule")
        if left.index == right.index and left.real == right.real:
            return call.emit(square(), [left], call.shape)
        return call.emit(ValueProduct(), [fitted(call, left), fitted(call, right)], call.shape)
    if divides and not isinstance(left, Value):
        raise call.refuse("a division by a value that depends on the input has no rule")
    value, other = (left, right) if isinstance(left, Value) else (right, left)
    factors = call.constant(other)
    if divides:
        if not bool((factors != 0).all()):
            raise call.refuse("it divides by zero")
        factors = 1.0 / factors
    return call.emit(scaling(factors), [fitted(call, value)], call.shape)


@register_rule("aten.cat")
def _concatenate(call: Call) -> Value:
    parts, dimension = call.get(0, "tensors"), int(call.get(1, "dim", 0))
    like = call.values[0]
    axis = call.axis(dimension, like)
    values = []
    for part in parts:
        if isinstance(part, Value):
            if part.varies != like.varies:
                raise call.refuse("its parts are laid out differently in the batch")
            values.append(part)
            continue
        if part.ndim != len(like.real) or not bool(torch.isfinite(part).all()):
            raise call.refuse("a constant that it joins does not fit")
        shape = tuple(size for place, size in enumerate(part.shape) if place in like.kept)
        values.append(constant_value(call, part.double(), shape))
    return call.emit(Join("concatenation", axis), values, call.shape)


@register_rule("aten.stack")
def _stack(call: Call) -> Value:
    parts, dimension = call.get(0, "tensors"), int(call.get(1, "dim", 0)) % len(call.real)
    if call.varies[dimension] or not all(isinstance(part, Value) for part in parts):
        raise call.refuse("only values of the network stacked inside each example have a rule")
    joined = (len(parts), *call.values[0].shape)
    rows = [call.emit(reshape((1, *part.shape)), [part], (1, *part.shape)) for part in parts]
    whole = call.emit(Join("concatenation", 1), rows, joined)
    kept = [place for place, (size, free) in enumerate(zip(call.real, call.varies)) if not (free and size == 1)]
    order = torch.arange(math.prod(joined)).reshape(joined).movedim(0, kept.index(dimension)).reshape(-1)
    return call.emit(gather(order, call.shape), [whole], call.shape)
