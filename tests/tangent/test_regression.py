"""Kernel regression: it is the solution, jitter is said, and the limit reaches the ledger's accuracy (K-21)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prunus
from prunus.errors import BadInput, RunFailed
from prunus.tangent import limit, regress, spectrum


def test_interpolates_and_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, generator=generator).double(), torch.randn(12, 2, generator=generator).double()
    kernel, cross = limit(x), limit(x[:3] + 0.1, x)
    found = regress(kernel, kernel, y)
    torch.testing.assert_close(found.predictions, y)
    assert (found.jitter, found.note) == (0.0, "")
    torch.testing.assert_close(regress(0.1 * kernel, 0.1 * cross, y).predictions, regress(kernel, cross, y).predictions)
    ridge = regress(kernel, cross, y, ridge=0.5).predictions
    torch.testing.assert_close(regress(0.1 * kernel, 0.1 * cross, y, ridge=0.05).predictions, ridge)


def test_singular_kernels_get_jitter_and_say_so() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    found = regress(limit(x), limit(x), labels)
    assert found.jitter > 0
    assert "singular (rank 2 of 3)" in found.note
    assert found.accuracy(labels) == 1.0


def test_bad_input() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    for call in (
        lambda: regress(eye, torch.ones(2, 4), torch.zeros(3)),
        lambda: regress(eye, eye, torch.zeros(2)),
        lambda: regress(eye, eye, torch.zeros(3), ridge=-1.0),
        lambda: regress(eye, eye, torch.tensor([0, 1, 2])).accuracy(torch.tensor([0])),
    ):
        with pytest.raises(BadInput):
            call()
    with pytest.raises(RunFailed, match="positive definite"):
        regress(-eye, eye, torch.zeros(3), ridge=1e-3)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1,797 digits in their first order, rows of unit norm."""
    parts = [prunus.data.load("digits", split=split) for split in ("train", "test")]
    raw = torch.cat([part.raw for part in parts]).double().flatten(1)
    return raw / raw.norm(dim=1, keepdim=True), torch.cat([part.labels for part in parts])


def test_limit_on_digits() -> None:
    """300 digits predict 1000 others as the ledger says, within two points: the split differs from the ledger's."""
    x, labels = digits()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    train, test = order[:300], order[300:1300]
    for depth, condition in ((1, 8153), (3, 2441)):
        kernel = limit(x[train], depth=depth)
        found = regress(kernel, limit(x[test], x[train], depth=depth), labels[train])
        assert found.accuracy(labels[test]) == pytest.approx(0.97, abs=0.02)
        assert 0.5 < spectrum(kernel).condition / condition < 2
