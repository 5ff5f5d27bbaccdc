"""Rules of layer, group, instance and RMS norm, as the steps they are made of.

`(x - mean) / sqrt(variance + eps)`: a mean, a sum, squares, an inverse root and a product. In exact arithmetic an entry
of n is at most sqrt(n) after it, whatever the input; a clamp slightly above that limit adds this bound. What a network
computes obeys it but for rounding: torch takes `x * root - mean * root`, whose terms may be much larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from prunus.certificates.bounds.floats import UNITS, gamma
from prunus.certificates.reading import activations
from prunus.certificates.reading.attention import moved_to
from prunus.certificates.reading.linear import plain, scaling
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, ValueProduct
from prunus.certificates.reading.rules import Call, Value, register_rule


def _mean(call: Call, value: Value) -> Value:
    """The mean over the last of two axes."""
    groups, count = value.shape
    piece = plain("mean", lambda x: x.mean(-1), (1 + 1e-15) / math.sqrt(count), 2 * count + 8, ("last", groups))
    return call.emit(piece, [value], (groups,))


def _cancelling(call: Call, squares: Value, whole: Value) -> Value:
    """The mean of `squares`, computed as mean(x^2) - mean(x)^2: its rounding is in proportion to mean(x^2).

    Group norm does that where its input is laid out with channels last.
    """
    groups, count = squares.shape
    both = call.emit(
        Join("concatenation", 2), [squares, call.emit(activations.square(), [whole], whole.shape)], (groups, 2 * count)
    )
    piece = Affine(
        "mean",
        lambda _, x: x[..., :count].mean(-1),
        lambda _: (1 + 1e-15) / math.sqrt(count),
        terms=2 * count + 8,
        settings=("first", groups, count),
        sizes=lambda x: x[..., :count].mean(-1) + 3 * x[..., count:].mean(-1),
    )
    return call.emit(piece, [both], (groups,))


def _beyond(count: int, eps: float, centred: bool, cancelling: bool) -> Callable[[Tensor, torch.dtype], Tensor]:
    """How far a computed entry may be beyond sqrt(count), from the magnitudes (points, groups, count) of the inputs.

    Let g be the relative error of a sum of `count` squares, X the largest magnitude of the group, v its variance. The
    computed mean is off by at most g X, and the computed variance by g (v + 2 sqrt(v) X), or by g (v + 4 X^2) where it
    is the difference of two means. However small v is, it never makes the inverse root larger than 1 / sqrt(eps): this
    multiplies the entries by at most 1 + 2 g X / sqrt(eps), or 1 + sqrt(4 g X^2 / eps). To that come the rounding of
    the mean, of the two products and of their difference, and of the result. All of it runs in float32 or finer.
    """

    def beyond(x: Tensor, dtype: torch.dtype) -> Tensor:
        inner = dtype if dtype == torch.float64 else torch.float32
        unit, own, error = UNITS[inner], UNITS.get(dtype, 2.0**-8), gamma(2 * count + 8, inner)
        root, largest = math.sqrt(count), torch.zeros_like(x)
        if centred:
            largest = (x.amax(-1, keepdim=True) / math.sqrt(eps)).expand_as(x)
        stretched = math.sqrt(4 * error) * largest if cancelling else 2 * error * largest
        found = root * (stretched + error) + (error + 8 * unit) * largest
        return 1.01 * found * (1 + own) + 2 * own * root

    return beyond


def normalised(
    call: Call, groups: Tensor, eps: float, weight: Any, bias: Any, centred: bool = True, cancelling: bool = False
) -> Value:
    """The rows of `groups` (groups, entries), numbers of the input's entries, each brought to mean 0 and variance 1."""
    if isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("only its input may depend on the network's input")
    if not eps > 0:
        raise call.refuse("a norm without a positive eps has no bound")
    size = (int(groups.shape[0]), int(groups.shape[1]))
    whole = value = moved_to(call, call.value, groups, size)
    spread = torch.arange(size[0])[:, None].expand(size)
    if centred:
        mean = moved_to(call, _mean(call, value), spread, size)
        minus = call.emit(scaling(torch.full(size, -1.0, dtype=torch.float64)), [mean], size)
        value = call.emit(Join("sum"), [value, minus], size)
    squares = call.emit(activations.square(), [value], size)
    variance = _cancelling(call, squares, whole) if cancelling else _mean(call, squares)
    root = call.emit(activations.inverse_root(eps), [variance], (size[0],))
    limit = math.sqrt(size[1]) * 1.01
    made = call.emit(ValueProduct(), [value, moved_to(call, root, spread, size)], size)
    beyond = _beyond(size[1], eps, centred, cancelling)
    made = call.emit(replace(activations.clamp(-limit, limit), beyond=beyond), [made, whole], size)
    order = torch.empty(groups.numel(), dtype=torch.int64)
    order[groups.reshape(-1)] = torch.arange(groups.numel())
    made = moved_to(call, made, order, call.shape)
    if weight is None and bias is None:
        return made
    factors = call.constant(1.0 if weight is None else weight)
    return call.emit(scaling(factors, None if bias is None else call.constant(bias)), [made], call.shape)


def _last_axes(call: Call, shape: Any) -> Tensor:
    count = math.prod(shape)
    for axis in range(1, len(shape) + 1):
        call.axis(-axis)
    return torch.arange(math.prod(call.value.real)).reshape(-1, count)


@register_rule("aten.layer_norm")
def _layer_norm(call: Call) -> Value:
    groups = _last_axes(call, call.get(1, "normalized_shape"))
    return normalised(call, groups, float(call.get(4, "eps", 1e-5)), call.get(2, "weight"), call.get(3, "bias"))


@register_rule("aten.rms_norm")
def _rms_norm(call: Call) -> Value:
    eps = call.get(3, "eps")
    eps = torch.finfo(call.dtype).eps if eps is None else float(eps)
    groups = _last_axes(call, call.get(1, "normalized_shape"))
    return normalised(call, groups, eps, call.get(2, "weight"), None, centred=False)


def _channels(call: Call, item: Any) -> Any:
    return item if item is None else item.reshape(-1, *[1] * (len(call.real) - 2))


@register_rule("aten.group_norm", "aten.instance_norm")
def _group_norm(call: Call) -> Value:
    if not call.value.varies[0] or any(call.value.varies[1:]) or call.value.real[0] != 1:
        raise call.refuse("its input is not laid out as (batch, channels, image)")
    whole = call.op.startswith("aten.group_norm")
    if whole:
        count, weight, bias = int(call.get(1, "num_groups")), call.get(2, "weight"), call.get(3, "bias")
        eps = float(call.get(4, "eps", 1e-5))
    else:
        weight, bias, eps = call.get(1, "weight"), call.get(2, "bias"), float(call.get(7, "eps"))
        count = call.value.real[1]
        if not call.get(5, "use_input_stats"):
            raise call.refuse("instance norm with running statistics has no rule")
    groups = torch.arange(math.prod(call.value.real)).reshape(count, -1)
    return normalised(call, groups, eps, _channels(call, weight), _channels(call, bias), cancelling=whole)


@register_rule("aten.pow.Tensor_Scalar", "aten.square")
def _power(call: Call) -> Elementwise:
    if call.op.startswith("aten.pow") and call.get(1, "exponent") != 2:
        raise call.refuse("of the powers only the square has a rule")
    return activations.square()


@register_rule("aten.rsqrt")
def _rsqrt(call: Call) -> Elementwise:
    return activations.rsqrt()
