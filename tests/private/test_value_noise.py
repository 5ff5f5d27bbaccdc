"""Value noise is discrete, clipped exactly, and as private as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from prunus.errors import BadInput
from prunus.papers.noisy_topk import gaussian_sigma
from prunus.private.value_noise import ValueNoise, concentrated_delta


def _exact_delta(noise: ValueNoise, epsilon: float) -> float:
    """delta(epsilon) of the discrete mechanism for one value, by summing over the integers (worst shift 2 clip)."""
    table = noise._table()
    law = np.array([float(weight / table.total) for weight in table.weights])
    shift = int(2 * noise.clip / noise.grid)
    padded = np.concatenate((law, np.zeros(shift)))
    moved = np.concatenate((np.zeros(shift), law))
    return float(np.maximum(padded - math.exp(epsilon) * moved, 0.0).sum())


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-5), (0.5, 1e-6), (4.0, 1e-6), (8.0, 1e-5)])
def test_gaussian_noise_is_private_on_its_own_curve(epsilon: float, delta: float) -> None:
    noise = ValueNoise.gaussian(2.0, epsilon, delta)
    assert _exact_delta(noise, epsilon) <= noise.delta(epsilon) <= delta
    analytic = gaussian_sigma(epsilon, delta, 4.0)["sigma"]
    assert analytic < noise.scale < 1.15 * analytic


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 9.0])
def test_laplace_noise_is_pure_and_tight(epsilon: float) -> None:
    noise = ValueNoise.laplace(1.5, epsilon)
    assert noise.pure_epsilon == pytest.approx(epsilon, rel=1e-14)
    assert _exact_delta(noise, epsilon * (1 + 1e-9)) < 1e-12
    assert _exact_delta(noise, epsilon * 0.98) > 0.0


def test_values_are_on_the_grid_with_the_right_spread() -> None:
    noise = ValueNoise(clip=1e9, scale=0.5)
    values = torch.randn(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = noise.release(values, insecure_seed=1)
    assert torch.allclose(sent / noise.grid, (sent / noise.grid).round(), atol=1e-6)
    difference = sent - values
    # variance of 40 000 normals: relative standard error 0.0071; 5 of them
    assert float(difference.var()) == pytest.approx(noise.variance, rel=0.036)
    assert noise.variance == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 1e200])
def test_clipping_never_passes_the_norm(kind: str, size: float) -> None:
    noise = ValueNoise(1.0, 0.1, kind)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * size
    whole = [int(x) for x in noise.clipped(values)]
    norm = math.isqrt(sum(x * x for x in whole)) if kind == "gaussian" else sum(abs(x) for x in whole)
    assert norm <= noise.clip / noise.grid


def test_concentrated_delta_is_between_the_exact_and_one() -> None:
    assert concentrated_delta(0.5, 0.0) < 1.0
    assert concentrated_delta(0.5, 3.0) > concentrated_delta(0.5, 4.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueNoise(0.0, 1.0),
        lambda: ValueNoise(1.0, math.inf),
        lambda: ValueNoise(1.0, 1.0, "cauchy"),
        lambda: ValueNoise.gaussian(1.0, 1.0, 0.0),
        lambda: ValueNoise.laplace(1.0, -1.0),
        lambda: ValueNoise(1.0, 1.0).release(torch.tensor([1.0, math.nan])),
    ],
)
def test_bad_input(make) -> None:
    with pytest.raises(BadInput):
        make()
