"""Eigenvalues of kernels and what follows from them."""

from __future__ import annotations

import math

import pytest
import torch

from prunus.errors import BadInput
from prunus.tangent import spectrum


def test_a_known_spectrum() -> None:
    basis = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    found = spectrum(basis @ torch.diag(torch.tensor([1.0, 2.0, 4.0, 8.0]).double()) @ basis.T)
    assert (found.smallest, found.largest, found.condition) == pytest.approx((1.0, 8.0, 8.0))
    assert found.largest_step == pytest.approx(0.25)
    assert found.rank == 4
    share = [1 / 15, 2 / 15, 4 / 15, 8 / 15]
    assert found.effective_rank == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)))
    assert found.steps(0.01) == pytest.approx(8 * math.log(100))


def test_identity_and_singular() -> None:
    assert spectrum(3 * torch.eye(5)).effective_rank == pytest.approx(5)
    flat = spectrum(torch.ones(3, 3, dtype=torch.float64))
    assert (flat.rank, flat.condition) == (1, math.inf)
    assert spectrum(torch.zeros(2, 2)).rank == 0


def test_gradient_descent_turns_at_the_largest_step() -> None:
    """On half the squared error, residuals follow (1 - step K): below the step they shrink, above they grow."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = x @ x.T
    step = spectrum(kernel).largest_step
    for factor, grows in ((0.98, False), (1.02, True)):
        residual = torch.ones(6, dtype=torch.float64)
        for _ in range(2000):
            residual = residual - factor * step * kernel @ residual
        assert (float(residual.norm()) > 1e3) == grows


@pytest.mark.parametrize(
    "kernel", [torch.ones(2, 3), torch.ones(3), torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.full((2, 2), math.nan)]
)
def test_bad_kernels(kernel: torch.Tensor) -> None:
    with pytest.raises(BadInput):
        spectrum(kernel)
    with pytest.raises(BadInput, match="tolerance"):
        spectrum(torch.eye(2)).steps(0.0)
