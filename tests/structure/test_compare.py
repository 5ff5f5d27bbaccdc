"""The comparison of a smaller model with the masked original: what must not slip through, and what is no mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.structure import find_removal
from prunus.structure._compare import gap


class Halves(nn.Module):
    """The code doubles its first sixteen units, whichever they are: nothing may leave."""

    def __init__(self, *, bias: bool = True, after: Callable[[Tensor], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.a, self.b, self.after = nn.Linear(16, 32, bias=bias), nn.Linear(32, 4, bias=bias), after

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.a(x))
        return self.after(self.b(torch.cat([2 * hidden[:, :16], hidden[:, 16:]], 1)))


class Normed(nn.Module):
    """A residual stream under layer norms; with `halves` the code doubles its first sixteen units."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.first, self.last, self.halves = nn.LayerNorm(32), nn.LayerNorm(32), halves

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = torch.cat([2 * x[..., :16], x[..., 16:]], -1) if self.halves else x
        x = x + self.b(F.gelu(self.first(x)))
        return self.head(self.last(x) * torch.rsqrt(x.square().mean(-1, keepdim=True)))


class Limited(nn.Module):
    """Three whole numbers that equal the width; only one of them is the width."""

    def __init__(self) -> None:
        super().__init__()
        self.max_len, self.limit, self.k = 32, 32, 32
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.a(x[:, : self.max_len])).clamp(max=self.limit)
        return self.b(hidden.reshape(-1, self.k)).reshape(*hidden.shape[:2], 4)


class Turned(nn.Module):
    """Positions are turned in a part of each head that is, as it happens, all of it; the rest is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.o = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, v = (layer(x).view(*x.shape[:2], -1, 8).transpose(1, 2) for layer in (self.q, self.v))
        q = torch.cat([-q[..., :8], q[..., 8:]], -1)
        return self.o(F.scaled_dot_product_attention(q, q, v).transpose(1, 2).flatten(2))


def filled(y: Tensor, value: float) -> Tensor:
    return y.masked_fill(torch.tensor([False, False, True, True]), value)


HIDDEN: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "an example of zeros": (lambda: Halves(bias=False), torch.zeros(2, 16)),
    "-1e9 among the outputs": (lambda: Halves(after=lambda y: filled(y, -1e9)), torch.randn(2, 16)),
    "outputs that are whole numbers": (lambda: Halves(after=lambda y: y.argmax(1)), torch.randn(256, 16)),
    "outputs that are complex": (lambda: Halves(after=lambda y: torch.complex(y, y)), torch.randn(2, 16)),
    "half precision": (lambda: Halves().half(), torch.randn(2, 16).half()),
    "widths of layer norms": (lambda: Normed(halves=True), torch.randn(2, 16)),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_mistake_is_not_hidden(name: str) -> None:
    make, example = HIDDEN[name]
    torch.manual_seed(0)
    model = make().eval()
    with pytest.raises(prunus.BadInput, match=r"a \(its outputs are .* away from the masked"):
        prunus.shrink(model, 0.5, example=example, exact=not isinstance(model, Normed))


def test_tokens_that_are_all_alike_do_not_hide_a_mistake() -> None:
    class Texts(Halves):
        def __init__(self) -> None:
            super().__init__(bias=False)
            self.table = nn.Embedding(9, 16)
            self.table.weight.data[0] = 0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.table(x).flatten(0, 1))

    torch.manual_seed(0)
    with pytest.raises(prunus.BadInput, match="away from the masked"):
        prunus.shrink(Texts().eval(), 0.5, example=torch.zeros(2, 3, dtype=torch.long))


def test_outputs_of_minus_infinity_are_no_mistake() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), Filled()).eval()
    small = prunus.shrink(model, 0.5, example=torch.randn(2, 16))
    assert small[0].out_features == 16


class Filled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return filled(x, float("-inf"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_single_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8)]
    model = nn.Sequential(*layers).eval().to(dtype)
    small = prunus.shrink(model, 0.5, example=torch.randn(4, 64).to(dtype))
    assert {parameter.dtype for parameter in small.parameters()} == {dtype}
    assert small[2].weight.numel() < 0.6 * model[2].weight.numel()


def test_layer_norms_lose_units_where_that_is_asked_for() -> None:
    torch.manual_seed(0)
    model = Normed(halves=False).eval()
    small = prunus.shrink(model, 0.5, example=torch.randn(2, 16), exact=False)
    assert small.a.out_features == small.first.normalized_shape[0] == small.last.weight.numel() < 32


def test_only_numbers_that_are_widths_change() -> None:
    torch.manual_seed(0)
    model = Limited().eval()
    removal = find_removal(model, 0.5, example=torch.randn(2, 5, 16))
    small = removal.apply()
    assert (small.max_len, small.limit, small.k) == (32, 32, 16)
    masked = removal.masks.apply_(copy.deepcopy(model))
    other = 300 * torch.randn(2, 40, 16)
    with torch.no_grad():
        assert gap([small(other)], [masked(other)]) < 1e-5


def test_an_empty_part_of_a_head_is_no_obstacle() -> None:
    torch.manual_seed(0)
    removal = find_removal(Turned().eval(), 0.5, example=torch.randn(2, 5, 16))
    assert [(row.kind, row.before, row.after) for row in removal.rows] == [("heads", 4, 2)]


def test_layers_that_the_example_does_not_run_are_named() -> None:
    class Aided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.aid, self.other = (nn.Linear(i, o) for i, o in ((16, 32), (32, 4), (32, 4), (7, 5)))

        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            hidden = F.relu(self.a(x))
            return (self.b(hidden), self.aid(hidden)) if self.training else self.b(hidden)

    with pytest.warns(UserWarning, match="does not run aid:"):
        prunus.shrink(Aided().eval(), 0.5, example=torch.randn(2, 16))


def test_models_that_cannot_be_copied_are_refused() -> None:
    lazy = nn.Sequential(nn.LazyLinear(32), nn.Linear(32, 4))
    with pytest.raises(prunus.BadInput, match=r"0\.weight has no size yet"):
        prunus.shrink(lazy, 0.5, example=torch.randn(2, 16))
    with pytest.warns(FutureWarning):
        normed = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(16, 32)), nn.Linear(32, 4))
    with pytest.raises(prunus.BadInput, match="cannot be copied"):
        prunus.shrink(normed, 0.5, example=torch.randn(2, 16))


def test_gaps() -> None:
    one = torch.tensor([1.0, 2.0, -1e9])
    assert gap([one], [one.clone()]) == 0.0
    assert gap([one], [torch.tensor([1.0, 2.2, -1e9])]) == pytest.approx(0.2 / 2.2)
    assert gap([one], [torch.tensor([1.0, 2.0])]) == float("inf")
    assert gap([one], []) == float("inf")
    assert gap([torch.tensor([float("nan"), 1.0])], [torch.tensor([float("nan"), 1.0])]) == 0.0
    assert gap([torch.tensor([float("nan"), 1.0])], [torch.tensor([0.0, 1.0])]) == float("inf")
    assert gap([torch.tensor([1, 2, 3, 4])], [torch.tensor([1, 2, 3, 5])]) == 0.25
    close = gap([torch.tensor([10.0, 5.0, 1e-8])], [torch.tensor([10.0, 5.0, 2e-8])])
    assert close < 1e-8, "a rounding of next to nothing is not measured against itself"
