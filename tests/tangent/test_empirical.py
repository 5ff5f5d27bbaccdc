"""Every fast form against the Jacobian written out by autograd; blocks, budgets, outputs, masks, bad input."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.errors import BadInput
from prunus.tangent import Effort, empirical, parametrise
from prunus.tangent._products import Outer, Request, cheapest, product

Rows = dict[str, Tensor]


def oracle(model: nn.Module, x: Tensor, masks: prunus.Masks | None, rescale: bool) -> Tensor:
    """(n, C, n, C) by plain autograd, one output of one input after the other."""
    raw = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    factors = {}
    for name, value in raw.items():
        factors[name] = torch.ones_like(value)
        if masks is not None and name in masks:
            density = masks[name].double().mean().item()
            factors[name] = masks[name].to(value) * (density**-0.5 if rescale else 1.0)
    rows = []
    for one in x:
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        acting = {name: leaf * factors[name] for name, leaf in leaves.items()}
        for out in torch.func.functional_call(model, acting, (one[None],)).flatten():
            found = torch.autograd.grad(out, list(leaves.values()), retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([gradient.flatten() for gradient in found]))
    jacobian = torch.stack(rows).view(len(x), -1, len(rows[0]))
    return torch.einsum("aop,bqp->aobq", jacobian, jacobian)


def random_inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Odd(nn.Module):
    """Grouped, strided, dilated and reflected convolutions, in-place ReLU, a skip, a norm, a linear layer on pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=2, bias=False)
        self.third = nn.Conv2d(4, 6, 2, stride=2, padding=1)
        self.mix = nn.Linear(6, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        x = x + F.relu(self.second(x), inplace=True)
        x = F.relu(self.third(x)).flatten(2).transpose(1, 2)
        return self.head(torch.tanh(self.mix(x)).mean(1))


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    fc = prunus.models.make("fc:5-12-9-3", seed=0).double()
    ntk = parametrise(prunus.models.make("fc:5-12-9-1", init="normal", seed=1).double())
    conv = prunus.models.make("conv6:width=0.05,size=8", seed=2).double()
    torch.manual_seed(0)
    odd = Odd().double()
    odd(random_inputs(8, 2, 6, 6))  # running statistics
    return {
        "fc": (fc, random_inputs(6, 5)),
        "ntk": (ntk, random_inputs(6, 5)),
        "conv": (conv, random_inputs(3, 3, 8, 8)),
        "conv-ntk": (parametrise(conv), random_inputs(3, 3, 8, 8)),
        "odd": (odd.eval(), random_inputs(4, 2, 6, 6)),
    }


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("masked", [False, True])
def test_every_form_agrees_with_autograd(name: str, masked: bool) -> None:
    model, x = networks()[name]
    masks = prunus.find_masks(model, 0.6, score="random", seed=3) if masked else None
    for rescale in (False, True) if masked else (False,):
        expected = oracle(model, x, masks, rescale)
        n, outputs, size = len(x), expected.shape[1], float(expected.abs().max())
        trace = expected.diagonal(dim1=1, dim2=3).mean(-1)
        for method in ("auto", "entries", "rows", "pairs", "pixels", "filters", "jacobian"):
            effort = Effort(method=method, progress=False)

            def ours(*arguments: Tensor, output: str | int, effort: Effort = effort, rescale: bool = rescale) -> Tensor:
                return empirical(model, *arguments, masks=masks, output=output, rescale=rescale, effort=effort)

            assert float((ours(x, output="trace") - trace).abs().max()) < 1e-12 * size
            full = ours(x, output="full").view(n, outputs, n, outputs)
            assert float((full - expected).abs().max()) < 1e-12 * size
            one = ours(x[:2], x[1:], output=outputs - 1)
            assert float((one - expected[:2, -1, 1:, -1]).abs().max()) < 1e-12 * size


def test_blocks_and_budget_do_not_change_the_numbers() -> None:
    for model, x in networks().values():
        masks = prunus.find_masks(model, 0.5, score="random")
        whole = empirical(model, x, masks=masks)
        seen: list[tuple[int, int]] = []
        effort = Effort(memory=0.002, progress=lambda done, total, seen=seen: seen.append((done, total)))
        torch.testing.assert_close(empirical(model, x, masks=masks, effort=effort), whole, rtol=1e-12, atol=1e-12)
        assert seen[-1][0] == seen[-1][1] > 1
        assert all(a[0] < b[0] for a, b in pairwise(seen))
        small = Effort(memory=0.002, method="jacobian")
        torch.testing.assert_close(empirical(model, x, masks=masks, effort=small), whole, rtol=1e-12, atol=1e-12)


def test_symmetric_products_by_triangles() -> None:
    """From 512 inputs on only the upper blocks are worked out."""
    net = parametrise(prunus.models.make("fc:4-16-16-1", init="normal", seed=0).double())
    masks, x = prunus.find_masks(net, 0.5, score="random"), random_inputs(520, 4)
    effort = Effort(method="entries")
    whole = empirical(net, x, masks=masks, effort=effort)
    torch.testing.assert_close(whole, empirical(net, x, x.clone(), masks=masks, effort=effort), rtol=1e-12, atol=1e-12)
    assert torch.equal(whole, whole.T)


def test_the_choice_follows_density_and_outputs() -> None:
    def term(density: float, outputs: int, n: int = 64, size: int = 512) -> Outer:
        mask = torch.rand(size, size, generator=torch.Generator().manual_seed(0)) < density
        return Outer(torch.zeros(n, 1, size), torch.zeros(n, outputs, 1, size), mask, 1.0)

    def choice(layer: Outer) -> str:
        return cheapest(layer, layer, Request())

    assert choice(term(0.1, 1)) == "entries"
    assert choice(term(0.1, 10)) == "rows"
    assert choice(term(0.95, 1)) == "pairs"
    assert choice(term(0.95, 10)) == "rows"
    assert choice(term(0.5, 1, n=600, size=256)) == "entries"


def test_empty_masks_have_no_kernel() -> None:
    layer = Outer(torch.ones(3, 1, 4), torch.ones(3, 2, 1, 5), torch.zeros(5, 4, dtype=torch.bool), 1.0)
    assert not product(layer, layer, Request()).any()
    assert product(layer, layer, Request(full=True)).shape == (3, 2, 3, 2)


def test_unrescaled_is_a_power_of_the_density() -> None:
    """K-4 at finite width: Theta unrescaled = density ** depth Theta rescaled, to rounding."""
    net = parametrise(prunus.models.make("fc:4-32-32-32-1", init="normal", seed=0).double())
    masks = prunus.find_masks(net, 0.5, score="random", exclude=("layers.0*",), seed=1)
    x = random_inputs(5, 4)
    rescaled, plain = (empirical(net, x, masks=masks, rescale=flag) for flag in (True, False))
    torch.testing.assert_close(plain, 0.5**3 * rescaled, rtol=1e-12, atol=0)
    assert torch.equal(empirical(net, x, masks=masks), rescaled)  # the default of the NTK form
    standard = prunus.models.make("fc:4-32-32-32-1", seed=0).double()
    assert torch.equal(empirical(standard, x, masks=masks), empirical(standard, x, masks=masks, rescale=False))


def test_formula_of_the_paper() -> None:
    """K-3: sum over layers of b_i b_i' times the masked product of activations, written out."""
    net = parametrise(prunus.models.make("fc:3-20-20-20-1", init="normal", seed=4).double())
    masks = prunus.find_masks(net, 0.5, score="random", exclude=("layers.0*",), seed=1)
    x = random_inputs(2, 3)
    weights = [layer.weight.detach() for layer in net.layers]
    mask = [torch.ones_like(weights[0])] + [masks[f"layers.{h}.weight"].double() * math.sqrt(2) for h in (1, 2, 3)]
    g, gates = [x], []
    for w, m in zip(weights[:-1], mask):
        f = g[-1] @ (w * m).T
        gates.append((f > 0).double())
        g.append(math.sqrt(2 / 20) * f.relu())
    b = [torch.ones(2, 1, dtype=torch.float64)]
    for h in (3, 2, 1):
        b.insert(0, math.sqrt(2 / 20) * gates[h - 1] * (b[0] @ (weights[h] * mask[h])))
    expected = sum(float((b[h][0] * b[h][1]) @ mask[h].square() @ (g[h][0] * g[h][1])) for h in range(4))
    assert float(empirical(net, x, masks=masks)[0, 1]) == pytest.approx(expected, rel=1e-12)


class Twice(nn.Module):
    """One layer called twice: no sum of single outer products."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Sneaky(nn.Module):
    """Uses a layer's weight a second time behind the layer's back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.layer.weight


class Recurrent(nn.Module):
    """A module that torch.func cannot batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0][:, -1]


@pytest.mark.parametrize(("kind", "shape"), [(Twice, (5, 4)), (Sneaky, (5, 4)), (Recurrent, (4, 6, 3))])
def test_any_other_module(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = kind().double(), random_inputs(*shape)
    masks = prunus.find_masks(model, 0.3, score="random")
    expected = oracle(model, x, masks, False)
    found = empirical(model, x, masks=masks, output="full").view_as(expected)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_frozen_parameters_take_no_part() -> None:
    model = prunus.models.make("fc:5-8-2", seed=0).double()
    whole = empirical(model, random_inputs(4, 5))
    model.layers[0].requires_grad_(False)
    part = empirical(model, random_inputs(4, 5))
    assert (part.diagonal() < whole.diagonal()).all()
    hidden = torch.cat((F.relu(model.layers[0](random_inputs(4, 5))), torch.ones(4, 1).double()), 1).detach()
    torch.testing.assert_close(part, hidden @ hidden.T)


def test_the_model_is_left_alone() -> None:
    model = prunus.models.make("fc:5-8-2", seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    empirical(model, torch.randn(3, 5), masks=prunus.find_masks(model, 0.5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_half_and_wrapped_models() -> None:
    model = prunus.models.make("fc:5-8-2", seed=0).double()
    x, masks = random_inputs(3, 5), prunus.find_masks(model, 0.5, score="random")
    wrapped = nn.DataParallel(model)
    torch.testing.assert_close(empirical(wrapped, x, masks=masks), empirical(model, x, masks=masks))
    single = empirical(model.float(), x, masks=masks)
    assert single.dtype == torch.float32


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.randn(2)


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "eval"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(), "batch"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "eval"),
        (Noisy(), "random"),
        (Mixing(), "others in the batch"),
        (nn.Linear(7, 2), "shape"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "gradient"),
    ],
)
def test_bad_networks(model: nn.Module, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        empirical(model, torch.randn(3, 4))
    assert "\n" not in str(caught.value)


def test_bad_arguments() -> None:
    model, x = prunus.models.make("fc:4-6-3", seed=0), torch.randn(3, 4)
    other = prunus.find_masks(prunus.models.make("fc:4-7-3", seed=0), 0.5)
    for call in (
        lambda: empirical(model, x, masks=other),
        lambda: empirical(model, x, output=3),
        lambda: empirical(model, x, output="sum"),
        lambda: empirical(model, x, x[:, :3]),
        lambda: empirical(model, x * math.inf),
        lambda: empirical(model, x[0]),
        lambda: Effort(memory=0),
        lambda: Effort(method="magic"),
    ):
        with pytest.raises(BadInput):
            call()
    empty = prunus.Masks({"layers.1.weight": torch.zeros(3, 6, dtype=torch.bool)})
    with pytest.raises(BadInput, match="density"):
        empirical(model, x, masks=empty, rescale=True)


def test_convolutions_shrink_by_a_power_of_the_density() -> None:
    """K-22: with all layers but the first convolution masked, {0, 1} masks give density ** masked layers."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 1, bias=False),
    ).double()
    form = parametrise(net)
    masks = prunus.find_masks(form, 0.5, score="random", exclude=("layers.0*",), seed=1)
    x = random_inputs(3, 1, 4, 4)
    rescaled, plain = (empirical(form, x, masks=masks, rescale=flag) for flag in (True, False))
    torch.testing.assert_close(plain, 0.5**2 * rescaled, rtol=1e-12, atol=0)


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    model = prunus.models.make("fc:4-6-3", seed=0)
    empirical(model, torch.randn(3, 4), effort=Effort(progress=True))
    assert "tangent kernel" in capsys.readouterr().err
    empirical(model, torch.randn(3, 4), effort=Effort(progress=False))
    assert capsys.readouterr().err == ""


