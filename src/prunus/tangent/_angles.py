"""Arc-cosine kernels of angles, elementwise on float64 tensors (ledger K-1).

Kernels are iterated through the angle, not the correlation: the correlation of nearly parallel inputs rounds to 1 long
before their angle rounds to 0, and the derivative kernel is linear in the angle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prunus.errors import BadInput

_NEAR = 0.999  # correlations beyond this lose digits of the angle and are measured again
_AT_ONCE = 1 << 21


def step(angle: Tensor) -> Tensor:
    """Kappa 0 = (pi - angle) / pi, the doubled chance that both pre-activations are positive."""
    return 1 - angle / math.pi


def ramp(angle: Tensor) -> Tensor:
    """Kappa 1 = (sin t + (pi - t) cos t) / pi, as a sum that is exact at both ends."""
    # cos t + (sin t - t cos t) / pi; past pi/2 the mirror image, where the two terms would cancel.
    mirror = math.pi - angle
    near = torch.cos(angle) + _sine_excess(angle) / math.pi
    return torch.where(angle <= math.pi / 2, near, _sine_excess(mirror) / math.pi)


def next_angle(angle: Tensor) -> Tensor:
    """The angle whose cosine is kappa 1 of `angle`, through the sine of its half."""
    return half_sine_angle(torch.sin(angle / 2).square_() - _sine_excess(angle) / (2 * math.pi))


def half_sine_angle(square: Tensor) -> Tensor:
    """The angle t with sin(t / 2)^2 = `square`, that is (1 - cos t) / 2."""
    return 2 * torch.asin(square.clamp(0.0, 1.0).sqrt_())


def _sine_excess(angle: Tensor) -> Tensor:
    """sin t - t cos t = t^3 / 3 - t^5 / 30 + ...; the series below 1/2, where the difference cancels."""
    plain = torch.sin(angle) - angle * torch.cos(angle)
    small = angle < 0.5
    if not bool(small.any()):
        return plain
    few = angle[small]
    square = few * few
    series = torch.ones_like(square)
    for divisor in (130, 88, 54, 28, 10):  # 2 k (2 k + 3), from the last term kept to the first
        series = 1 - square / divisor * series
    plain[small] = few * square / 3 * series
    return plain


def angles(x1: Tensor, x2: Tensor, norms1: Tensor, norms2: Tensor, same: bool = False) -> Tensor:
    """Angles (..., n1, n2) between the rows of (..., n1, d) and (..., n2, d), exact for nearly parallel rows too.

    0 on the diagonal where `same`. Rows of norm 0 have the angle pi/2 to everything: what follows multiplies by their
    norm.
    """
    unit1 = x1 / torch.where(norms1 > 0, norms1, 1.0)[..., None]
    unit2 = x2 / torch.where(norms2 > 0, norms2, 1.0)[..., None]
    rho = (unit1 @ unit2.mT).clamp_(-1.0, 1.0)
    angle = torch.acos(rho)
    near = torch.nonzero(rho.abs() > _NEAR)
    for part in near.split(max(1, _AT_ONCE // x1.shape[-1])):
        *outer, i, j = part.unbind(1)
        first, second = unit1[(*outer, i)], unit2[(*outer, j)]
        angle[(*outer, i, j)] = 2 * torch.atan2((first - second).norm(dim=1), (first + second).norm(dim=1))
    if same:
        angle.diagonal(dim1=-2, dim2=-1).zero_()
    return angle


def inputs(name: str, value: Tensor, dims: int | None = None) -> Tensor:
    """Inputs as float64, (n, d) unless `dims` says otherwise; refuses what is not a batch of finite numbers."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.is_complex():
        raise BadInput(f"{name} must be a tensor of inputs in its rows, (n, d), not {_what(value)}.")
    if dims is not None and value.dim() != dims:
        raise BadInput(f"{name} must have {dims} dimensions (n, channels, rows, columns), not {value.dim()}.")
    value = value.detach().to(torch.float64)
    if not bool(torch.isfinite(value).all()):
        raise BadInput(f"{name} holds NaN or Inf: clean the inputs first.")
    return value.flatten(1) if dims is None else value


def _what(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def density_in(density: float) -> float:
    """A density in (0, 1], or one sentence."""
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise BadInput(f"density must lie in (0, 1]: it is the fraction of weights kept, got {density!r}.")
    return float(density)


def depth_in(depth: int) -> int:
    """A number of hidden layers, at least 1, or one sentence."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise BadInput(f"depth must be the number of hidden layers, a whole number of at least 1, got {depth!r}.")
    return depth
