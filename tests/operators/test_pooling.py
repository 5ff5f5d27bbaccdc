from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from prunus.operators import adaptive_average_pool_norm, average_pool_norm, max_pool_lipschitz


@pytest.mark.parametrize(("kernel", "stride", "expected"), [(3, 2, 0.513115), (3, 1, 0.910611), (3, 3, 1 / 3)])
def test_average_pool_values_of_the_ledger(kernel, stride, expected):
    norm = average_pool_norm((9, 9), (kernel, kernel), (stride, stride), (0, 0))
    assert norm == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_average_pooling_equals_its_matrix(ceil_mode, count_include_pad):
    units = torch.eye(7 * 6, dtype=torch.float64).reshape(42, 1, 7, 6)
    pooled = functional.avg_pool2d(units, (3, 2), (2, 3), (1, 1), ceil_mode, count_include_pad).flatten(1)
    norm = average_pool_norm((7, 6), (3, 2), (2, 3), (1, 1), ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(pooled, 2)), rel=1e-9)


@pytest.mark.parametrize("output", [(1, 1), (3, 2), (5, 7)])
def test_adaptive_average_pooling_equals_its_matrix(output):
    units = torch.eye(8 * 9, dtype=torch.float64).reshape(72, 1, 8, 9)
    pooled = functional.adaptive_avg_pool2d(units, output).flatten(1)
    truth = float(torch.linalg.matrix_norm(pooled, 2))
    assert adaptive_average_pool_norm((8, 9), output) == pytest.approx(truth, rel=1e-9)


def test_max_pool_is_lipschitz_and_the_constant_is_attained():
    assert max_pool_lipschitz((2, 2), (2, 2)) == 1
    assert max_pool_lipschitz((3, 3), (2, 2)) == 2
    spike = torch.zeros(1, 1, 9, 9)
    spike[0, 0, 4, 4] = 1
    assert float(functional.max_pool2d(spike, 3, 2).norm()) == 2.0
    generator = torch.Generator().manual_seed(0)
    for kernel, stride, dilation in ((3, 2, 1), (2, 1, 2), (3, 2, 2), (2, 3, 1)):
        limit = max_pool_lipschitz((kernel,) * 2, (stride,) * 2, (dilation,) * 2)
        for _ in range(50):
            left, right = torch.randn(2, 1, 1, 11, 11, generator=generator)
            moved = functional.max_pool2d(left, kernel, stride, 0, dilation) - functional.max_pool2d(
                right, kernel, stride, 0, dilation
            )
            assert float(moved.norm()) <= limit * float((left - right).norm())
