"""The eigenvalues of a kernel, and what follows from them for training (ledger K-21)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prunus.errors import BadInput

_ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6}


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a kernel and what follows for gradient descent on half the squared error, full batch.

    smallest, largest  eigenvalues
    condition          their ratio; infinite where the kernel is singular to working precision
    rank               eigenvalues above the precision
    effective_rank     exp of the entropy of the eigenvalues over their sum: n for a multiple of the identity
    largest_step       2 / largest: beyond it gradient descent diverges

    Example:
        >>> found = prunus.tangent.spectrum(torch.diag(torch.tensor([1.0, 4.0])))
        >>> found.condition, found.largest_step, round(found.steps(0.01), 1)
        (4.0, 0.5, 18.4)
    """

    smallest: float
    largest: float
    condition: float
    rank: int
    effective_rank: float
    largest_step: float
    eigenvalues: Tensor = field(repr=False, compare=False)

    def steps(self, tolerance: float) -> float:
        """Predicted steps until every part of the error is below `tolerance` times its start: condition ln(1/tol).

        Args:
            tolerance: above 0, at most 1.

        Returns:
            The number of steps, not rounded.

        Raises:
            BadInput: if the tolerance is out of its range.
        """
        if not 0 < tolerance <= 1:
            raise BadInput(f"tolerance must lie in (0, 1], got {tolerance!r}.")
        return self.condition * math.log(1 / tolerance) if tolerance < 1 else 0.0


def spectrum(kernel: Tensor) -> Spectrum:
    """Eigenvalues of a symmetric kernel (n, n), in float64, and what follows from them; see `Spectrum`.

    Args:
        kernel: a symmetric kernel, (n, n).

    Returns:
        The eigenvalues, their ratio, ranks, and the largest step of gradient descent.

    Example:
        >>> prunus.tangent.spectrum(torch.eye(3)).rank
        3
    """
    matrix = square(kernel)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    positive = eigenvalues.clamp(min=0)
    total = float(positive.sum())
    if largest <= 0 or total == 0:
        return Spectrum(smallest, largest, math.inf, 0, 0.0, math.inf, eigenvalues)
    floor = largest * _ROUNDING.get(kernel.dtype, 1e-3) * len(matrix)
    rank = int((eigenvalues > floor).sum())
    share = positive / total
    entropy = float(-torch.special.xlogy(share, share).sum())
    condition = largest / smallest if smallest > floor else math.inf
    return Spectrum(smallest, largest, condition, rank, math.exp(entropy), 2 / largest, eigenvalues)


def square(kernel: Tensor, name: str = "kernel") -> Tensor:
    """A symmetric kernel in float64; refuses what is none."""
    if not isinstance(kernel, Tensor) or kernel.dim() != 2 or kernel.shape[0] != kernel.shape[1] or not len(kernel):
        shape = tuple(kernel.shape) if isinstance(kernel, Tensor) else type(kernel).__name__
        raise BadInput(f"{name} must be a square matrix of inputs against themselves, got {shape}.")
    matrix = kernel.detach().to(torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise BadInput(f"{name} holds NaN or Inf: the network's derivatives overflow on these inputs.")
    if float((matrix - matrix.T).abs().max()) > 1e-4 * float(matrix.abs().max()):
        raise BadInput(f"{name} is not symmetric: give the kernel of inputs against themselves.")
    return (matrix + matrix.T) / 2
