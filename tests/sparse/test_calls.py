"""Fused copies of models whose forward branches: on arguments that may be left out, on types, on training."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional

import prunus
from prunus.errors import BadInput, PrunusWarning, RunFailed
from prunus.sparse import compress, explain, load, save


class Net(nn.Module):
    """Two layers; what is between them differs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 16)


class Flag(Net):
    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        y = self.b(self.a(x).relu())
        return y * 3 if flag is True else y


class Told(Net):
    def forward(self, x: Tensor, flag: bool) -> Tensor:
        return self.b(self.a(x).relu()) * (3 if flag is True else 1)


class Scale(Net):
    def forward(self, x: Tensor, scale: Any = None, times: float = 1.0) -> Tensor:
        if scale is not None:
            x = x * 2
        return self.b(self.a(x).relu()) * times


class Kind(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x if isinstance(x, Tensor) else x[0])
        return self.b(h.relu()) if isinstance(h, Tensor) else h[0]


class Either(Net):
    def forward(self, x: Tensor, head: Any = None) -> Tensor:
        h = self.a(x).relu()
        return h if head is None else self.b(h)


class Masked(Net):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.a(x).relu()
        if mask is not None:
            h = h * mask
        return self.b(h)


class Pair(Net):
    def forward(self, x: Any) -> Tensor:
        """Takes a tensor or a list of one; what is traced cannot know which."""
        return self.b(self.a(x[0] + 1).relu() if isinstance(x, list) else self.a(x).relu())


class Rescaled(Net):
    """Changes its weights when it runs for the first time, as RWKV does."""

    rescaled: bool

    def __init__(self) -> None:
        super().__init__()
        self.rescaled = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.rescaled:
            with torch.no_grad():
                self.a.weight.div_(2)
            self.rescaled = True
        return self.b(2 * self.a(x).relu())


class Constants(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu() + torch.tensor([0.5]) + torch.arange(64) / 64)


class Aux(Net):
    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Any:
        h = functional.dropout(self.a(x).relu(), training=self.training)
        return (self.b(h), self.aux(h)) if self.training else self.b(h)


def pruned(model: nn.Module) -> nn.Module:
    prunus.prune(model.eval(), 0.5, pattern="balanced:16")
    return model


def x() -> Tensor:
    return torch.randn(4, 64, generator=torch.Generator().manual_seed(7))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def same(fast: nn.Module, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("example", [None, x()])
@pytest.mark.parametrize("kind", [Flag, Scale, Kind, Either, Masked, Constants, Aux])
def test_what_is_left_out_has_its_default(kind: type, example: Any, tmp_path: Path) -> None:
    model = pruned(kind())
    fast = compress(model, example=example, fuse=True, select="always")
    assert isinstance(fast, GraphModule)
    same(fast, model, x())
    again = load(save(fast, tmp_path / "fast.safetensors"), kind())  # a fresh model, in training mode
    same(again, model, x())


def test_calls_that_would_take_another_branch_are_refused() -> None:
    fast = compress(pruned(Flag()), fuse=True, select="always")
    fast(x(), False)
    for call in (lambda: fast(x(), True), lambda: fast(x(), flag=True)):
        with pytest.raises(BadInput, match="for calls with flag=False: compress the model with an example"):
            call()
    with pytest.raises(BadInput, match="that give 'flag' as a tensor or number"):
        compress(pruned(Told()), fuse=True, select="always")(x(), True)
    model = pruned(Masked())
    mask = (x() > 0).float()
    with pytest.raises(BadInput, match="calls with mask=None"):
        compress(model, fuse=True, select="always", example=x())(x(), mask)
    given = compress(model, fuse=True, select="always", example=(x(), mask))
    same(given, model, x(), 1 - mask)
    with pytest.raises(BadInput, match="that give 'mask'"):
        given(x())


def test_what_the_example_gives_is_what_the_graph_is_made_for(tmp_path: Path) -> None:
    flag, mask = pruned(Flag()), (x() > 0).float()
    fast = compress(flag, example={"x": x(), "flag": True}, fuse=True, select="always")
    same(fast, flag, x(), flag=True)
    with pytest.raises(BadInput, match="with flag=True"):
        fast(x())
    masked = pruned(Masked())
    again = load(save(compress(masked, example=(x(), mask), fuse=True, select="always"), tmp_path / "m"), Masked())
    same(again, masked, x(), mask)
    loaded = load(save(fast, tmp_path / "f"), Flag())
    same(loaded, flag, x(), flag=True)


def test_numbers_may_be_others() -> None:
    model = pruned(Scale())
    fast = compress(model, fuse=True, select="always")
    same(fast, model, x(), times=3.0)


def test_a_graph_that_answers_otherwise_is_not_used() -> None:
    model = pruned(Pair())
    fast = compress(model, example=([x()],), fuse=True, select="always")
    assert not isinstance(fast, GraphModule)
    same(fast, model, [x()])
    same(fast, model, x())


def test_channels_that_another_call_reads_stay() -> None:
    model = Either().eval()
    prunus.prune(model, 0.5, pattern="channels")
    fast = compress(model, select="always")
    for head in (None, True):
        same(fast, model, x(), head)


@pytest.mark.parametrize("kind", [Flag, Masked, Constants, Aux])
def test_fused_copies_are_copied_and_pickled_whole(kind: type, tmp_path: Path) -> None:
    model = pruned(kind())
    fast = compress(model, example=x(), fuse=True, select="always")
    body = io.BytesIO()
    torch.save(fast, body)
    body.seek(0)
    others = (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), torch.load(body, weights_only=False))
    for number, other in enumerate((*others, copy.deepcopy(others[1]), pickle.loads(pickle.dumps(others[0])))):
        assert isinstance(other, GraphModule)
        assert isinstance(other, type(fast).__mro__[1])
        same(other, model, x())
        assert explain(other) == explain(fast)
        same(load(save(other, tmp_path / str(number)), kind()), model, x())
        if kind is Flag:
            with pytest.raises(BadInput, match="flag"):
                other(x(), flag=True)


