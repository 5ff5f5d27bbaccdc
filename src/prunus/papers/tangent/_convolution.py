"""Limiting kernel of a convolutional ReLU network with flatten head (K-22); recursion of Arora et al. 2019."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.tangent import kept
from prunus.papers.tangent._kernels import MOST_LAYERS, Array, half_sine_angle, next_angle, ramp, step


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
    patches_x, patches_y = _patches(first, side), _patches(second, side)
    # sqrt(variance) maps of both inputs, and the angle between them, pixel by pixel.
    root_x, root_y = (np.sqrt((p**2).sum(axis=0) / patches_x.shape[0]) for p in (patches_x, patches_y))
    opposite = np.linalg.norm(root_y * patches_x + root_x * patches_y, axis=0)
    angle = 2 * np.arctan2(np.linalg.norm(root_y * patches_x - root_x * patches_y, axis=0), opposite)
    tangent = root_x * root_y * np.cos(angle)
    for layer in range(1, depth + 1):
        scale = root_x * root_y
        covariance = scale * ramp(angle)
        tangent = tangent * step(angle) + covariance  # dead pixels have no kernel to begin with
        if layer < depth:
            gap = scale * np.sin(next_angle(angle) / 2) ** 2
            root_x, root_y, angle = _pool(root_x, root_y, gap, side)
            tangent = _patch_mean(tangent, side)
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
    near_x, near_y = _patches(root_x[None], side), _patches(root_y[None], side)
    new_x, new_y = (np.sqrt((near**2).mean(axis=0)) for near in (near_x, near_y))
    spread = ((near_x * new_y - near_y * new_x) ** 2).mean(axis=0) / 4
    scale = new_x * new_y
    square = spread / np.where(scale > 0, scale, 1.0) + _patch_mean(gap, side)
    return new_x, new_y, half_sine_angle(square / np.where(scale > 0, scale, 1.0))


def _patch_mean(values: Array, side: int) -> Array:
    return cast("Array", _patches(values[None], side).mean(axis=0))


def _patches(image: Array, side: int) -> Array:
    """The side x side neighbourhood of each pixel, zeros outside: (channels side^2, rows, columns)."""
    _, rows, columns = image.shape
    reach = side // 2
    padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)))
    return np.concatenate([padded[:, i : i + rows, j : j + columns] for i in range(side) for j in range(side)])
