from __future__ import annotations

import numpy as np
import pytest
import torch

from prunus.errors import BadInput
from prunus.operators import estimate_matrix_norm, gram_norm, matrix_norm, schur_norm, vector_norm


def test_gram_iteration_reaches_the_values_of_the_ledger():
    matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 80)))
    for iterations, expected in ((2, 16.4538), (4, 15.5241), (6, 15.4379), (8, 15.43643276)):
        assert gram_norm(matrix, iterations) == pytest.approx(expected, abs=1e-4 if iterations < 8 else 1e-8)
    assert matrix_norm(matrix) == pytest.approx(15.43643275, abs=2e-8)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (5, 5), (3, 40), (40, 3), (64, 32)])
def test_every_bound_lies_above_the_norm_and_the_estimate_below(shape):
    for seed in range(20):
        matrix = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)) * 10.0 ** (seed - 10)
        truth = float(np.linalg.norm(matrix.numpy(), 2))
        assert truth <= matrix_norm(matrix) <= truth * (1 + 1e-8)
        assert truth <= gram_norm(matrix, 6)
        assert truth <= schur_norm(matrix) * (1 + 1e-15)
        assert estimate_matrix_norm(matrix, steps=60) <= truth * (1 + 1e-12)


def test_large_matrices_use_the_gram_iteration_and_stay_tight(monkeypatch):
    monkeypatch.setattr("prunus.operators.dense._FULL_SIZE", 16)
    matrix = torch.randn(60, 90, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth = float(torch.linalg.svdvals(matrix)[0])
    assert truth <= matrix_norm(matrix) <= truth * (1 + 1e-3)


def test_zeros_have_norm_zero():
    assert matrix_norm(torch.zeros(4, 5)) == gram_norm(torch.zeros(4, 5)) == schur_norm(torch.zeros(4, 5)) == 0.0
    assert vector_norm(torch.zeros(0)) == 0.0


def test_bad_matrices_are_refused():
    with pytest.raises(BadInput, match="two dimensions"):
        matrix_norm(torch.zeros(3))
    with pytest.raises(BadInput, match="not finite"):
        matrix_norm(torch.full((2, 2), float("nan")))
