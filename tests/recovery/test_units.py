"""Parts of a unit that change no more run once for each batch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.adapters import Batch, as_batch
from prunus.errors import BadInput
from prunus.layers import Weight, prunable_weights
from prunus.recovery import _reconstruct
from prunus.recovery._moments import _add_square
from prunus.recovery._units import UnitWalk, divide


class _Counted(nn.Linear):
    """Counts how often it runs."""

    runs = 0

    def forward(self, input: Tensor) -> Tensor:
        self.runs += 1
        return super().forward(input)


class _InPlace(_Counted):
    """Changes what it is given."""

    def forward(self, input: Tensor) -> Tensor:
        input.add_(1.0)
        return super().forward(input)


class _Block(nn.Module):
    """One linear layer that runs once, one that works in place, one that runs twice, and one that is not done."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.changing, self.twice, self.last = _Counted(4, 4), _InPlace(4, 4), _Counted(4, 4), _Counted(4, 4)
        self.normed = nn.Sequential(_Counted(4, 4), nn.BatchNorm1d(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.once(inputs).relu_()
        hidden = self.changing(hidden) + hidden
        hidden = self.twice(self.twice(hidden))
        found: Tensor = self.last(self.normed(hidden))
        return found


def test_settled_parts_run_once_and_the_output_stays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), _Block()).eval()
    block = model[1]
    assert isinstance(block, _Block)
    batches = [as_batch(torch.randn(3, 4)) for _ in range(2)]
    plain, walk = (UnitWalk(model, ["0", "1"], batches) for _ in range(2))
    with torch.no_grad():
        for each in (plain, walk):
            each.advance()
        walk.settle([p for name, p in block.named_parameters() if "last" not in name], [block.last.weight])
        wanted = [plain.run(index) for index in range(2)]
        parts = (block.once, block.changing, block.twice, block.normed[0], block.last)
        before = [part.runs for part in parts]
        for _ in range(3):
            assert all(torch.equal(walk.run(index), wanted[index]) for index in range(2))
    # Two batches, three passes: kept outputs; work in place; two runs in a pass; a batch norm beside it; not done.
    assert [part.runs - was for part, was in zip(parts, before)] == [2, 6, 12, 2, 6]


def test_a_part_with_a_batch_norm_inside_is_not_kept_and_others_take_no_memory_beyond_what_there_is() -> None:
    model = nn.Sequential(_Block()).eval()
    batches = [as_batch(torch.randn(3, 4))]
    walk = UnitWalk(model, ["0"], batches, memory=0.0)
    with torch.no_grad():
        walk.settle(list(model.parameters()), [])
        assert model[0].normed not in walk.parts.known
        wanted, runs = walk.run(0), model[0].once.runs
        assert torch.equal(walk.run(0), wanted)
    assert model[0].once.runs == runs
    assert walk.room.taken == 0


def test_squares_of_lines_are_added_block_by_block() -> None:
    lines = torch.randn(2, 30, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = torch.ones(2, 10, 10, dtype=torch.float64)
    _add_square(total, lines, block=4)
    assert torch.allclose(total, 1 + lines.transpose(1, 2) @ lines, rtol=1e-12)


class _Routed(nn.Module):
    """The second layer is for samples that begin with a positive number; `bias` has as many lines as the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        assert len(bias) == 4
        chosen = x[:, :1] > 0
        x = self.first(x)
        return torch.where(chosen, self.second(x), x) + bias[0] if bool(chosen.any()) else x + bias[0]


def test_layers_that_two_samples_do_not_reach_are_found_by_the_whole_batch() -> None:
    data = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data[:, 0] = -data[:, 0].abs()
    data[3::4, 0] = 1.0  # in every batch of four one sample, wherever it stands
    model = _Routed()
    batches = [{"x": lines, "bias": torch.zeros(4)} for lines in data.split(4)]
    masks = prunus.reconstruct(model, 0.5, batches, pattern="unstructured", samples=64)
    assert set(masks) == {"first.weight", "second.weight"}


class _Twice(nn.Module):
    """Runs its second layer once on a few samples, twice on more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        return x if len(x) < 3 else self.second(x)


def test_a_model_that_runs_otherwise_on_two_samples_is_divided_by_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def watched(model: nn.Module, weights: Mapping[str, Weight], batch: Batch) -> list[str]:
        seen.append(batch.size)
        return divide(model, weights, batch)

    monkeypatch.setattr(_reconstruct, "divide", watched)
    prunus.reconstruct(_Twice(), 0.25, torch.randn(64, 8), pattern="unstructured", samples=64)
    prunus.reconstruct(nn.Sequential(nn.Linear(8, 8)), 0.25, torch.randn(64, 8), pattern="unstructured", samples=64)
    assert seen[0] > 2
    assert seen[1] == 2


class _Repeated(nn.Module):
    """A layer in a list runs twice, another never."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.spare = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 16)
        self.body = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.body[1](self.body[0](self.stem(x))))
        return self.head(torch.relu(self.body[0](x)))


def test_a_list_is_no_unit_and_what_never_runs_can_be_skipped() -> None:
    torch.manual_seed(0)
    model, batch = _Repeated(), as_batch(torch.randn(2, 8))
    weights = prunable_weights(model)
    with pytest.raises(BadInput, match="never reach 'spare"):
        divide(model, weights, batch)
    assert divide(model, weights, batch, skip=True) == [""]  # the whole model is what runs once around the list
    once = {name: weight for name, weight in weights.items() if not name.startswith("body")}
    assert divide(model, once, batch, skip=True) == ["stem", "head"]
    masks = prunus.reconstruct(model, 0.5, torch.randn(64, 8), "unstructured", exclude=("spare", "head"))
    assert masks.sparsity == pytest.approx(0.5, abs=0.01)
