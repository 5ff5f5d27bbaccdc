"""Upper bounds on the 2-norm of convolutions (ledger P-19, P-23, P-31).

A circular convolution is block-diagonal in the Fourier basis: its norm is the largest norm of the symbol
`H(w) = sum_t K[:, :, t] exp(-i w t)` (out, in) over the frequencies of the image. A zero-padded one is a compression
of the circular one on a larger image, at least `p + max(left, right)` along each axis; the symbol at the image's own
size would not bound it. Where that grid is too fine to afford, a coarser one is used together with the inequality of
Ehlich and Zeller: a trigonometric polynomial of degree d is at most its maximum over N points divided by
`cos(pi d / N)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.operators.dense import SLACK, matrix_norm, product_slack

_WORK_LIMIT = 8.0e10
"""Most `frequencies * out * in * min(out, in)` spent on one operator before the grid is made coarser."""

_CHUNK = 2**22
"""Complex entries of the symbol held at once (64 MB)."""


@dataclass(frozen=True)
class Geometry:
    """How a convolution is laid over its image: one number per spatial axis throughout.

    Example:
        >>> from prunus.operators import Geometry
        >>> plane = Geometry(image=(8, 8), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))
        >>> plane.groups
        1
    """

    image: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    circular: bool = False

    @classmethod
    def of(
        cls,
        image: int | Sequence[int],
        axes: int = 2,
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        circular: bool = False,
    ) -> Geometry:
        """The usual way: a single number stands for all axes, and padding is the same on both sides.

        Args:
            image: sides of the input image.
            axes: number of sides.
            stride: steps of the kernel.
            padding: zeros (or, if circular, copies) around the image.
            dilation: distance of the kernel's taps.
            groups: groups of channels.
            circular: the padding repeats the image from its other side.

        Returns:
            The geometry.
        """
        left = _spread(padding, axes)
        sides = tuple((size, size) for size in left)
        return cls(
            _spread(image, axes),
            _spread(stride, axes),
            sides,
            _spread(dilation, axes),
            groups=groups,
            circular=circular,
        )


def _spread(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    numbers = (value,) * axes if isinstance(value, int) else tuple(int(item) for item in value)
    if len(numbers) != axes:
        raise BadInput(f"This convolution has {axes} spatial axes, but {numbers} names {len(numbers)}.")
    return numbers


def embedding_size(image: int, kernel: int, left: int, right: int) -> int:
    """Smallest circular size whose operator has the zero-padded one as a compression (ledger P-31).

    No index that falls into the padding may wrap into the image, and no two outputs may coincide.

    Args:
        image: Pixels along one axis.
        kernel: Taps along that axis.
        left: Padding before.
        right: Padding after.

    Returns:
        The size.

    Example:
        >>> prunus.operators.embedding_size(8, 3, 1, 1)
        9
    """
    left, right = min(left, kernel - 1), min(right, kernel - 1)
    return max(image + max(left, right), image + left + right - kernel + 1, 1)


def convolution_norm(weight: Tensor, geometry: Geometry) -> float:
    """An upper bound on the 2-norm of a convolution with weight (out, in/groups, *kernel) in float64.

    Args:
        weight: (out, in / groups, *kernel).
        geometry: Image, stride, padding, dilation, groups.

    Returns:
        The bound.

    Raises:
        BadInput: The weight and the geometry do not fit each other.

    Example:
        >>> from prunus.operators import Geometry
        >>> plane = Geometry(image=(8, 8), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))
        >>> 8.0 < prunus.operators.convolution_norm(torch.ones(1, 1, 3, 3), plane) <= 9.001
        True
    """
    weight = weight.detach().double()
    axes = weight.ndim - 2
    if axes != len(geometry.image):
        raise BadInput(
            f"A weight of shape {tuple(weight.shape)} needs an image with {axes} axes, not {geometry.image}."
        )
    if not bool(torch.isfinite(weight).all()):
        raise BadInput("The convolution's weight holds values that are not finite, so it has no norm.")
    if weight.shape[0] % geometry.groups:
        raise BadInput(f"{weight.shape[0]} output channels do not divide into {geometry.groups} groups.")
    if not weight.any():
        return 0.0
    blocks = weight.reshape(geometry.groups, weight.shape[0] // geometry.groups, *weight.shape[1:])
    if all(size == 1 for size in weight.shape[2:]):
        repeats = _repeats(geometry, (1,) * axes)
        return repeats * max(matrix_norm(block.flatten(1)) for block in blocks)
    return max(_group_norm(block, geometry) for block in blocks)


def block_norm(weight: Tensor) -> float:
    """The chain of ledger P-23: the norm of the matrix of the kernels' L1 norms, for zero or circular padding.

    Args:
        weight: (out, in, *kernel).

    Returns:
        An upper bound on the operator's 2-norm, in float64.

    Example:
        >>> prunus.operators.block_norm(torch.ones(1, 1, 3, 3)) >= 9.0
        True
    """
    return matrix_norm(weight.detach().double().abs().flatten(2).sum(2))


def _repeats(geometry: Geometry, reach: tuple[int, ...]) -> float:
    """Circular padding beyond the kernel's reach shows outputs more than once: the root of how often."""
    if not geometry.circular:
        return 1.0
    product = 1
    for size, (left, right), span in zip(geometry.image, geometry.padding, reach):
        product *= max(1, math.ceil((size + left + right - span + 1) / size))
    return math.sqrt(product)


