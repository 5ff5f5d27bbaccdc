"""Rules of everything that is not linear: activations, maxima, softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prunus.certificates.reading import activations
from prunus.certificates.reading.linear import fitted, per_axis, scaling
from prunus.certificates.reading.pieces import Elementwise, Join, Lipschitz
from prunus.certificates.reading.rules import Call, Value, register_rule
from prunus.operators import max_pool_lipschitz


@register_rule("aten.relu")
def _relu(call: Call) -> Elementwise:
    return activations.relu()


@register_rule("aten.hardtanh", "aten.clamp", "aten.relu6", "aten.clamp_min", "aten.clamp_max")
def _clamp(call: Call) -> Elementwise:
    name = call.op.split(".")[1]
    low, high = {"hardtanh": (-1.0, 1.0), "relu6": (0.0, 6.0)}.get(name, (None, None))
    if name in ("hardtanh", "clamp"):
        low, high = call.get(1, "min_val" if name == "hardtanh" else "min", low), call.get(2, "max", high)
        high = call.kwargs.get("max_val", high)
    elif name == "clamp_min":
        low = call.get(1, "min")
    elif name == "clamp_max":
        high = call.get(1, "max")
    if any(isinstance(limit, (Tensor, Value)) for limit in (low, high)):
        raise call.refuse("limits that are tensors have no rule")
    if low is not None and high is not None and not low < high:
        raise call.refuse("its lower limit is not below its upper limit")
    return activations.clamp(low, high)


@register_rule("aten.leaky_relu")
def _leaky(call: Call) -> Elementwise:
    return activations.leaky_relu(float(call.get(1, "negative_slope", 0.01)))


@register_rule("aten.elu")
def _elu(call: Call) -> Elementwise:
    if (call.get(2, "scale", 1), call.get(3, "input_scale", 1)) != (1, 1):
        raise call.refuse("an ELU with scales (SELU, CELU) has no rule")
    return activations.elu(float(call.get(1, "alpha", 1.0)))


@register_rule("aten.silu")
def _silu(call: Call) -> Elementwise:
    return activations.silu()


@register_rule("aten.gelu")
def _gelu(call: Call) -> Elementwise:
    return activations.gelu(call.kwargs.get("approximate", "none"))


@register_rule("aten.tanh")
def _tanh(call: Call) -> Elementwise:
    return activations.tanh()


@register_rule("aten.sigmoid")
def _sigmoid(call: Call) -> Elementwise:
    return activations.sigmoid()


@register_rule("aten.hardswish")
def _hardswish(call: Call) -> Elementwise:
    return activations.hardswish()


@register_rule("aten.hardsigmoid")
def _hardsigmoid(call: Call) -> Elementwise:
    return activations.hardsigmoid()


@register_rule("aten.softplus")
def _softplus(call: Call) -> Elementwise:
    if call.get(1, "beta", 1) != 1:
        raise call.refuse("softplus with a beta other than 1 has no rule")
    threshold = float(call.get(2, "threshold", 20))
    if threshold < 20:
        raise call.refuse("softplus jumps at a threshold below 20, so it has no rule")
    return activations.softplus(threshold)


@register_rule("aten.prelu")
def _prelu(call: Call) -> Value:
    """relu(x) - a relu(-x), with a slope of its own for every channel in each network."""
    value, slopes = call.get(0, "self"), call.get(1, "weight")
    if not isinstance(slopes, Tensor) or not isinstance(value, Value):
        raise call.refuse("only its input may depend on the network's input")
    wide = slopes if slopes.numel() == 1 else slopes.reshape(-1, *[1] * (len(call.real) - 2))
    negative = call.emit(scaling(torch.full(call.shape, -1.0, dtype=torch.float64)), [value], call.shape)
    right = call.emit(activations.relu(), [value], call.shape)
    left = call.emit(activations.relu(), [negative], call.shape)
    left = call.emit(scaling(-call.constant(wide)), [left], call.shape)
    return call.emit(Join("sum"), [right, left], call.shape)


@register_rule("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool2d_with_indices", "aten.max_pool1d_with_indices")
def _max_pool(call: Call) -> Lipschitz | tuple[Value, None]:
    names = (("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1), ("ceil_mode", False))
    given = [call.get(place + 1, name, default) for place, (name, default) in enumerate(names)]
    axes = 1 if "max_pool1d" in call.op else 2
    call.image(axes)
    kernel, padding, dilation = (per_axis(given[place], axes) for place in (0, 2, 3))
    stride = per_axis(given[1], axes) if given[1] not in (None, [], ()) else kernel
    run: Any = functional.max_pool1d if axes == 1 else functional.max_pool2d

    def pool(x: Tensor) -> Tensor:
        result: Tensor = run(x, kernel, stride, padding, dilation, bool(given[4]))
        return result

    constant = max_pool_lipschitz(kernel, stride, dilation)
    piece = _windowed(
        pool, constant, (kernel, stride, padding, dilation, bool(given[4])), _windows(call, kernel, dilation)
    )
    return (call.emit(piece, [call.value], call.shape), None) if "with_indices" in call.op else piece


def _windows(call: Call, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Which inputs each maximum reads, (outputs, taps), -1 outside of the image."""
    channels, *image = call.value.shape
    if len(image) == 1:
        image, kernel, dilation = [1, *image], (1, *kernel), (1, *dilation)
    counts = call.shape[1:] if len(call.shape) == 3 else (1, *call.shape[1:])
    stride, padding = _geometry(call, len(call.shape) - 1)
    found = []
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            rows = torch.arange(counts[0]) * stride[0] - padding[0] + row * dilation[0]
            columns = torch.arange(counts[1]) * stride[1] - padding[1] + column * dilation[1]
            inside = ((rows >= 0) & (rows < image[0]))[:, None] & ((columns >= 0) & (columns < image[1]))[None]
            index = rows[:, None] * image[1] + columns[None]
            found.append(torch.where(inside, index, -1).reshape(-1))
    one = torch.stack(found, dim=1)  # (outputs of one channel, taps)
    shift = torch.arange(channels)[:, None, None] * math.prod(image)
    return torch.where(one[None] >= 0, one[None] + shift, -1).reshape(-1, one.shape[1])


