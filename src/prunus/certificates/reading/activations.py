"""Activations as `Elementwise` pieces: values, derivatives, and the points where these change direction."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from prunus.certificates.reading.pieces import Elementwise

# Where silu' and gelu' take their extremes, and where silu and gelu take their minimum (roots of the derivatives).
_SILU_BEND, _SILU_TURN = 2.3993572805154, -1.2784645427610738
_GELU_BEND, _GELU_TURN = math.sqrt(2.0), -0.7517915246935645


def relu() -> Elementwise:
    return _kinked("relu", 0.0, torch.relu)


def leaky_relu(slope: float = 0.01) -> Elementwise:
    return _kinked("leaky_relu", slope, lambda x: functional.leaky_relu(x, slope))


def _kinked(kind: str, slope: float, function: Callable[[Tensor], Tensor]) -> Elementwise:
    def derivative(x: Tensor) -> Tensor:
        # At the kink each end takes the slope of its own side, which `Elementwise.slopes` handles. Filled tensors,
        # because a choice between two plain numbers would come out in float32.
        low, one = torch.full_like(x, slope), torch.ones_like(x)
        return torch.where(x > 0, one, low)

    return Elementwise(
        kind,
        function,
        derivative,
        max(1.0, abs(slope)),
        critical_points=(0.0,) if slope < 0 else (),
        kinks=((0.0, slope, 1.0),),
        settings=(slope,),
    )


def relu6() -> Elementwise:
    """Two kinks: between them the slope is 1, outside 0."""

    def derivative(x: Tensor) -> Tensor:
        return ((x >= 0) & (x <= 6)).to(x.dtype)

    return Elementwise("relu6", functional.relu6, derivative, 1.0, kinks=((0.0, 0.0, 1.0), (6.0, 1.0, 0.0)))


def clamp(low: float | None, high: float | None) -> Elementwise:
    """Between two limits the slope is 1, outside 0; either limit may be missing."""
    bottom = -math.inf if low is None else float(low)
    top = math.inf if high is None else float(high)

    def derivative(x: Tensor) -> Tensor:
        return ((x >= bottom) & (x <= top)).to(x.dtype)

    kinks = tuple(k for k in ((bottom, 0.0, 1.0), (top, 1.0, 0.0)) if math.isfinite(k[0]))
    return Elementwise(
        "clamp", lambda x: x.clamp(bottom, top), derivative, 1.0, kinks=kinks, settings=("clamp", bottom, top)
    )


def hardsigmoid() -> Elementwise:
    def derivative(x: Tensor) -> Tensor:
        return ((x >= -3) & (x <= 3)).to(x.dtype) / 6

    kinks = ((-3.0, 0.0, 1 / 6), (3.0, 1 / 6, 0.0))
    return Elementwise("hardsigmoid", functional.hardsigmoid, derivative, 1 / 6 * (1 + 1e-15), kinks=kinks)


def hardswish() -> Elementwise:
    """x relu6(x + 3) / 6: its slope rises from -1/2 to 3/2 between -3 and 3, and jumps at both ends."""

    def derivative(x: Tensor) -> Tensor:
        inside = (2 * x + 3) / 6
        return torch.where(x < -3, torch.zeros_like(x), torch.where(x > 3, torch.ones_like(x), inside))

    return Elementwise(
        "hardswish",
        functional.hardswish,
        derivative,
        1.5,
        critical_points=(-1.5,),
        inflection_points=(-3.0, 3.0),
        kinks=((-3.0, 0.0, -0.5), (3.0, 1.5, 1.0)),
    )


def elu(alpha: float = 1.0) -> Elementwise:
    def derivative(x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.ones_like(x), alpha * torch.exp(x.clamp_max(0.0)))

    return Elementwise(
        "elu",
        lambda x: functional.elu(x, alpha),
        derivative,
        max(1.0, abs(alpha)),
        critical_points=(0.0,) if alpha < 0 else (),
        inflection_points=(0.0,),
        kinks=((0.0, alpha, 1.0),),
        settings=(alpha,),
    )


def tanh() -> Elementwise:
    return Elementwise("tanh", torch.tanh, lambda x: 1 - torch.tanh(x).square(), 1.0, inflection_points=(0.0,))


def sigmoid() -> Elementwise:
    def derivative(x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1 - s)

    return Elementwise("sigmoid", torch.sigmoid, derivative, 0.25, inflection_points=(0.0,))


def softplus(threshold: float = 20.0) -> Elementwise:
    """log(1 + exp(x)), which torch replaces by x above a threshold: a jump by log(1 + exp(-threshold))."""

    def function(x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    jump = math.log1p(math.exp(-threshold)) * 1.001
    return Elementwise(
        "softplus", function, torch.sigmoid, 1.0, inflection_points=(0.0,), settings=(threshold,), jump=jump
    )


def square() -> Elementwise:
    return Elementwise("square", torch.square, lambda x: 2 * x, math.inf, critical_points=(0.0,), relative=True)


def inverse_root(eps: float) -> Elementwise:
    """1 / sqrt(max(x, 0) + eps): what a normalisation divides by, for a variance x that is never negative."""
    steepest = -0.5 * eps**-1.5

    def function(x: Tensor) -> Tensor:
        return torch.rsqrt(x.clamp_min(0.0) + eps)

    def derivative(x: Tensor) -> Tensor:
        return torch.where(x < 0, torch.zeros_like(x), -0.5 * (x.clamp_min(0.0) + eps) ** -1.5)

    return Elementwise(
        "inverse root",
        function,
        derivative,
        -steepest,
        inflection_points=(0.0,),
        kinks=((0.0, 0.0, steepest),),
        settings=(eps,),
        relative=True,
    )


def rsqrt() -> Elementwise:
    """1 / sqrt(x); nothing is known where x may reach zero."""
    return Elementwise("rsqrt", lambda x: torch.rsqrt(x.clamp_min(0.0)), _rsqrt_slope, math.inf, relative=True)


def _rsqrt_slope(x: Tensor) -> Tensor:
    return -0.5 * x.clamp_min(0.0) ** -1.5


def silu() -> Elementwise:
    def derivative(x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))

    return Elementwise(
        "silu",
        functional.silu,
        derivative,
        1.09984,
        critical_points=(_SILU_TURN,),
        inflection_points=(-_SILU_BEND, _SILU_BEND),
    )


def gelu(approximate: str = "none") -> Elementwise:
    """Both forms; the derivative of the tanh form is bent within 1e-2 of the exact form's points: see `_near`."""
    if approximate == "tanh":
        return _near("gelu", lambda x: functional.gelu(x, approximate="tanh"), ("tanh",))

    def derivative(x: Tensor) -> Tensor:
        density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
        return 0.5 * torch.erfc(-x / math.sqrt(2.0)) + x * density

    return Elementwise(
        "gelu",
        functional.gelu,
        derivative,
        1.12905,
        critical_points=(_GELU_TURN,),
        inflection_points=(-_GELU_BEND, _GELU_BEND),
    )


