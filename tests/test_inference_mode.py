"""Inside `torch.no_grad` and `torch.inference_mode` all works as outside; what torch cannot change is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from prunus.training import distil, fit


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _reconstruct(model: nn.Module, data: torch.Tensor) -> None:
    prunus.reconstruct(model, 0.5, data, "unstructured", samples=64)


def _distil(model: nn.Module, data: torch.Tensor) -> None:
    prunus.prune(model, 0.5)
    distil(model, _model(), data)


def _fit(model: nn.Module, data: torch.Tensor) -> None:
    fit(model, (data, torch.arange(64) % 4), "1ep")


def _prune(model: nn.Module, data: torch.Tensor) -> None:
    prunus.prune(model, 0.5)


def _damage(model: nn.Module, data: torch.Tensor) -> None:
    prunus.recovery.measure_damage(model, data, "unstructured", samples=64)


WORK = {"reconstruct": _reconstruct, "distil": _distil, "fit": _fit, "prune": _prune, "damage": _damage}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("work", WORK)
def test_modes_around_make_no_difference(work: str, mode: Callable[[], AbstractContextManager[object]]) -> None:
    data, outside, inside = torch.randn(64, 16), _model(), _model()
    WORK[work](outside, data)
    with mode():
        WORK[work](inside, data)
    assert all(torch.equal(one, two) for one, two in zip(outside.parameters(), inside.parameters()))
    assert not any(each.is_inference() for each in inside.parameters())


def test_weights_made_in_inference_mode_are_pruned_and_refused_where_torch_must_change_them() -> None:
    data = torch.randn(64, 16)
    with torch.inference_mode():
        model = _model()
    for work in ("reconstruct", "fit", "damage"):
        with pytest.raises(BadInput, match=r"'0.weight' was made inside torch.inference_mode.*copy.deepcopy"):
            WORK[work](model, data)
    again = copy.deepcopy(model)
    _reconstruct(again, data)
    assert prunus.prune(model, 0.5).sparsity == 0.5
    assert int((next(model.parameters()) == 0).sum()) == 128
    with pytest.raises(BadInput, match=r"was made inside torch.inference_mode"):
        distil(model, _model(), data)
