"""Pieces of the usual layers: fully connected, convolution, a factor for each channel."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from prunus.certificates.reading.pieces import Affine
from prunus.operators import Geometry, convolution_norm, convolve, matrix_norm

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 3: functional.conv3d}


def linear(weight: Tensor, bias: Tensor | None) -> Affine:
    """A fully connected layer over the last axis.

    Args:
        weight: The weight (outputs, inputs).
        bias: The bias (outputs,), or None.

    Returns:
        The piece.

    Example:
        >>> prunus.certificates.linear(torch.ones(2, 3), None).run(torch.ones(1, 3))
        tensor([[3., 3.]])
    """
    return Affine(
        "linear",
        lambda w, x: functional.linear(x, w),
        matrix_norm,
        weight,
        bias,
        terms=weight.shape[1],
        scaled=lambda w, factors: w * factors[:, None],
        roundings=1 if bias is None else 2,  # the bias may be added to the product by a step of its own
    )


def diagonal(factors: Tensor, bias: Tensor | None = None, axis: int = 1) -> Affine:
    """A factor (and an offset) for every index of one axis, such as a batch norm in evaluation mode.

    Args:
        factors: One factor for each index of the axis.
        bias: The offset, of a shape that can be added to the result, or None.
        axis: The axis, counted with the batch.

    Returns:
        The piece.

    Example:
        >>> prunus.certificates.diagonal(torch.tensor([1.0, 2.0])).run(torch.ones(1, 2))
        tensor([[1., 2.]])
    """

    def apply(w: Tensor, x: Tensor) -> Tensor:
        return x * w.reshape(-1, *[1] * (x.ndim - 1 - axis))

    def norm(w: Tensor) -> float:
        return float(w.abs().max()) if w.numel() else 0.0

    return Affine("diagonal", apply, norm, factors, bias, settings=(axis,), scaled=lambda w, f: w * f)


def convolution(
    weight: Tensor,
    bias: Tensor | None,
    image: tuple[int, ...],
    *,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    circular: bool = False,
) -> Affine:
    """A convolution over an image, with zero or circular padding given per side.

    Args:
        weight: The weight (outputs, inputs / groups, *kernel).
        bias: The bias (outputs,), or None.
        image: The sizes of the image.
        stride: One number for each axis of the image.
        padding: (before, after) for each axis of the image.
        dilation: One number for each axis of the image.
        groups: Number of groups.
        circular: Whether the padding wraps around.

    Returns:
        The piece.

    Example:
        >>> sides = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
        >>> piece = prunus.certificates.convolution(torch.ones(4, 2, 3, 3), None, (8, 8), **sides)
        >>> piece.run(torch.ones(1, 2, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
    """
    geometry = Geometry(image, stride, padding, dilation, groups, circular)
    axes = weight.ndim - 2
    sides = [side for pair in reversed(padding) for side in pair]
    symmetric = all(left == right for left, right in padding) and not circular
    inside = tuple(left for left, _ in padding) if symmetric else (0,) * axes

    def apply(w: Tensor, x: Tensor) -> Tensor:
        if not symmetric:
            x = functional.pad(x, sides, mode="circular" if circular else "constant")
        if axes == 2:
            return convolve(x, w, stride, inside, dilation, groups)
        return _CONVOLUTIONS[axes](x, w, None, stride, inside, dilation, groups)

    return Affine(
        "convolution",
        apply,
        lambda w: convolution_norm(w, geometry),
        weight,
        None if bias is None else bias.reshape(-1, *[1] * axes),
        terms=weight[0].numel(),
        settings=(geometry,),
        scaled=lambda w, factors: w * factors.reshape(-1, *[1] * (w.ndim - 1)),
        roundings=1 if bias is None else 2,
    )
