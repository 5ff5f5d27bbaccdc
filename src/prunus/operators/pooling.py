"""Norms of pooling (ledger P-31): average pooling is linear and separable, max pooling is Lipschitz."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from prunus.operators.dense import matrix_norm


def average_pool_norm(
    image: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> float:
    """The exact 2-norm of average pooling over an image: the product of its one-dimensional factors.

    Args:
        image: Pixels along each axis.
        kernel: Window along each axis.
        stride: Step along each axis.
        padding: Zeros along each axis.
        ceil_mode: As in torch.
        count_include_pad: As in torch.

    Returns:
        The norm.

    Example:
        >>> round(prunus.operators.average_pool_norm((8, 8), (2, 2), (2, 2), (0, 0)), 6)
        0.5
    """
    norm = 1.0
    for size, window, step, pad in zip(image, kernel, stride, padding):
        units = torch.eye(size, dtype=torch.float64)[:, None]
        factor = functional.avg_pool1d(units, window, step, pad, ceil_mode, count_include_pad).squeeze(1)
        norm *= matrix_norm(factor)
    return norm


def adaptive_average_pool_norm(image: Sequence[int], output: Sequence[int]) -> float:
    """The exact 2-norm of adaptive average pooling; over the whole image it is one over the root of its pixels.

    Args:
        image: Pixels along each axis.
        output: Outputs along each axis.

    Returns:
        The norm.

    Example:
        >>> prunus.operators.adaptive_average_pool_norm((8, 8), (1, 1))
        0.125...
    """
    norm = 1.0
    for size, count in zip(image, output):
        units = torch.eye(size, dtype=torch.float64)[:, None]
        norm *= matrix_norm(functional.adaptive_avg_pool1d(units, count).squeeze(1))
    return norm


def max_pool_lipschitz(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int] | None = None) -> float:
    """Lipschitz constant of max pooling: the root of how many windows may share a pixel.

    Args:
        kernel: Window along each axis.
        stride: Step along each axis.
        dilation: Distance of the taps along each axis.

    Returns:
        The constant.

    Example:
        >>> prunus.operators.max_pool_lipschitz((2, 2), (2, 2))
        1.0
    """
    shared = 1
    for window, step, spread in zip(kernel, stride, dilation or [1] * len(kernel)):
        shared *= math.ceil(window * math.gcd(step, spread) / step)
    return math.sqrt(shared)