def _geometry(call: Call, axes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    kernel, stride, padding = call.get(1, "kernel_size"), call.get(2, "stride"), call.get(3, "padding", 0)
    steps = per_axis(stride, axes) if stride not in (None, [], ()) else per_axis(kernel, axes)
    sides = per_axis(padding, axes)
    return ((1, steps[0]), (0, sides[0])) if axes == 1 else ((steps[0], steps[1]), (sides[0], sides[1]))


def _windowed(pool: Any, constant: float, settings: tuple[Any, ...], windows: Tensor | None = None) -> Lipschitz:
    """Maxima over windows: monotone, and changes of the inputs move a maximum within their own range."""
    return Lipschitz(
        "max pooling",
        pool,
        constant,
        bounds=lambda low, high: (pool(low), pool(high)),
        change=lambda low, high: (-pool(-low), pool(high)),
        settings=settings,
        windows=windows,
    )


@register_rule("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d")
def _adaptive_max_pool(call: Call) -> tuple[Value, None]:
    output = call.shape[1:]
    image = call.image(len(output))
    run: Any = functional.adaptive_max_pool1d if len(output) == 1 else functional.adaptive_max_pool2d
    shared = 1
    for size, count in zip(image, output):
        cover = torch.zeros(size, dtype=torch.int64)
        for window in range(count):
            cover[window * size // count : -((-(window + 1) * size) // count)] += 1
        shared *= int(cover.max())
    piece = _windowed(lambda x: run(x, output), shared**0.5, (image, output))
    return call.emit(piece, [call.value], call.shape), None


@register_rule("aten.max.dim", "aten.amax")
def _maximum(call: Call) -> Lipschitz | tuple[Value, None]:
    dims = call.get(1, "dim")
    if dims in (None, []):
        raise call.refuse("a maximum over the batch has no bound; name other axes")
    axes = sorted(call.axis(int(dim)) for dim in per_axis(dims, 1))

    def largest(x: Tensor) -> Tensor:
        return torch.amax(x, axes).reshape(x.shape[0], *call.shape)

    piece = _windowed(largest, 1.0, ("axes", tuple(axes), call.shape))
    return (call.emit(piece, [call.value], call.shape), None) if "max.dim" in call.op else piece


@register_rule("aten.maximum", "aten.minimum")
def _larger(call: Call) -> Value:
    """max(a, b) = a + relu(b - a)."""
    sign = 1.0 if "maximum" in call.op else -1.0
    left, right = call.get(0, "self"), call.get(1, "other")
    if not isinstance(left, Value) or not isinstance(right, Value):
        raise call.refuse("a maximum with a constant has a rule only as a clamp")
    one, two = fitted(call, left), fitted(call, right)
    minus = scaling(torch.full(call.shape, -1.0, dtype=torch.float64))
    first, second = (two, one) if sign > 0 else (one, two)
    gap = call.emit(Join("sum"), [first, call.emit(minus, [second], call.shape)], call.shape)
    rise = call.emit(activations.relu(), [gap], call.shape)
    if sign < 0:
        rise = call.emit(minus, [rise], call.shape)
    return call.emit(Join("sum"), [one, rise], call.shape)


@register_rule("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax")
def _softmax(call: Call) -> Lipschitz:
    """Half-Lipschitz in the 2-norm (ledger P-31); its logarithm by 1 + sqrt(n): the Jacobian is I - 1 s'."""
    if call.get(2, "dtype") not in (None, False, torch.float32, torch.float64):
        raise call.refuse("a softmax in another precision has no rule")
    axis = call.axis(int(call.get(1, "dim")))

    if "log_softmax" not in call.op:
        return softmax(axis)

    def logarithms(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        bottom = low - torch.logsumexp(high, axis, keepdim=True)
        top = (high - torch.logsumexp(low, axis, keepdim=True)).clamp_max(0.0)
        return bottom - 1e-12 * (1 + bottom.abs()), top + 1e-12 * (1 + top.abs())

    constant = 1 + math.sqrt(call.value.shape[axis - 1])
    run = lambda x: torch.log_softmax(x, axis)  # noqa: E731
    return Lipschitz("log softmax", run, constant, bounds=logarithms, settings=(axis,))


def softmax(axis: int) -> Lipschitz:
    """Softmax over one axis, counted with the batch in front.

    With p the softmax, its second derivative is `p_i ((u_i - <p,u>)(v_i - <p,v>) - cov_p(u, v))`.
    """

    def shares(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Entry i is small where its own logit is low and the others are high, and the other way round."""
        smallest = torch.exp(low - torch.logsumexp(high, axis, keepdim=True))
        largest = torch.exp((high - torch.logsumexp(low, axis, keepdim=True)).clamp_max(0.0))
        return smallest * (1 - 1e-12), (largest * (1 + 1e-12)).clamp_max(1.0)

    def slope(middle: Tensor, rows: Tensor) -> Tensor:
        p = torch.softmax(middle, axis)[:, None]
        return p * (rows - (p * rows).sum(axis + 1, keepdim=True))

    def bend(low: Tensor, high: Tensor, u: Tensor, v: Tensor) -> Tensor:
        p = shares(low, high)[1]

        def away(size: Tensor) -> Tensor:
            mean = torch.minimum((p * size).sum(axis, keepdim=True), size.amax(axis, keepdim=True))
            return size + mean

        spread = ((p * u.square()).sum(axis, keepdim=True) * (p * v.square()).sum(axis, keepdim=True)).sqrt()
        return p * (away(u) * away(v) + spread)

    return Lipschitz(
        "softmax",
        lambda x: torch.softmax(x, axis),
        0.5,
        bounds=shares,
        settings=(axis,),
        slope=slope,
        bend=bend,
    )
