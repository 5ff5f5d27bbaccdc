"""Limiting kernel of a convolutional ReLU network with flatten head (K-22); recursion of Arora et al. 2019."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.tangent import kept
from prunus.papers.tangent._kernels import MOST_LAYERS, Array, half_sine_angle, next_angle, ramp, step

_MOST_STEPS, _CALL = 10**8, 5000  # numbers looked at, in one or two seconds; a call of numpy costs as many as that


@claim("K-22a")
def convolutional_limit(x: ArrayLike, y: ArrayLike, depth: int, kernel: int = 3) -> dict[str, float]:
    """K-22a: kernel of two images (rows x columns, or channels x rows x columns), stride 1, zero padding.

    The flatten head pairs each pixel with itself only, so maps of rows x columns numbers suffice: variances of x and
    of y, their covariance, and the kernel. Variances: 1 / (kernel^2 channels) in the first convolution,
    2 / (kernel^2 channels) later, 2 / (pixels channels) in the head.
    """
    first, second = _image("x", x), _image("y", y)
    if first.shape != second.shape:
        raise BadInput(f"x and y must have the same shape, got {first.shape} and {second.shape}.")
    depth, side = domain.whole("depth", depth, 1, MOST_LAYERS), domain.whole("kernel", kernel, 1)
    if side % 2 == 0:
        raise BadInput(f"kernel must be an odd whole number of at least 1, got {side}.")
    channels, rows, columns = first.shape
    window = min(side, 2 * rows - 1) * min(side, 2 * columns - 1)
    if (steps := window * (_CALL + rows * columns) * (channels + depth)) > _MOST_STEPS:
        raise BadInput(
            f"K-22a takes at most {_MOST_STEPS:.0e} steps, and these images, filters and layers need {steps:.3g}: take "
            "smaller images, a smaller kernel or fewer layers."
        )
    # sqrt(variance) maps of both inputs, and the angle between them, pixel by pixel.
    root_x, root_y = (np.sqrt(_window_sum(image**2, side) / channels) / side for image in (first, second))
    apart, opposite = (_gap(first, second, root_x, sign * root_y, side) for sign in (1.0, -1.0))
    angle = 2 * np.arctan2(np.sqrt(apart), np.sqrt(opposite))
    tangent = root_x * root_y * np.cos(angle)
    for layer in range(1, depth + 1):
        scale = root_x * root_y
        covariance = scale * ramp(angle)
        tangent = tangent * step(angle) + covariance  # dead pixels have no kernel to begin with
        if layer < depth:
            gap = scale * np.sin(next_angle(angle) / 2) ** 2
            root_x, root_y, angle = _pool(root_x, root_y, gap, side)
            tangent = _window_sum(tangent[None], side) / side**2
    return {"limit": float(tangent.mean()), "covariance": float(covariance.mean())}


@claim("K-22b")
def masked_convolution_factor(density: float, depth: int) -> float:
    """K-22b: factor on the limit when all layers but the first convolution are masked without rescaling."""
    return kept("density", density) ** domain.whole("depth", depth, 1, MOST_LAYERS)


def _image(name: str, value: ArrayLike) -> Array:
    image = domain.array(name, value)
    if image.ndim not in (2, 3):
        raise BadInput(f"{name} must have 2 dimensions (rows, columns) or 3 (channels first), got {image.ndim}.")
    return image if image.ndim == 3 else image[None]


def _pool(root_x: Array, root_y: Array, gap: Array, side: int) -> tuple[Array, Array, Array]:
    """Pool variances and covariance over patches; returns both new roots and the new angle.

    `gap` is half of (scale - covariance). Together with the part that unequal variances add it gives the new angle
    as a sum of positive terms, so that parallel images keep the angle 0.
    """
    squares = root_x[None] ** 2, root_y[None] ** 2
    new_x, new_y = (np.sqrt(_window_sum(square, side)) / side for square in squares)
    spread = _gap(root_x[None], root_y[None], new_x, new_y, side) / (4 * side**2)
    scale = new_x * new_y
    square = spread / np.where(scale > 0, scale, 1.0) + _window_sum(gap[None], side) / side**2
    return new_x, new_y, half_sine_angle(square / np.where(scale > 0, scale, 1.0))


def _gap(x: Array, y: Array, root_x: Array, root_y: Array, side: int) -> Array:
    """Sum over each pixel's window of (x root_y - y root_x)^2: 0 where the windows are parallel."""
    total = np.zeros_like(root_x)
    for near_x, near_y in zip(_shifted(x, side), _shifted(y, side)):
        total += ((near_x * root_y - near_y * root_x) ** 2).sum(axis=0)
    return total


def _window_sum(image: Array, side: int) -> Array:
    """Sum over channels and over the side x side window of each pixel, zeros outside."""
    total = np.zeros(image.shape[1:])
    for near in _shifted(image, side):
        total += near.sum(axis=0)
    return total


def _shifted(image: Array, side: int) -> Iterator[Array]:
    """The image moved by every place of a side x side window, zeros outside; moves beyond the image are left out."""
    _, rows, columns = image.shape
    down, right = min(side // 2, rows - 1), min(side // 2, columns - 1)
    padded = np.pad(image, ((0, 0), (down, down), (right, right)))
    for i in range(2 * down + 1):
        for j in range(2 * right + 1):
            yield padded[:, i : i + rows, j : j + columns]
