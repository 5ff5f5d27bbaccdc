"""Outputs of earlier units that a model still reads, by whatever way, are found and kept."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import as_batch
from prunus.layers import prunable_weights
from prunus.recovery._lookback import looks_back
from prunus.recovery._units import divide


class Beside(nn.Module):
    """A row of layers; the output of the first, `gate`, is read again before the fourth."""

    def __init__(self, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.read = read
        self.gate, self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = self.gate(x)
        return self.c(self.read(torch.relu(self.b(torch.relu(self.a(x)))), first))


def _branch(x: Tensor, gate: Tensor) -> Tensor:
    return x if gate.sum() > 0 else -x


def _listed(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.tensor([1.0 if row[0] > 0 else -1.0 for row in gate.tolist()])[:, None]


def _arrayed(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.from_numpy(gate.numpy() > 0)


def _some(x: Tensor, gate: Tensor) -> Tensor:
    out, mask = x.clone(), gate[:, 0] > 0
    out[mask] = -x[mask]
    return out


READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number": lambda x, gate: x * gate,
    "comparison": lambda x, gate: x * (gate > 0),
    "where": lambda x, gate: torch.where(gate > 0, x, -x),
    "argmax": lambda x, gate: x.gather(1, gate.argmax(1, keepdim=True)).expand(-1, 16),
    "topk": lambda x, gate: x.gather(1, gate.topk(16, dim=1).indices),
    "whole": lambda x, gate: x * gate.round().long().clamp(-1, 1),
    "repaired": lambda x, gate: x + gate.nan_to_num(),
    "clamp": lambda x, gate: x.masked_fill(gate.abs() < 0.3, 0.0),
    "branch": _branch,
    "list": _listed,
    "array": _arrayed,
    "mask": _some,
    "written": lambda x, gate: torch.zeros_like(x).copy_(gate.sign()) * x,
}


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_an_earlier_output_is_seen(read: str) -> None:
    torch.manual_seed(0)
    model = Beside(READS[read]).eval()
    batch = as_batch(torch.randn(8, 16))
    units = divide(model, prunable_weights(model), batch)
    with torch.no_grad():
        assert units == ["gate", "a", "b", "c"]
        assert looks_back(model, units, batch)


SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda x, gate: x,
    "shape": lambda x, gate: x + gate.new_zeros(gate.shape) + torch.zeros_like(gate) + len(gate),
    "unused": lambda x, gate: (gate * 2, x)[1],
}


@pytest.mark.parametrize("read", SHAPES)
def test_a_shape_is_no_reading_and_neither_is_what_nothing_is_made_of(read: str) -> None:
    model = Beside(SHAPES[read]).eval()
    batch = as_batch(torch.randn(8, 16))
    with torch.no_grad():
        assert not looks_back(model, ["gate", "a", "b", "c"], batch)


def test_rows_of_layers_do_not_look_back_and_ends_do() -> None:
    torch.manual_seed(0)
    inplace = nn.Sequential(
        nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.ReLU(True), nn.Linear(16, 4)
    )
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    layers = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoder(block, 3, enable_nested_tensor=False))
    for model, data in ((inplace, torch.randn(8, 16)), (layers, torch.randn(4, 5, 16))):
        batch = as_batch(data)
        units = divide(model, prunable_weights(model), batch)
        with torch.no_grad():
            assert not looks_back(model.eval(), units, batch)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x).argmax(1), self.b(x)

    model, batch = Branches().eval(), as_batch(torch.randn(8, 16))
    with torch.no_grad():
        assert not looks_back(model, ["a", "b"], batch)
        assert looks_back(model, ["a", "b"], batch, end=True)


def _lost(model: nn.Module, dense: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        here, there = model(x), dense(x)
    return float((here - there).square().sum() / (there - there.mean(0)).square().sum())


def _correlated(columns: int, count: int = 2048) -> Tensor:
    return torch.randn(count, columns // 4) @ torch.randn(columns // 4, columns)


def test_layers_behind_a_gate_are_fitted_to_what_they_are_given() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 128), nn.Linear(128, 64)
            self.c, self.d = nn.Linear(64, 128), nn.Linear(128, 16)

        def forward(self, x: Tensor) -> Tensor:
            keep = self.gate(x)
            x = torch.relu(self.b(torch.relu(self.a(x))))
            return self.d(torch.relu(self.c(x * (keep > 0))))

    torch.manual_seed(0)
    x, model = _correlated(64), Gated()
    dense = copy.deepcopy(model)
    notes = prunus.reconstruct(model, 0.5, x, samples=2048).notes["layers"]
    assert _lost(model, dense, x) < 0.15  # 0.46 with made-up inputs
    assert all(notes[f"{name}.weight"]["after"] < 0.9 * notes[f"{name}.weight"]["masked"] for name in "cd")


class Experts(nn.Module):
    """Each sample goes to the experts that the gate chooses for it."""

    def __init__(self, several: bool) -> None:
        super().__init__()
        self.several = several
        self.first, self.gate, self.last = nn.Linear(32, 32), nn.Linear(32, 4), nn.Linear(32, 8)
        self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        shares, chosen = self.gate(x).softmax(-1).topk(2 if self.several else 1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if self.several:
                rows, places = torch.where(chosen == number)
                out.index_add_(0, rows, expert(x[rows]) * shares[rows, places, None])
            else:
                mine = chosen[:, 0] == number
                out[mine] = expert(x[mine])
        return self.last(torch.relu(out))


@pytest.mark.parametrize("several", [False, True])
def test_experts_that_are_chosen_by_the_data(several: bool) -> None:
    torch.manual_seed(0)
    x, model = _correlated(32), Experts(several)
    dense, plain = copy.deepcopy(model), copy.deepcopy(model)
    masks = prunus.reconstruct(model, 0.5, x, "unstructured", samples=1024)
    prunus.prune(plain, 0.5)
    assert len(masks) == 7
    assert _lost(model, dense, x) < 0.5 * _lost(plain, dense, x)
