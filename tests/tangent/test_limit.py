"""The limiting kernel against the ledger's reference values (K-2, K-5, K-9) and its invariants."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import prunus
from prunus.errors import BadInput
from prunus.tangent import limit
from prunus.theory import tangent as theory

REFERENCE = {  # angle -> depth -> kernel of unit vectors (K-2)
    0.0: {1: 2.0, 2: 3.0, 3: 4.0, 5: 6.0},
    math.pi / 6: {1: 1.60253061607, 2: 2.24423238726, 3: 2.81494753697, 5: 3.80582446670},
    math.pi / 3: {1: 0.942331114378, 2: 1.35147956112, 3: 1.73784467922, 5: 2.46289313246},
    math.pi / 2: {1: 0.318309886184, 2: 0.685708636283, 3: 1.06038810680, 5: 1.79219596684},
    2 * math.pi / 3: {1: -0.0576688856224, 2: 0.343862246273, 3: 0.742249322561, 5: 1.50710680199},
    math.pi: {1: 0.0, 2: 0.318309886184, 3: 0.685708636283, 5: 1.43039049721},
}


def unit_pair(angle: float) -> Tensor:
    return torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)


@pytest.mark.parametrize("angle", REFERENCE)
def test_reference_values(angle: float) -> None:
    for depth, expected in REFERENCE[angle].items():
        kernel = limit(unit_pair(angle), depth=depth)
        assert float(kernel[0, 1]) == pytest.approx(expected, abs=1e-10)
        assert float(kernel[0, 0]) == pytest.approx(depth + 1, abs=1e-14)
        assert torch.equal(kernel, kernel.T)


def test_norms_multiply() -> None:
    x = unit_pair(math.pi / 3) * torch.tensor([[2.0], [1.5]], dtype=torch.float64)
    values = [float(limit(x, depth=depth)[0, 1]) for depth in (1, 2, 3, 5)]
    assert values == pytest.approx([2.82699334313, 4.05443868337, 5.21353403765, 7.38867939737], abs=1e-10)


def test_pruning_and_rescaling() -> None:
    x = unit_pair(math.pi / 3)
    dense = limit(x)
    assert float(limit(x, density=0.5, rescale=False)[0, 1]) == pytest.approx(0.2172305849, abs=1e-10)
    assert torch.equal(limit(x, density=0.3), dense)
    assert float(limit(x, density=0.5, rescale="weights")[0, 1]) == pytest.approx(0.9562620900, abs=1e-10)
    assert torch.equal(limit(x, density=1.0, rescale="weights"), dense)


def test_pruned_input() -> None:
    first = limit(unit_pair(math.pi / 3), depth=2, density=0.3, prune_input=True)
    assert float(first[0, 1]) == pytest.approx(1.2980735708, abs=1e-10)
    x = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.8, 0.6, 0.0, 0.0]], dtype=torch.float64)
    second = limit(x, depth=2, density=0.5, prune_input=True)
    assert float(second[0, 1]) == pytest.approx(1.7740915056, abs=1e-10)
    assert second.diagonal().tolist() == pytest.approx([3.0, 3.0], abs=1e-12)
    plain = limit(x, depth=2, density=0.5, prune_input=True, rescale=False)
    torch.testing.assert_close(plain, second * 0.5**3, rtol=1e-14, atol=0)
    assert torch.equal(limit(x, depth=2, prune_input=True), limit(x, depth=2))


def test_drawn_input_masks_agree_with_theory() -> None:
    """14 coordinates are beyond enumeration here but not in the theory; the mean of 4096 draws, seed fixed."""
    x = torch.randn(2, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x /= x.norm(dim=1, keepdim=True)
    exact = theory.pruned_input_limit(x[0].numpy(), x[1].numpy(), 0.5, 3)["limit"]
    drawn = limit(x, depth=3, density=0.5, prune_input=True)
    assert float(drawn[0, 1]) == pytest.approx(exact, abs=0.02)
    again = limit(x, depth=3, density=0.5, prune_input=True)
    other = limit(x, depth=3, density=0.5, prune_input=True, seed=1)
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)


def test_many_inputs_agree_with_theory() -> None:
    generator = torch.Generator().manual_seed(0)
    x1, x2 = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (700, 9))
    kernel = limit(x1, x2, depth=4)
    cosine = (x1 @ x2.T) / (x1.norm(dim=1)[:, None] * x2.norm(dim=1))
    expected = theory.limiting_kernel(torch.acos(cosine).numpy(), 4, x1.norm(dim=1)[:, None].numpy(), x2.norm(dim=1))
    torch.testing.assert_close(kernel, torch.as_tensor(expected["limit"]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(limit(x1, depth=4), limit(x1, x1.clone(), depth=4), rtol=1e-12, atol=1e-12)


def test_safe_at_the_ends() -> None:
    """Parallel, opposite, nearly parallel and zero inputs; float32 inputs too."""
    tiny = 1e-9
    rows = [[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0], [0.0, 0.0], [3.0 - 4 * tiny, 4.0 + 3 * tiny]]
    x = torch.tensor(rows, dtype=torch.float64)
    kernel = limit(x, depth=3)
    assert torch.isfinite(kernel).all()
    assert kernel[3].tolist() == [0.0] * 5
    assert float(kernel[0, 1]) == pytest.approx(4 * 50, abs=1e-10)
    assert float(kernel[0, 2]) == pytest.approx(25 * 0.685708636283, abs=1e-9)
    near = theory.limiting_kernel(tiny, 3)["limit"] * 25
    assert float(kernel[0, 4]) - 100 == pytest.approx(near - 100, rel=1e-3)
    assert limit(x.float()).dtype == torch.float64
    assert torch.isfinite(limit(x, depth=3, density=0.4, prune_input=True)).all()


def test_positive_semidefinite_and_homogeneous() -> None:
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    kernel = limit(x, depth=3)
    assert float(torch.linalg.eigvalsh(kernel)[0]) > 0
    torch.testing.assert_close(limit(2 * x, 3 * x), 6 * limit(x, x.clone()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"depth": 0}, "depth"),
        ({"depth": 2.0}, "depth"),
        ({"rescale": "masks"}, "rescale"),
        ({"x2": torch.ones(2, 3)}, "one size"),
        ({"x1": torch.ones(3)}, "rows"),
        ({"x1": torch.full((2, 2), math.nan)}, "NaN"),
        ({"density": 0.5, "rescale": "weights", "prune_input": True}, "prune_input"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        limit(**{"x1": torch.ones(2, 2), **options})
    assert str(caught.value).count(".") - str(caught.value).count("0.") <= 3
    assert "\n" not in str(caught.value)


def test_public_name() -> None:
    assert prunus.tangent.limit is limit