def test_outputs_one_by_one_within_a_small_budget() -> None:
    """The generic path: where all outputs of one input are too much, each output has its turn and its progress."""
    torch.manual_seed(0)
    model, x = Recurrent().double(), random_inputs(3, 6, 3)
    whole = empirical(model, x)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seen: list[tuple[int, int]] = []
    memory = 6 * parameters * 8 / 2**20 * 1.5  # one row, not the four of an input
    effort = Effort(memory=memory, progress=lambda done, total: seen.append((done, total)))
    torch.testing.assert_close(empirical(model, x, effort=effort), whole, rtol=1e-12, atol=1e-12)
    assert seen == [(number, 4 * 6) for number in range(1, 25)]


def test_token_ids() -> None:
    """Inputs that are whole numbers stay so: an embedding reads them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    ids = torch.tensor([[0, 1, 2, 3], [3, 3, 1, 6], [5, 4, 2, 0]])
    expected = oracle(model, ids, None, False)
    torch.testing.assert_close(empirical(model, ids, output="full").view_as(expected), expected)


class Standardised(nn.Conv2d):
    """Takes the mean off its weights first: the shapes are those of a plain convolution, the derivative is not."""

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(images, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class Padding(nn.Conv2d):
    """Pads by itself, as EfficientNet's convolutions do."""

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(nn.functional.pad(images, (1, 1, 1, 1)), self.weight, self.bias)


def doubled(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return 2 * output


@pytest.mark.parametrize("kind", [Standardised, Padding, nn.Conv2d])
def test_layers_with_a_forward_of_their_own_are_differentiated_as_they_compute(kind: type[nn.Conv2d]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).double()
    images = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    model(images)
    if kind is nn.Conv2d:
        model[0].register_forward_hook(doubled)
    expected = oracle(model, images, None, False).reshape(6, 6)
    torch.testing.assert_close(empirical(model, images, output="full"), expected)
