"""Monte Carlo at finite width against the limit (K-18), the trap of K-5, and the width planner."""

from __future__ import annotations

import math

import pytest
import torch

import prunus
from prunus.errors import BadInput
from prunus.tangent import empirical, limit, parametrise, plan_width, sample_kernels
from support import scale

PAIR = torch.tensor([[1.0, 0.0], [math.cos(math.pi / 3), math.sin(math.pi / 3)]], dtype=torch.float64)


def mean_and_error(kernels: torch.Tensor) -> tuple[float, float]:
    values = kernels[:, 0, 1]
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


@pytest.mark.prove
@pytest.mark.parametrize("density", [1.0, 0.5])
def test_mean_at_width_256(density: float) -> None:
    """Within four standard errors of the limit (false alarm 6e-5 with this fixed seed: once and for all)."""
    kernels = sample_kernels(PAIR, 3, 256, density, scale(100, full=256), seed=1)
    mean, error = mean_and_error(kernels)
    assert abs(mean - 1.7378446792) < 4 * error
    assert float(kernels[:, 0, 1].std()) == pytest.approx(0.394 if density == 1 else 0.483, rel=0.35)


def test_weights_rescaled_are_a_trap() -> None:
    """K-5: dividing the weights instead of the mask ends at 0.956, within five standard errors, and far from 1.738."""
    mean, error = mean_and_error(sample_kernels(PAIR, 3, 256, 0.5, 100, rescale="weights", seed=2))
    assert abs(mean - 0.95626209) < 5 * error
    assert abs(mean - 1.7378446792) > 10 * error


def test_unrescaled_masks() -> None:
    rescaled = sample_kernels(PAIR, 3, 64, 0.5, 5, seed=3)
    plain = sample_kernels(PAIR, 3, 64, 0.5, 5, rescale=False, seed=3)
    torch.testing.assert_close(plain, rescaled / 8, rtol=1e-12, atol=0)


@pytest.mark.parametrize("density", [1.0, 0.4])
def test_one_network_against_the_exact_kernel(density: float) -> None:
    """The same weights and masks drawn again and given to `empirical`; the weight trap by baking the factor in."""
    generator = torch.Generator().manual_seed(5)
    form = parametrise(prunus.models.make("fc:2-32-32-1", init="normal", seed=0).double())
    masks = {}
    with torch.no_grad():
        for number, layer in enumerate(form.layers):
            layer.weight.copy_(torch.randn(1, *layer.weight.shape, generator=generator, dtype=torch.float64)[0])
            if number and density < 1:
                drawn = torch.rand(1, *layer.weight.shape, generator=generator, dtype=torch.float64)
                masks[f"layers.{number}.weight"] = drawn[0] < density
    held = prunus.Masks(masks) if masks else None
    exact = empirical(form, PAIR, masks=held, rescale=False)
    torch.testing.assert_close(sample_kernels(PAIR, 2, 32, density, 1, rescale=False, seed=5)[0], exact)
    with torch.no_grad():
        for layer in form.layers[1:]:
            layer.weight /= math.sqrt(density)
    baked = empirical(form, PAIR, masks=held, rescale=False)
    torch.testing.assert_close(sample_kernels(PAIR, 2, 32, density, 1, rescale="weights", seed=5)[0], baked)


def test_seeds_and_single_precision() -> None:
    a, b = (sample_kernels(PAIR, 2, 32, 0.5, 3, seed=0) for _ in range(2))
    assert torch.equal(a, b)
    assert not torch.equal(a, sample_kernels(PAIR, 2, 32, 0.5, 3, seed=1))
    assert sample_kernels(PAIR.float(), 2, 32, 0.5, 3).dtype == torch.float64


def test_the_planned_width_holds() -> None:
    """Networks as wide as planned vary as asked, within 35 %: variances of 60 networks are known to about 20 %."""
    plan = plan_width(PAIR, 0.5, 0.4, width=128, networks=100, seed=1)
    assert plan.width * 0.5 >= 25
    kernels = sample_kernels(PAIR, 3, plan.width, 0.5, 60, seed=7)
    assert float(kernels.var(0).mean().sqrt()) == pytest.approx(0.4, rel=0.35)
    thinner = plan_width(PAIR, 0.05, 0.4, width=128, networks=30)
    assert thinner.width > plan.width
    assert len(thinner.pilots) == 2
    assert "not a theorem" in thinner.statement
    assert len(plan_width(PAIR, 1.0, 0.4, width=64, networks=20).pilots) == 1


def test_bad_input() -> None:
    for call in (
        lambda: sample_kernels(PAIR, density=0.0),
        lambda: sample_kernels(PAIR, width=0),
        lambda: plan_width(PAIR, 0.5, 0.0),
        lambda: plan_width(PAIR, 0.5, 0.1, networks=2),
        lambda: plan_width(0 * PAIR, 0.5, 0.1),
    ):
        with pytest.raises(BadInput):
            call()
    assert float(limit(PAIR)[0, 1]) == pytest.approx(1.7378446792, abs=1e-10)
