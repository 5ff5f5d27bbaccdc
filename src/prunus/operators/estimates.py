"""Quick estimates of norms by power iteration: lower bounds, never part of a certificate (ledger P-32)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from prunus.operators.convolution import Geometry

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def estimate_matrix_norm(matrix: Tensor, steps: int = 30, seed: int = 0) -> float:
    """A lower estimate of the spectral norm after `steps` of power iteration from a seeded start.

    Args:
        matrix: (rows, columns).
        steps: Steps of the iteration.
        seed: Seed of the start.

    Returns:
        The estimate.

    Example:
        >>> round(prunus.operators.estimate_matrix_norm(torch.diag(torch.tensor([3.0, 1.0]))), 4)
        3.0
    """
    matrix = matrix.detach().double()
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(matrix.shape[1], dtype=torch.float64, generator=generator)
    for _ in range(steps):
        vector = matrix.T @ (matrix @ vector)
        length = torch.linalg.vector_norm(vector)
        if length == 0:
            return 0.0
        vector = vector / length
    return float(torch.linalg.vector_norm(matrix @ vector))


def estimate_convolution_norm(weight: Tensor, geometry: Geometry, steps: int = 40, seed: int = 0) -> float:
    """A lower estimate of the norm of the convolution on its own image, by power iteration through it.

    Args:
        weight: (out, in / groups, *kernel).
        geometry: Image, stride, padding, dilation, groups.
        steps: Steps of the iteration.
        seed: Seed of the start.

    Returns:
        The estimate, never above the true norm (up to rounding).

    Example:
        >>> from prunus.operators import Geometry
        >>> plane = Geometry(image=(8, 8), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))
        >>> prunus.operators.estimate_convolution_norm(torch.ones(1, 1, 3, 3), plane) <= 9.0
        True
    """
    weight = weight.detach().double()
    generator = torch.Generator().manual_seed(seed)
    shape = (1, weight.shape[1] * geometry.groups, *geometry.image)
    vector = torch.randn(shape, dtype=torch.float64, generator=generator)
    size = 0.0
    for _ in range(steps):
        length = torch.linalg.vector_norm(vector)
        if length == 0:
            return 0.0
        image = (vector / length).requires_grad_()
        output = _convolve(image, weight, geometry)
        size = float(torch.linalg.vector_norm(output.detach()))
        (vector,) = torch.autograd.grad(output, image, output.detach())
    return size


def _convolve(image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    sides = [side for pair in reversed(geometry.padding) for side in pair]
    padded = functional.pad(image, sides, mode="circular" if geometry.circular else "constant")
    run = _CONVOLUTIONS[len(geometry.image)]
    output: Tensor = run(padded, weight, None, geometry.stride, 0, geometry.dilation, geometry.groups)
    return output
