"""Models whose state holds more than tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import prunus
from prunus.errors import BadInput
from prunus.recovery import ReconstructOptions
from support.training import same_bytes


class Remembering(nn.Module):
    """Has an extra state, as layers of quantisation libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))

    def get_extra_state(self) -> dict[str, Any]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state == {"version": 3}


@pytest.mark.parametrize("keep", [False, True])
def test_extra_state_that_is_no_tensor_is_left_alone(keep: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = Remembering(), torch.randn(64, 16)
    again = Remembering()
    again.load_state_dict(model.state_dict())
    options = ReconstructOptions(folder=tmp_path if keep else None)
    assert prunus.reconstruct(model, 0.5, data, options=options).sparsity == 0.5
    prunus.reconstruct(again, 0.5, data, options=options)  # from the folder, where there is one
    assert same_bytes(dict(model.named_parameters()), dict(again.named_parameters()))
    history = prunus.training.distil(model, Remembering(), data, "2it")
    assert len(history) == 1


@pytest.mark.parametrize("make", ["weight_norm", "prune"])
def test_weights_that_are_computed_are_refused_in_one_sentence(make: str) -> None:
    layer = nn.Linear(16, 16)
    if make == "prune":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(layer)
    model, data = nn.Sequential(nn.Linear(16, 16), layer, nn.Linear(16, 4)), torch.randn(64, 16)
    model(data)
    before = [value.clone() for value in model.state_dict().values()]
    with pytest.raises(BadInput, match=r"weights of '1' are computed .* permanent"):
        prunus.reconstruct(model, 0.5, data, "unstructured", samples=64)
    assert all(torch.equal(one, two) for one, two in zip(before, model.state_dict().values()))
    masks = prunus.reconstruct(model, 0.25, data, "unstructured", exclude=("1",), samples=64)
    assert list(masks) == ["0.weight", "2.weight"]
    if make == "prune":
        prune.remove(layer, "weight")
    else:
        nn.utils.remove_weight_norm(layer)
    masks = prunus.reconstruct(model, 0.5, data, "unstructured", samples=64)
    assert "1.weight" in masks
