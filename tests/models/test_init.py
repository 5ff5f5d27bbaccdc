from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from prunus.errors import BadInput, UnknownName
from prunus.models import fans, fill_, init_names, initialise, make


@pytest.mark.parametrize(
    "fan, constant, bound", [(576, 0.05892556510, 0.10206207262), (9, 0.47140452079, 0.81649658093)]
)
def test_scales_are_those_of_the_ledger(fan: int, constant: float, bound: float) -> None:
    weight = torch.empty(50_000, dtype=torch.float64)
    assert fill_(weight, "signed_constant", fan_in=fan).abs().unique().tolist() == pytest.approx([constant], abs=1e-10)
    largest = float(fill_(weight, "kaiming_uniform", fan_in=fan).abs().max())
    # P(all 50,000 draws below 0.9995 of the bound) = 0.9995^50000 = 1.4e-11.
    assert 0.9995 * bound < largest <= bound + 1e-10


@pytest.mark.parametrize(
    "name, variance",
    [
        ("kaiming_uniform", 2 / 300),
        ("kaiming_normal", 2 / 300),
        ("signed_constant", 2 / 300),
        ("xavier", 2 / 500),
        ("normal", 1.0),
    ],
)
def test_mean_and_variance(name: str, variance: float) -> None:
    weight = initialise(nn.Linear(300, 200), name, seed=0).weight.double()
    # 60,000 draws; five standard errors of mean and (at kurtosis at most 3) variance: false alarm below 1e-6 each.
    assert abs(weight.mean()) < 5 * math.sqrt(variance / 60_000)
    assert abs(weight.square().mean() / variance - 1) < 5 * math.sqrt(2 / 60_000)


def test_fans_of_every_kind_of_layer() -> None:
    def of(module: nn.Module, name: str = "weight") -> tuple[int, int]:
        return fans(module, module.get_parameter(name))

    assert of(nn.Linear(5, 7)) == (5, 7)
    assert of(nn.Conv2d(8, 16, 3)) == (72, 144)
    assert of(nn.Conv2d(8, 16, 3, groups=4)) == (18, 36)
    assert of(nn.ConvTranspose2d(8, 16, 3, groups=4)) == (18, 36)
    assert of(nn.LSTM(5, 7), "weight_ih_l0") == (5, 28)
    assert of(nn.MultiheadAttention(6, 2), "in_proj_weight") == (6, 18)


def test_seeds_generators_and_the_global_stream() -> None:
    def weights(**how: object) -> torch.Tensor:
        return initialise(nn.Linear(10, 10), "normal", **how).weight.detach().clone()  # type: ignore[arg-type]

    assert torch.equal(weights(seed=3), weights(generator=torch.Generator().manual_seed(3)))
    assert not torch.equal(weights(seed=3), weights(seed=4))
    layer = nn.Linear(10, 10)
    torch.manual_seed(5)
    first = initialise(layer, "normal").weight.detach().clone()
    torch.manual_seed(5)
    assert torch.equal(first, initialise(layer, "normal").weight)
    with pytest.raises(BadInput, match="not both"):
        weights(seed=1, generator=torch.Generator())


def test_biases_become_zero_and_other_layers_stay() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LSTM(3, 2))
    embedding = model[0].weight.detach().clone()
    initialise(model, "signed_constant", seed=0)
    assert not model[1].bias.any()
    assert not model[3].bias_hh_l0.any()
    assert torch.equal(model[0].weight, embedding)
    assert torch.equal(model[2].weight, torch.ones(3))


def test_tied_weights_are_drawn_once() -> None:
    tied, single = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4)
    tied[1].weight = tied[0].weight
    initialise(tied, "normal", seed=0)
    assert torch.equal(tied[1].weight, initialise(single, "normal", seed=0).weight)


@pytest.mark.parametrize("name", init_names())
def test_every_name_works_through_make_and_on_meta(name: str) -> None:
    weight = make("fc:20-10-3", init=name, seed=1).get_parameter("layers.0.weight")
    assert torch.isfinite(weight).all()
    assert weight.any()
    with torch.device("meta"):
        assert make("fc:20-10-3", init=name).get_parameter("layers.0.weight").is_meta


def test_an_unknown_name_lists_the_known_and_changes_nothing() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(UnknownName, match=r"kaiming_uniform.*did you mean 'xavier'"):
        initialise(layer, "xavir")
    assert torch.equal(layer.weight, before)
