"""Models with habits of their own: each is shrunk right, or refused in one sentence that names the place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.structure import find_removal


class Own(nn.Module):
    """Two layers with something between them that the caller writes."""

    def __init__(self, between: Callable[[Tensor], Tensor], units: int = 32, read: int = 32) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(16, units), nn.Linear(read, 4), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(F.relu(self.a(x))))


class Multiplied(nn.Module):
    """A matrix of the model's own, read by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.matrix = nn.Linear(16, 32), nn.Parameter(torch.randn(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ij->bj", F.relu(self.a(x)), self.matrix)


class ReadTurned(Multiplied):
    """The same matrix, kept and read the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 32))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x)) @ self.matrix.T


class OwnLinear(nn.Module):
    """A layer that multiplies with its weight transposed, as some language models do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class GroupedQueries(nn.Module):
    """Attention with two key heads for eight query heads, the sizes open (-1) or written in the code."""

    def __init__(self, heads: int, shared: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, size) for size in (32, 8, 8))
        self.o, self.counts = nn.Linear(32, 16), (heads, shared, shared)

    def forward(self, x: Tensor) -> Tensor:
        parts = zip((self.q, self.k, self.v), self.counts)
        q, k, v = (layer(x).view(*x.shape[:2], count, 4).transpose(1, 2) for layer, count in parts)
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


def _plain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), *(between or (nn.ReLU(),)), nn.Linear(32, 4))


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "in DataParallel": lambda: nn.DataParallel(_plain()),
    "compiled": lambda: torch.compile(_plain(), backend="eager"),
    "slopes by channel": lambda: _plain(nn.PReLU(32)),
    "one slope": lambda: _plain(nn.PReLU()),
    "a matrix of its own": Multiplied,
    "a matrix of its own, transposed": ReadTurned,
    "linear layers of its own": lambda: nn.Sequential(OwnLinear(16, 32), nn.ReLU(), OwnLinear(32, 4)),
    "reversed": lambda: Own(lambda x: x.flip(1)),
    "neighbours joined": lambda: Own(lambda x: x.view(len(x), -1, 2).amax(2), read=16),
    "grouped queries": lambda: GroupedQueries(-1, -1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_shrunk_right(name: str) -> None:
    torch.manual_seed(0)
    model = RIGHT[name]().eval()
    x = torch.randn(2, 5, 16) if isinstance(model, GroupedQueries) else torch.randn(2, 16)
    before = copy.deepcopy(model.state_dict())
    removal = find_removal(model, 0.5, example=x)
    small, masked = removal.apply(), removal.masks.apply_(copy.deepcopy(model))
    assert sum(p.numel() for p in small.parameters()) < 0.7 * sum(p.numel() for p in model.parameters())
    other = torch.randn(3, *x.shape[1:])
    with torch.no_grad():
        assert float((small(other) - masked(other)).abs().max()) < 1e-5
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a view with its size": (lambda: Own(_eights), r"Own \(Own.forward, line \d+\) fixes a size"),
    "a view that moves units into the batch": (lambda: Own(lambda x: x.view(-1, 32)), "fixes a size"),
    "rolled": (lambda: Own(lambda x: x.roll(3, 1)), r"a \(its outputs are .* away from the masked"),
    "divided by its size": (lambda: Own(lambda x: x / x.shape[1]), r"a \(its outputs are .* away from the masked"),
    "softmax over units": (lambda: Own(lambda x: x.softmax(1)), r"a \(softmax in the model itself\)"),
    "a weight that is computed": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 32)), nn.Linear(32, 4)),
        "its weight is computed; .*remove_parametrizations",
    ),
    "heads written in the code": (lambda: GroupedQueries(8, 2), r"\(GroupedQueries\.forward.*, line \d+\) fixes"),
}


def _eights(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 4, 8).flatten(1)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence(name: str) -> None:
    make, text = REFUSED[name]
    torch.manual_seed(0)
    model = make().eval()
    x: Any = torch.randn(2, 5, 16) if isinstance(model, GroupedQueries) else torch.randn(2, 16)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(prunus.BadInput, match=text):
        prunus.shrink(model, 0.5, example=x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
