"""Kernel regression: what a network trained to the end in its kernel's regime would predict (ledger K-6, K-21)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.errors import BadInput, RunFailed
from prunus.tangent._spectrum import spectrum, square
from prunus.tangent.diagnostics import as_targets

_JITTER = 1e-9


@dataclass(frozen=True, eq=False)
class Regression:
    """predictions (m, outputs); jitter is what was added to the diagonal, note says why (empty where nothing was).

    Example:
        >>> kernel, labels = torch.eye(2).double(), torch.tensor([0, 1])
        >>> found = prunus.tangent.regress(kernel, kernel, labels)
        >>> found.accuracy(labels), found.note
        (1.0, '')
    """

    predictions: Tensor
    jitter: float
    note: str

    def accuracy(self, labels: Tensor) -> float:
        """Share of the test inputs whose largest output is their label.

        Args:
            labels: the class of every test input.

        Returns:
            A number from 0 to 1.

        Raises:
            BadInput: if their number is not that of the test inputs.
        """
        if labels.shape != (len(self.predictions),):
            raise BadInput(f"labels must be one for each of the {len(self.predictions)} test inputs.")
        return float((self.predictions.argmax(1) == labels.to(self.predictions.device)).double().mean())


def regress(kernel: Tensor, cross: Tensor, targets: Tensor, ridge: float = 0.0) -> Regression:
    """Kernel regression: K(test, train) (K(train, train) + ridge)^-1 Y, in float64.

    A singular kernel gets a small part of its mean diagonal as jitter (1e-9 in float64, else 1e-6): the note says so.

    Args:
        kernel: (n, n), of the training inputs.
        cross: (m, n), of test against training inputs.
        targets: labels (n,), taken as one-hot minus 1/classes, or values (n, outputs).
        ridge: added to the diagonal. It scales with the kernel: with rescale=False use ridge * density ** depth (K-6).

    Returns:
        The predictions for the test inputs, and what was added to the diagonal.

    Raises:
        BadInput: The shapes do not fit, or the ridge is negative.
        RunFailed: The kernel is not positive definite even with what was added.

    Example:
        >>> x = torch.randn(5, 6, dtype=torch.float64)
        >>> kernel = prunus.tangent.limit(x, depth=2)
        >>> found = prunus.tangent.regress(kernel, kernel, torch.arange(5.0) + 1)
        >>> found.predictions.flatten().round().tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    matrix, values = square(kernel), as_targets(targets, len(kernel))
    if cross.dim() != 2 or cross.shape[1] != len(matrix):
        raise BadInput(f"cross must be (test inputs, {len(matrix)}), got {tuple(cross.shape)}.")
    if not ridge >= 0:
        raise BadInput(f"ridge must be at least 0, got {ridge!r}.")
    jitter, note = 0.0, ""
    mean = float(matrix.diagonal().mean())
    if ridge == 0:
        found = spectrum(kernel)
        if found.rank < len(matrix):
            jitter = _JITTER * mean if kernel.dtype == torch.float64 else 1e-6 * mean
            note = f"The kernel is singular (rank {found.rank} of {len(matrix)}): jitter {jitter:.3g} was added."
    identity = torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
    factor, failed = torch.linalg.cholesky_ex(matrix + (ridge + jitter) * identity)
    if bool(failed):
        raise RunFailed(
            f"The kernel is not positive definite even with {ridge + jitter:.3g} on its diagonal: add ridge."
        )
    return Regression(cross.detach().double() @ torch.cholesky_solve(values, factor), jitter, note)
