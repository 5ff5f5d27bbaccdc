"""The NTK form: what it computes, what it keeps, and the way back."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from prunus.tangent import NTKForm, empirical, parametrise, standardise


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_normal_weights_are_kept() -> None:
    model = prunus.models.make("fc:4-16-8-3", init="normal", seed=0).double()
    form = parametrise(model)
    assert [name for name, _ in form.named_parameters()] == [f"layers.{n}.weight" for n in range(3)]
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(form.layers, model.layers))
    assert form.factors == pytest.approx((1.0, math.sqrt(2 / 16), math.sqrt(2 / 8)))
    assert form.limit_scale == 1.0
    x = torch.randn(5, 4, dtype=torch.float64)
    hidden = (2 / 16) ** 0.5 * (x @ model.layers[0].weight.T).relu()
    hidden = (2 / 8) ** 0.5 * (hidden @ model.layers[1].weight.T).relu()
    assert close(form(x), hidden @ model.layers[2].weight.T)
    assert close(standardise(form)(x), form(x))


@pytest.mark.parametrize("init", ["kaiming_normal", "kaiming_uniform", "xavier", None])
def test_a_standard_network_computes_the_same(init: str | None) -> None:
    model = prunus.models.make("fc:40-64-32-3", init=init, seed=0).double()
    form, x = parametrise(model), torch.randn(5, 40, dtype=torch.float64)
    assert close(form(x), model(x))
    assert close(standardise(form)(x), model(x))
    assert form.limit_scale == pytest.approx(2 / 40)
    if init == "kaiming_normal":
        pooled = torch.cat([layer.weight.flatten() for layer in form.layers])
        assert float(pooled.detach().square().mean()) == pytest.approx(1.0, abs=0.15)


def test_layer_terms_of_the_standard_form_are_larger_by_the_factor() -> None:
    """K-0: a later layer's term in the standard parametrisation is fan-in / 2 times the one in NTK form."""
    model = prunus.models.make("fc:4-16-16-1", init="kaiming_normal", seed=0, bias=False).double()
    form, x = parametrise(model), torch.randn(3, 4, dtype=torch.float64)
    for keep in range(1, 3):
        for number in range(3):
            model.layers[number].weight.requires_grad_(number == keep)
            form.layers[number].weight.requires_grad_(number == keep)
        torch.testing.assert_close(empirical(model, x), empirical(form, x) * 16 / 2, rtol=1e-10, atol=0)


def test_biases_stay_but_are_no_parameters() -> None:
    model = prunus.models.make("fc:4-16-8-3", seed=0).double()
    form, x = parametrise(model), torch.randn(5, 4, dtype=torch.float64)
    assert close(form(x), model(x))
    assert all(name.endswith("weight") for name, _ in form.named_parameters())
    assert close(standardise(form)(x), model(x))
    silent = prunus.models.make("fc:4-16-8-3", init="normal", seed=0)
    assert all(layer.bias is None for layer in parametrise(silent).layers)


def test_convolutions_pools_and_names() -> None:
    model = prunus.models.make("conv6:width=0.1,size=8", init="normal", seed=0).double()
    form = parametrise(model)
    assert form.factors[0] == pytest.approx(1 / math.sqrt(27))
    assert form.factors[1] == pytest.approx(math.sqrt(2 / (9 * model.features[2].in_channels)))
    assert form.original_names["layers.8.weight"] == "classifier.4.weight"
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert close(standardise(form)(x), form(x))
    masks = form.translate(prunus.find_masks(model, 0.5))
    assert set(masks) == set(form.original_names)
    empirical(form, x, masks=masks)


def test_it_is_an_ordinary_module() -> None:
    model = prunus.models.make("fc:4-16-8-3", init="normal", seed=0)
    form = parametrise(model)
    twin = copy.deepcopy(form)
    twin.load_state_dict(form.state_dict())
    assert torch.equal(twin(torch.ones(1, 4)), form(torch.ones(1, 4)))
    masks = prunus.find_masks(form, 0.5, score="random", exclude=("layers.0*",))
    assert set(masks) == {"layers.1.weight", "layers.2.weight"}
    assert standardise(form.double())(torch.ones(1, 4).double()).dtype == torch.float64
    with torch.no_grad():
        form.layers[0].weight.zero_()
    assert bool(model.layers[0].weight.any())


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x))) + x


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), "Tanh"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)), "training mode"),
        (nn.Sequential(nn.Linear(4, 4)), "hidden layer"),
        (nn.Sequential(nn.Flatten(2), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), "Flatten"),
        (Skip(), "chain"),
        (Branching(), "chain"),
    ],
)
def test_what_has_no_form(model: nn.Module, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parametrise(model)


def test_hooks_are_not_passed_over() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(BadInput, match="hooks"):
        parametrise(model)


def test_bad_arguments() -> None:
    form = parametrise(prunus.models.make("fc:4-8-1", init="normal", seed=0))
    with pytest.raises(BadInput, match="already"):
        parametrise(form)
    with pytest.raises(BadInput, match="NTK form"):
        standardise(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="keep"):
        parametrise(prunus.models.make("fc:4-8-1"), weights="drop")
    assert isinstance(form, NTKForm)
