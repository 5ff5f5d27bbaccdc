"""Rules of everything that is not linear: activations, max pooling, softmax, sums, concatenation, no-ops."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.certificates import activations
from prunus.certificates.linear_rules import _many
from prunus.certificates.pieces import Affine, Elementwise, Join, Lipschitz
from prunus.certificates.rules import Call, Value, register_rule
from prunus.operators import max_pool_lipschitz


@register_rule(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
@register_rule("contiguous", "clone", "detach", torch.clone)
@register_rule("aten.contiguous", "aten.clone", "aten.detach", "aten.alias", "aten.lift_fresh_copy")
def _unchanged(call: Call) -> None:
    return None


@register_rule(functional.dropout, functional.dropout2d, "aten.dropout", "aten.feature_dropout")
def _dropout(call: Call) -> None:
    train = call.args[2] if len(call.args) > 2 else call.kwargs.get("training", call.kwargs.get("train", True))
    if train:
        raise call.refuse("dropout in training mode is random; call model.eval()")
    return None


@register_rule(nn.ReLU, torch.relu, torch.relu_, functional.relu, "relu", "relu_", "aten.relu", "aten.relu_")
def _relu(call: Call) -> Elementwise:
    return activations.relu()


@register_rule(nn.ReLU6, functional.relu6)
def _relu6(call: Call) -> Elementwise:
    return activations.relu6()


@register_rule("aten.hardtanh", "aten.hardtanh_")
def _hardtanh(call: Call) -> Elementwise:
    if (call.get(1, "min_val", -1), call.get(2, "max_val", 1)) != (0, 6):
        raise call.refuse("a clamp to other limits than 0 and 6 has no rule")
    return activations.relu6()


@register_rule(nn.LeakyReLU, functional.leaky_relu, "aten.leaky_relu", "aten.leaky_relu_")
def _leaky(call: Call) -> Elementwise:
    module: Any = call.module
    slope = module.negative_slope if module is not None else call.get(1, "negative_slope", 0.01)
    return activations.leaky_relu(float(slope))


@register_rule(nn.ELU, functional.elu, "aten.elu", "aten.elu_")
def _elu(call: Call) -> Elementwise:
    module: Any = call.module
    return activations.elu(float(module.alpha if module is not None else call.get(1, "alpha", 1.0)))


@register_rule(nn.SiLU, functional.silu, "aten.silu", "aten.silu_")
def _silu(call: Call) -> Elementwise:
    return activations.silu()


@register_rule(nn.GELU, functional.gelu, "aten.gelu")
def _gelu(call: Call) -> Elementwise:
    module: Any = call.module
    return activations.gelu(module.approximate if module is not None else call.get(1, "approximate", "none"))


@register_rule(nn.Tanh, torch.tanh, functional.tanh, "tanh", "aten.tanh")
def _tanh(call: Call) -> Elementwise:
    return activations.tanh()


@register_rule(nn.Sigmoid, torch.sigmoid, functional.sigmoid, "sigmoid", "aten.sigmoid")
def _sigmoid(call: Call) -> Elementwise:
    return activations.sigmoid()


@register_rule(nn.Softplus, functional.softplus)
def _softplus(call: Call) -> Elementwise:
    module: Any = call.module
    settings = (module.beta, module.threshold) if module is not None else (call.get(1, "beta", 1), call.get(2, "t", 20))
    if settings[0] != 1:
        raise call.refuse("softplus with a beta other than 1 has no rule")
    return activations.softplus()


@register_rule(nn.MaxPool1d, nn.MaxPool2d)
def _max_pool_module(call: Call) -> Lipschitz:
    module: Any = call.module
    return _max_pool(call, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)


@register_rule(functional.max_pool1d, functional.max_pool2d, "aten.max_pool1d", "aten.max_pool2d")
def _max_pool_function(call: Call) -> Lipschitz:
    names = (("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1), ("ceil_mode", False))
    return _max_pool(call, *(call.get(place + 1, name, default) for place, (name, default) in enumerate(names)))


def _max_pool(call: Call, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Lipschitz:
    axes = len(call.shape) - 1
    kernel, padding, dilation = (_many(item, axes) for item in (kernel, padding, dilation))
    stride = _many(stride, axes) if stride not in (None, [], ()) else kernel
    run: Any = functional.max_pool1d if axes == 1 else functional.max_pool2d

    def pool(x: Tensor) -> Tensor:
        result: Tensor = run(x, kernel, stride, padding, dilation, ceil_mode)
        return result

    constant = max_pool_lipschitz(kernel, stride, dilation)
    return _windowed(pool, constant, (kernel, stride, padding, dilation, ceil_mode))


def _windowed(pool: Any, constant: float, settings: tuple[Any, ...]) -> Lipschitz:
    """Maxima over windows: monotone, and changes of the inputs move a maximum within their own range."""
    return Lipschitz(
        "max pooling",
        pool,
        constant,
        bounds=lambda low, high: (pool(low), pool(high)),
        change=lambda low, high: (-pool(-low), pool(high)),
        settings=settings,
    )


@register_rule(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
@register_rule(functional.adaptive_max_pool1d, functional.adaptive_max_pool2d)
def _adaptive_max_pool(call: Call) -> Lipschitz:
    image, output = call.value.shape[1:], call.shape[1:]
    run: Any = functional.adaptive_max_pool1d if len(output) == 1 else functional.adaptive_max_pool2d
    shared = 1
    for size, count in zip(image, output):
        cover = torch.zeros(size, dtype=torch.int64)
        for window in range(count):
            cover[window * size // count : -((-(window + 1) * size) // count)] += 1
        shared *= int(cover.max())
    return _windowed(lambda x: run(x, output), shared**0.5, (image, output))


@register_rule(nn.Softmax, functional.softmax, torch.softmax, "softmax", "aten.softmax", "aten._softmax")
def _softmax(call: Call) -> Lipschitz:
    """Half-Lipschitz in the 2-norm (ledger P-31), along any axis."""
    module: Any = call.module
    axis = module.dim if module is not None else call.get(1, "dim")
    if axis is None or axis % (len(call.shape) + 1) == 0:
        raise call.refuse("softmax needs an axis other than the batch")
    axis = axis % (len(call.shape) + 1)

    def bounds(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        shape = torch.softmax(low, axis).shape
        return low.new_zeros(shape), low.new_ones(shape)

    return Lipschitz("softmax", lambda x: torch.softmax(x, axis), 0.5, bounds=bounds, settings=(axis,))


@register_rule(operator.add, operator.iadd, torch.add, "add", "add_", "aten.add", "aten.add_")
def _add(call: Call) -> Join | Affine:
    if call.kwargs.get("alpha", 1) != 1:
        raise call.refuse("a sum with a factor has no rule")
    left, right = call.get(0, "input"), call.get(1, "other")
    if isinstance(left, Value) and isinstance(right, Value):
        if left.shape != right.shape:
            raise call.refuse("a sum of values of different shapes has no rule")
        return Join("sum")
    offset = right if isinstance(left, Value) else left
    shift = torch.as_tensor(offset, dtype=torch.float64)
    if shift.ndim > len(call.shape) or tuple(torch.broadcast_shapes(shift.shape, call.shape)) != call.shape:
        raise call.refuse("the constant that is added does not fit the value")
    return Affine("shift", lambda _, x: x, lambda _: 1.0, bias=shift.expand(call.shape), terms=0)


@register_rule(torch.cat, torch.concat, "aten.cat")
def _concatenate(call: Call) -> Join:
    axis = int(call.get(1, "dim", 0)) % (len(call.shape) + 1)
    if axis == 0:
        raise call.refuse("it joins examples of the batch")
    return Join("concatenation", axis)