@dataclass
class Answer:
    scores: Tensor
    hidden: Any = None


class Wrapped(Net):
    answer: Any = staticmethod(lambda y: y)

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.b(self.a(x).relu()))


def spoiled(model: Wrapped) -> None:
    """A copy that is compressed answers with something else."""
    answer, first = model.answer, []

    def other(y: Tensor) -> Any:
        first.append(1)
        return answer(y if len(first) == 1 else y + 1)

    model.answer = other


ANSWERS = {
    "dataclass": lambda y: Answer(y),
    "nested": lambda y: [Answer(torch.ones(1), {"y": y})],
    "namespace": lambda y: SimpleNamespace(y=y),
    "masked": lambda y: y.masked_fill(torch.eye(4, 16) > 0, -torch.inf),
    "nan": lambda y: y.masked_fill(torch.eye(4, 16) > 0, torch.nan),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_is_compared(answer: str) -> None:
    model = pruned(Wrapped())
    model.answer = ANSWERS[answer]
    compress(model, example=x(), select="always")
    spoiled(model)
    with pytest.raises((RunFailed, BadInput), match=r"is off by|another way each time"):
        compress(model, example=x(), select="always")


def test_infinity_in_other_places_is_seen() -> None:
    model, calls = pruned(Wrapped()), []

    def answer(y: Tensor) -> Tensor:
        calls.append(1)
        return y.masked_fill(torch.eye(4, 16).roll(int(len(calls) > 1), 1) > 0, -torch.inf)

    model.answer = answer
    with pytest.raises((RunFailed, BadInput), match=r"other places|another way"):
        compress(model, example=x(), select="always")


def test_an_answer_that_cannot_be_compared_is_told() -> None:
    model = pruned(Wrapped())
    model.answer = lambda y: y.argmax(1)
    with pytest.warns(PrunusWarning, match="could not be compared"):
        compress(model, example=x(), select="always")


@pytest.mark.parametrize("fuse", [False, True])
def test_a_model_that_changes_its_weights_when_it_runs(fuse: bool, tmp_path: Path) -> None:
    model = pruned(Rescaled())
    before = copy.deepcopy(model)
    fast = compress(model, example=x(), select="always", fuse=fuse)
    assert torch.equal(model.a.weight, before.a.weight)
    assert not model.rescaled
    with torch.no_grad():
        expected = before(x())
        torch.testing.assert_close(fast(x()), expected)
        again = load(save(fast, tmp_path / "fast"), Rescaled())
        torch.testing.assert_close(again(x()), expected)
        if not fuse:
            twice = compress(fast, example=x(), select="always")
            torch.testing.assert_close(load(save(twice, tmp_path / "twice"), Rescaled())(x()), expected)
    unseen = compress(model, select="always", fuse=fuse)
    assert not model.rescaled
    with pytest.raises(BadInput, match="cannot be changed in place"):
        unseen(x())
