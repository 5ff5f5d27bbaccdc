"""What a model's forward asks for is an input, whatever its place or name in the data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prunus
from prunus.adapters import as_batch, as_inputs, call
from prunus.training import distil


class Both(nn.Module):
    """Needs two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(16, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.last(torch.relu(self.a(u) + self.b(v)))


class Named(Both):
    """The second is called as labels often are."""

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        return super().forward(u, y)


class Optional(Both):
    """It may be left out."""

    def forward(self, u: Tensor, y: Tensor | None = None) -> Tensor:
        return super().forward(u, u[:, :8] if y is None else y)


U, V = torch.randn(64, 16), torch.randn(64, 8)
NAMES = ["a.weight", "b.weight", "last.weight"]


@pytest.mark.parametrize(
    "data",
    [list(zip(U, V)), (U, V), TensorDataset(U, V), DataLoader(TensorDataset(U, V), 8)],
    ids=["list", "tuple", "data set", "loader"],
)
def test_the_last_of_two_inputs_is_no_label(data: Any) -> None:
    torch.manual_seed(0)
    teacher = Both()
    student = copy.deepcopy(teacher)
    assert list(prunus.reconstruct(student, 0.5, data, "unstructured", samples=64)) == NAMES
    history = distil(student, teacher, data, "3ep")
    assert history[-1].loss < history[0].loss


@pytest.mark.parametrize("model", [Named(), Optional()])
def test_an_input_with_the_name_of_a_label(model: nn.Module) -> None:
    data = {"u": U, "y": V}
    assert list(prunus.reconstruct(model, 0.5, data, "unstructured", samples=64)) == NAMES
    with torch.no_grad():
        assert torch.equal(call(model, as_inputs(model, as_batch(data))), model(U, V))


def test_labels_stay_labels() -> None:
    class Judged(nn.Linear):
        def forward(self, input: Tensor, labels: Tensor | None = None) -> Tensor:
            assert labels is None
            return super().forward(input)

    found = torch.arange(64) % 4
    for data in ((U, found), {"input": U, "labels": found}, {"input": U, "y": found}):
        assert len(prunus.reconstruct(Judged(16, 4), 0.5, data, "unstructured", samples=64)) == 1
    assert as_inputs(Both(), as_batch((U, V, found))).labels is found
    mixed = as_inputs(Both(), as_batch(({"u": U, "v": V}, found)))
    assert mixed.labels is found
    assert not mixed.args
