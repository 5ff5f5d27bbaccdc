"""Norms of convolution and pooling operators, and a norm bound from singular values (P-31, P-32)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from prunus.errors import BadInput
from prunus.formulas.binding import claim
from prunus.formulas.domain import whole
from prunus.formulas.numbers import elementwise, reals

_MOST_WINDOWS = 20_000  # an eigenvalue of a matrix of this size


@claim("P-31a")
@elementwise
def embedding_size(image: int, kernel: int, padding: int) -> dict[str, int]:
    """Circular size whose norm bounds the zero-padded convolution of side `image` (footnote 6 corrected, P-31a).

    Embedded in zeros to this size no index wraps into the image; at the image's own size one does.
    """
    image, kernel = whole("image", image, 1), whole("kernel", kernel, 1)
    padding = whole("padding", padding, 0, kernel - 1)
    return {"size": image + max(padding, kernel - 1 - padding), "safe_size": image + kernel - 1}


@claim("P-31b")
@elementwise
def difference_operator_norms(image: int) -> dict[str, float]:
    """Norms of the kernel [1,-1] on a signal of length `image`: zero padding may exceed circular (P-31b)."""
    p = whole("image", image, 2)
    circular = 2.0 if p % 2 == 0 else 2.0 * math.cos(math.pi / (2 * p))
    return {"zero": 2.0 * math.cos(math.pi / (2 * p + 1)), "circular": circular}


@claim("P-31c")
@elementwise
def laplacian_operator_norms(image: int) -> dict[str, float]:
    """Norms of the kernel outer([1,-2,1],[1,-2,1]) with zero and circular padding (P-31c)."""
    p = whole("image", image, 3)
    circular = 16.0 if p % 2 == 0 else (2.0 + 2.0 * math.cos(math.pi / p)) ** 2
    return {"zero": (2.0 + 2.0 * math.cos(math.pi / (p + 1))) ** 2, "circular": circular}


@claim("P-31d")
@elementwise
def average_pool_bound(kernel: int, stride: int) -> dict[str, float | bool]:
    """Norm bound ceil(k/s)/k of average pooling in two dimensions; exact where windows do not overlap (P-31d)."""
    kernel, stride = whole("kernel", kernel, 1), whole("stride", stride, 1)
    return {"bound": -(-kernel // stride) / kernel, "exact": stride >= kernel}


@claim("P-31e")
@elementwise
def average_pool_norm(image: int, kernel: int, stride: int) -> float:
    """Exact norm of average pooling in two dimensions without padding (P-31e).

    The square of the one-dimensional norm: the largest eigenvalue of the banded matrix of window overlaps.
    """
    kernel, stride = whole("kernel", kernel, 1), whole("stride", stride, 1)
    windows = (whole("image", image, kernel) - kernel) // stride + 1
    if windows > _MOST_WINDOWS:
        raise BadInput(f"image gives {windows} windows along a side, more than {_MOST_WINDOWS}: take a smaller image.")
    bands = min(windows, -(-kernel // stride))
    overlap = np.zeros((bands, windows))
    for shift in range(bands):
        overlap[shift, : windows - shift] = (kernel - stride * shift) / kernel**2
    top = windows - 1
    return float(linalg.eigvals_banded(overlap, lower=True, select="i", select_range=(top, top))[0])


@claim("P-31f")
@elementwise
def max_pool_lipschitz(kernel: int, stride: int) -> int:
    """Lipschitz constant of max pooling in two dimensions: an input is seen by ceil(k/s)^2 windows (P-31f)."""
    return -(-whole("kernel", kernel, 1) // whole("stride", stride, 1))


@claim("P-32")
def gram_bound(singular_values: ArrayLike, iterations: int) -> float:
    """What Gram iteration certifies: (sum s^(2^(iterations+2)))^(1/2^(iterations+2)) >= largest s (P-32)."""
    values = reals("singular_values", singular_values, 0.0)
    power = 2.0 ** (whole("iterations", iterations, 0, 1000) + 2)
    largest = float(values.max())
    if largest == 0.0:
        return 0.0
    return float(largest * float(((values / largest) ** power).sum()) ** (1.0 / power))
