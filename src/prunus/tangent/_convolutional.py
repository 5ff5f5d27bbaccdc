"""The limiting tangent kernel of convolutional ReLU networks (ledger K-22; recursion of Arora et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from prunus.errors import BadInput, UnknownName
from prunus.tangent._angles import density_in, depth_in, half_sine_angle, inputs, next_angle, ramp, step

_AT_ONCE = 1 << 21
_HEADS = ("flatten", "average")
Patch = Callable[[Tensor], Tensor]


def limit_convolutional(
    x1: Tensor,
    x2: Tensor | None = None,
    depth: int = 3,
    density: float = 1.0,
    rescale: bool = True,
    *,
    kernel: int = 3,
    head: str = "flatten",
) -> Tensor:
    """The limiting kernel (n1, n2), float64, of `depth` convolutions and a linear head, channels going to infinity.

    Images are (n, channels, rows, columns); filters kernel x kernel, stride 1, zero padding that keeps the size. In NTK
    form the factors are 1 / sqrt(kernel^2 channels) for the first convolution, sqrt(2 / (kernel^2 channels)) for the
    later ones, sqrt(2 / (pixels channels)) for a head on the flattened map and sqrt(2 / channels) for one on its
    global average. The average pairs every pixel with every other: for small images only.

    With all layers but the first convolution pruned at random, rescaled masks leave the limit as it is; {0, 1} masks
    (rescale=False) multiply it by density ** depth.

    Args:
        x1: images, (n1, channels, rows, columns).
        x2: other images of the same shape; None for `x1` against itself.
        depth: convolutions.
        density: chance that a weight behind the first convolution is kept.
        rescale: whether masks are divided by sqrt(density).
        kernel: side of the filters, odd.
        head: "flatten" or "average".

    Returns:
        The kernel (n1, n2), float64.

    Raises:
        BadInput: The images do not fit each other, or an option is out of its range.
        UnknownName: There is no such head.

    Example:
        >>> prunus.tangent.limit_convolutional(torch.randn(3, 1, 4, 4), depth=2).shape
        torch.Size([3, 3])
    """
    depth, density = depth_in(depth), density_in(density)
    if head not in _HEADS:
        raise UnknownName("head", head, _HEADS)
    if isinstance(kernel, bool) or not isinstance(kernel, int) or kernel < 1 or kernel % 2 == 0:
        raise BadInput(f"kernel must be an odd whole number of at least 1, got {kernel!r}.")
    first = inputs("x1", x1, 4)
    second = first if x2 is None else inputs("x2", x2, 4)
    if first.shape[1:] != second.shape[1:]:
        shapes = f"{tuple(first.shape[1:])} and {tuple(second.shape[1:])}"
        raise BadInput(f"x1 and x2 must hold images of one shape, got {shapes}.")
    pixels = first.shape[2] * first.shape[3]
    entries = first.shape[1] * pixels if head == "flatten" else first.shape[1] * pixels**2
    columns = max(1, min(len(second), _AT_ONCE // entries))
    rows = max(1, _AT_ONCE // (entries * columns))
    blocks = []
    for i in range(0, len(first), rows):
        parts = [_block(first[i : i + rows], part, depth, kernel, head) for part in second.split(columns)]
        blocks.append(torch.cat(parts, dim=1))
    whole = torch.cat(blocks)
    return whole if rescale else whole * density**depth


@dataclass(frozen=True)
class _Pooling:
    """Means over the neighbourhood of a pixel of x, of a pixel of y, and over equal shifts of both; zeros outside."""

    of_x: Patch
    of_y: Patch
    of_both: Patch
    apart: bool  # the pixels of a pair differ, so that one of them may leave the image alone


def _block(x: Tensor, y: Tensor, depth: int, kernel: int, head: str) -> Tensor:
    if head == "flatten":
        patch = partial(F.avg_pool2d, kernel_size=kernel, stride=1, padding=kernel // 2)
        return _recursion(x[:, None], y[None], depth, _Pooling(patch, patch, patch, False))
    x, y = x[:, None, :, :, :, None, None], y[None, :, :, None, None]
    of_x, of_y, of_both = (
        partial(_shifted_mean, kernel=kernel, first=first, last=last)
        for first, last in ((True, False), (False, True), (True, True))
    )
    return _recursion(x, y, depth, _Pooling(of_x, of_y, of_both, True))


def _shifted_mean(maps: Tensor, kernel: int, first: bool, last: bool) -> Tensor:
    """(n1, n2, rows, columns, rows, columns): the mean over shifts of the first pixel, the last one, or both alike."""
    reach = kernel // 2
    pad1, pad2 = reach if first else 0, reach if last else 0
    padded = F.pad(maps, (pad2,) * 4 + (pad1,) * 4)
    rows, columns = maps.shape[2:4] if first else maps.shape[4:6]
    total = torch.zeros_like(maps)
    everything = slice(None)
    for i in range(kernel):
        for j in range(kernel):
            part = (slice(i, i + rows), slice(j, j + columns))
            total += padded[(..., *(part if first else (everything,) * 2), *(part if last else (everything,) * 2))]
    return total / kernel**2


def _recursion(x: Tensor, y: Tensor, depth: int, pooling: _Pooling) -> Tensor:
    """Maps over pixels (or pairs of pixels) of both deviations, their angle, and the kernel.

    What is passed on is a + b - 2 c, for variances a, b and covariance c, as a sum of positive terms: equal images
    keep the angle 0, where c itself would have lost half its digits.
    """
    variance_x, variance_y, apart = x.square().mean(2), y.square().mean(2), (x - y).square().mean(2)
    tangent = None
    for _ in range(depth):
        root_x, root_y, angle = _pooled(variance_x, variance_y, apart, pooling)
        scale = root_x * root_y
        tangent = scale * torch.cos(angle) if tangent is None else pooling.of_both(tangent)
        tangent = tangent * step(angle) + scale * ramp(angle)
        variance_x, variance_y = root_x**2, root_y**2
        apart = (root_x - root_y) ** 2 + 4 * scale * torch.sin(next_angle(angle) / 2) ** 2
    assert tangent is not None
    return tangent.flatten(2).mean(2)


def _pooled(variance_x: Tensor, variance_y: Tensor, apart: Tensor, pooling: _Pooling) -> tuple[Tensor, Tensor, Tensor]:
    """Deviations of both after the convolution, and the angle between them."""
    square_x, square_y, apart_now = pooling.of_x(variance_x), pooling.of_y(variance_y), pooling.of_both(apart)
    if pooling.apart:
        for square, variance in ((square_x, variance_x), (square_y, variance_y)):
            apart_now = apart_now + (square - pooling.of_both(variance.expand_as(apart)))
    root_x, root_y = square_x.sqrt(), square_y.sqrt()
    scale = root_x * root_y
    excess = (apart_now - (root_x - root_y) ** 2) / 2  # scale - covariance
    return root_x, root_y, half_sine_angle(excess / torch.where(scale > 0, 2 * scale, 1.0))
