"""What an undecided question about labels leaves behind is true: one label is near the top in both networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import prunus


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_of_undecided_labels_holds_everywhere(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 5)).eval()
    pruned = prunus.find_masks(model, 0.1).apply_(copy.deepcopy(model))
    point = torch.randn(1, 4)
    verdict = prunus.equivalent(model, pruned, prunus.Samples(point, 0.4), labels=True, boxes=12)
    assert verdict.status != "refuted", "these seeds give networks that agree near the point"
    noise = torch.randn(4000, 4)
    inputs = point + 0.3999 * noise / noise.norm(dim=1, keepdim=True) * torch.rand(4000, 1) ** 0.25
    with torch.no_grad():
        behind = [outputs.amax(1, keepdim=True) - outputs for outputs in (model(inputs), pruned(inputs))]
    nearest = torch.maximum(*behind).amin(1)  # the label that is closest to the top in both
    assert float(nearest.max()) <= max(verdict.bound, 0.0) + 1e-6
    if verdict.status == "undecided":
        assert f"{verdict.bound:.4g} of the largest" in verdict.statement