def _group_norm(weight: Tensor, geometry: Geometry) -> float:
    kernel = tuple(weight.shape[2:])
    reach = tuple((size - 1) * step + 1 for size, step in zip(kernel, geometry.dilation))
    sizes = []
    for size, span, (left, right) in zip(geometry.image, reach, geometry.padding):
        sizes.append(size if geometry.circular else embedding_size(size, span, left, right))
    stride = geometry.stride
    if geometry.circular and any(size % step for size, step in zip(sizes, stride)):
        stride = (1,) * len(sizes)  # dropping outputs only lowers the norm, and the aliases need whole periods
    sizes = [step * math.ceil(size / step) for size, step in zip(sizes, stride)]
    grid, loss = _affordable_grid(sizes, reach, stride, weight.shape[0], weight.shape[1])
    frequencies = [2.0 * math.pi * torch.arange(count, dtype=torch.float64) / count for count in grid]
    taps = [torch.arange(size, dtype=torch.float64) * step for size, step in zip(kernel, geometry.dilation)]
    bound = max(_largest(matrices) for matrices in _symbols(weight, frequencies, taps, grid, stride))
    return bound * loss * _repeats(geometry, reach)


def _affordable_grid(
    sizes: Sequence[int], reach: Sequence[int], stride: Sequence[int], rows: int, columns: int
) -> tuple[list[int], float]:
    """The frequencies per axis, and the factor that makes up for a grid coarser than the embedding."""
    grid = list(sizes)
    work = float(rows * columns * min(rows, columns))
    while math.prod(grid) * work > _WORK_LIMIT and any(step > 1 for step in stride) is False:
        axis = max(range(len(grid)), key=lambda i: grid[i] / reach[i])
        if grid[axis] <= 6 * reach[axis]:
            break
        grid[axis] = max(6 * reach[axis], int(grid[axis] * 0.9))
    loss = 1.0
    for count, size, span in zip(grid, sizes, reach):
        if count < size:
            # Times a phase, a symbol with `span` taps is a polynomial of degree (span-1)/2, or half-integer degree,
            # which is covered by rounding the degree up.
            loss /= math.cos(math.pi * math.ceil((span - 1) / 2) / count)
    return grid, loss


def _symbols(
    weight: Tensor, frequencies: list[Tensor], taps: list[Tensor], grid: list[int], stride: tuple[int, ...]
) -> Iterator[Tensor]:
    """Batches of symbols (frequencies, out, in * aliases), one frequency of each conjugate pair.

    With stride s, the s aliases of a frequency lie side by side, divided by the root of their number: the operator
    sums them into one output frequency.
    """
    rows, columns = weight.shape[:2]
    base = [count // step for count, step in zip(grid, stride)]
    chosen = [point for point in itertools.product(*(range(n) for n in base)) if point <= _mirror(point, base)]
    aliases = list(itertools.product(*(range(step) for step in stride)))
    flat = weight.flatten(2).to(torch.complex128)
    offsets = torch.cartesian_prod(*taps) if len(taps) > 1 else taps[0][:, None]
    step = max(1, _CHUNK // (rows * columns * len(aliases)))
    for start in range(0, len(chosen), step):
        points = chosen[start : start + step]
        parts = []
        for alias in aliases:
            angles = torch.stack(
                [
                    torch.stack([axis[p + n * a] for axis, p, n, a in zip(frequencies, point, base, alias)])
                    for point in points
                ]
            )
            phases = torch.exp(-1j * (angles @ offsets.T))
            parts.append((phases @ flat.flatten(0, 1).T).reshape(len(points), rows, columns))
        yield torch.cat(parts, dim=2) / math.sqrt(len(aliases))


def _mirror(point: tuple[int, ...], base: Sequence[int]) -> tuple[int, ...]:
    return tuple((-index) % count for index, count in zip(point, base))


def _largest(matrices: Tensor) -> float:
    """The largest norm in a batch of complex matrices (batch, rows, columns), rounded outwards."""
    rows, columns = matrices.shape[1:]
    if min(rows, columns) == 1:
        squares = matrices.abs().square().sum((1, 2))
        return math.sqrt(float(squares.max())) * (1.0 + SLACK)
    if rows < columns:
        gram = matrices @ matrices.mH
    else:
        gram = matrices.mH @ matrices
    keep = _worth_a_decomposition(gram)
    top = float(torch.linalg.eigvalsh(gram[keep])[:, -1].max())
    slack = SLACK + 2.0 * product_slack(max(rows, columns), min(rows, columns))
    return math.sqrt(max(top, 0.0)) * (1.0 + slack)


def _worth_a_decomposition(gram: Tensor) -> Tensor:
    """Which of the Gram matrices can hold the largest norm: a cheap upper bound against a cheap lower bound.

    Above: the Frobenius norm. Below: the Rayleigh quotient after a few multiplications. A wrong choice is impossible,
    because what is dropped has an upper bound under a value that is attained.
    """
    above = torch.linalg.matrix_norm(gram)
    vectors = gram.sum(2, keepdim=True)
    for _ in range(3):
        vectors = gram @ (vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min(1e-300))
    length = torch.linalg.vector_norm(vectors, dim=1).square().squeeze(1)
    below = (vectors.mH @ (gram @ vectors)).real.flatten() / length.clamp_min(1e-300)
    keep = above * (1.0 + 1e-9) >= below.max() * (1.0 - 1e-9)
    return keep if bool(keep.any()) else torch.ones_like(keep)