def _near(kind: str, function: Callable[[Tensor], Tensor], settings: tuple[str, ...]) -> Elementwise:
    scale, cubic = math.sqrt(2.0 / math.pi), 0.044715

    def derivative(x: Tensor) -> Tensor:
        inner = torch.tanh(scale * (x + cubic * x**3))
        return 0.5 * (1 + inner) + 0.5 * x * (1 - inner.square()) * scale * (1 + 3 * cubic * x.square())

    bend = _bisect(lambda z: _difference(derivative, z), 1.0, 2.0)
    turn = _bisect(lambda z: float(derivative(torch.tensor(z, dtype=torch.float64))), -1.0, -0.5)
    top = float(derivative(torch.tensor(bend, dtype=torch.float64))) * (1 + 1e-6)
    return Elementwise(
        kind,
        function,
        derivative,
        top,
        critical_points=(turn,),
        inflection_points=(-bend, bend),
        settings=settings,
    )


def _difference(derivative: Callable[[Tensor], Tensor], z: float, step: float = 1e-5) -> float:
    points = torch.tensor([z - step, z + step], dtype=torch.float64)
    left, right = derivative(points).tolist()
    return float(right - left)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """A root by bisection; the sign changes once on the interval."""
    start = function(low) > 0
    for _ in range(60):
        middle = (low + high) / 2
        if (function(middle) > 0) == start:
            low = middle
        else:
            high = middle
    return (low + high) / 2
