from __future__ import annotations

import pytest
import torch

import prunus
from prunus.study.theory import predicted_energy


@pytest.mark.parametrize("pattern", ["unstructured", "balanced:16", "balanced:10", "2:4"])
@pytest.mark.parametrize("sparsity", [0.5, 0.87])
def test_predicted_energy_is_what_normal_weights_lose(pattern: str, sparsity: float) -> None:
    """512 x 640 normal weights: the share has a deviation below 3e-4, the band is 10 of them."""
    level = 0.5 if pattern == "2:4" else sparsity
    layer = torch.nn.Linear(640, 512, bias=False)
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    masks = prunus.find_masks(torch.nn.Sequential(layer), level, pattern=pattern)
    square = layer.weight.detach().double().square()
    removed = float(square[~masks["0.weight"]].sum() / square.sum())
    assert predicted_energy("magnitude", pattern, masks.sparsity, 1) == pytest.approx(removed, abs=3e-3)


def test_cases_without_a_result_give_none() -> None:
    assert predicted_energy("random", "channels", 0.3, 10) == 0.3
    assert predicted_energy("magnitude", "channels", 0.3, 10) is None
    assert predicted_energy("snip", "unstructured", 0.3, 10) is None
