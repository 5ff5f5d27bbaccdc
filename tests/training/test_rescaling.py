from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from prunus.adapters import batches
from prunus.contract import Masks
from prunus.data import Labelled
from prunus.errors import BadInput
from prunus.training import FitConfig, fit, random_ticket, recalibrate, rescaled
from support.training import conv_net, digits, fc


def test_the_factor_multiplies_the_product_not_the_bias_and_enters_the_gradient() -> None:
    layer = nn.Linear(20, 5)
    masks = random_ticket(layer, 0.75)
    density = 1 - masks.sparsity
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    plain = masks.apply_(copy.deepcopy(layer))
    with rescaled(layer, masks):
        inside = layer(x)
        expected = x @ plain.weight.T / math.sqrt(density) + plain.bias
        assert torch.allclose(inside, expected, atol=1e-6)
        inside.sum().backward()
        assert torch.allclose(layer.weight.grad, x.sum(0).expand(5, 20) / math.sqrt(density), atol=1e-5)
    assert torch.allclose(layer.weight, plain.weight / math.sqrt(density))
    assert torch.allclose(layer(x), inside, atol=1e-6)
    assert not layer._forward_pre_hooks
    assert not layer.weight.detach()[~masks["weight"]].any()


def test_a_convolution_gives_the_same_outside_as_inside() -> None:
    model = conv_net(dropout=0.0).eval()
    masks = random_ticket(model, 0.5)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with rescaled(model, masks):
        inside = model(x)
    assert torch.allclose(model(x), inside, atol=1e-5)


def test_training_inside_differs_from_training_rescaled_weights() -> None:
    """K-5: read literally for weights, the statement is false; the derivative lacks the factor."""
    train, _ = digits(256)
    masks = random_ticket(fc(), 0.9)
    forward, literal = fc(), fc()
    config = FitConfig(momentum=0.0, weight_decay=0.0)
    with rescaled(forward, masks):
        fit(forward, train, "2ep", config, masks=masks)
    with rescaled(literal, masks):
        pass
    fit(literal, train, "2ep", config, masks=masks)
    assert not torch.allclose(forward.layers[0].weight, literal.layers[0].weight)
    for name, mask in masks.items():
        assert not forward.get_parameter(name).detach()[~mask].any()


def test_a_faster_learning_rate_on_rescaled_weights_is_the_same_walk() -> None:
    """K-5: the forward multiplier equals rescaled weights with the learning rate times 1/density."""
    train, _ = digits(256)
    layer, other = nn.Linear(64, 10), nn.Linear(64, 10)
    other.load_state_dict(layer.state_dict())
    masks = random_ticket(layer, 0.5)
    plain = FitConfig(lr=0.05, momentum=0.0, weight_decay=0.0)
    for one in (layer, other):
        one.bias.requires_grad_(False)
    with rescaled(layer, masks):
        fit(layer, train, "2ep", plain, masks=masks)
    with rescaled(other, masks):
        pass
    fit(other, train, "2ep", plain.replace(lr=0.1), masks=masks)
    assert torch.allclose(layer.weight, other.weight, atol=1e-5)


def test_bad_masks() -> None:
    with (
        pytest.raises(BadInput, match="density is 0"),
        rescaled(nn.Linear(2, 2), Masks({"weight": torch.zeros(2, 2).bool()})),
    ):
        pass
    lstm = nn.LSTM(2, 2)
    with pytest.raises(BadInput, match="rescaled knows"), rescaled(lstm, random_ticket(lstm, 0.5)):
        pass


def test_recalibration_gives_the_statistics_of_the_data_and_touches_nothing_else() -> None:
    train, _ = digits(256)
    model = conv_net()
    fit(model, train, "2ep")
    before = {name: value.clone() for name, value in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        model.conv.weight.mul_(0.1)
        before["conv.weight"] = model.conv.weight.clone()
    recalibrate(model, train, batches=2, batch_size=64)  # two more batches are held aside
    assert model.recalibrated.startswith("new statistics kept")
    seen = [batch.inputs for batch in batches(train, size=64, limit=2, shuffle=True)]
    maps = model.conv(torch.cat(seen).reshape(-1, 1, 8, 8)).detach()
    assert torch.allclose(model.norm.running_mean, maps.mean((0, 2, 3)), atol=1e-5)
    halves = torch.stack([half.var((0, 2, 3)) for half in maps.split(64)]).mean(0)
    assert torch.allclose(model.norm.running_var, halves, rtol=1e-4)
    assert modes == [module.training for module in model.modules()]
    assert model.norm.momentum == 0.1
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())
    assert recalibrate(fc(), train) is not None
    with pytest.raises(BadInput):
        recalibrate(model, train, batches=0)


def test_recalibration_never_makes_the_held_aside_batches_worse() -> None:
    train, _ = digits(512)
    model = conv_net()
    fit(model, train, "6ep")
    model.eval()
    aside = list(batches(train, size=64, limit=4, shuffle=True))[2:]

    def loss() -> float:
        with torch.no_grad():
            return sum(float(nn.functional.cross_entropy(model(b.inputs), b.labels)) for b in aside)

    before, old = loss(), {name: value.clone() for name, value in model.named_buffers()}

    def dark(inputs: Tensor, source: torch.Generator) -> Tensor:
        return 0.05 * inputs

    recalibrate(model, train, batches=2, batch_size=64, augment=dark)  # statistics of what training never saw
    assert model.recalibrated.startswith("old statistics kept")
    assert all(torch.equal(value, old[name]) for name, value in model.named_buffers() if "tracked" not in name)
    assert loss() <= before
    recalibrate(model, torch.randn(64, 64), batches=1, batch_size=64)  # nothing to compare with
    assert model.recalibrated == "new statistics kept"


def test_recalibration_sees_pictures_as_training_did() -> None:
    """Cropped, with black borders: the statistics of plain pictures differ."""
    torch.manual_seed(0)
    raw = torch.randint(100, 256, (256, 3, 8, 8), dtype=torch.uint8)  # bright: the border shows
    pictures = Labelled(
        raw, torch.arange(256) % 4, "abcd", scale=1 / 255, mean=torch.zeros(3, 1, 1), std=torch.ones(3, 1, 1)
    )
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = copy.deepcopy(own)
    recalibrate(own, pictures, batches=1, batch_size=256)  # one batch: nothing is held aside
    recalibrate(plain, pictures, batches=1, batch_size=256, augment="none")
    assert not torch.allclose(own[1].running_var, plain[1].running_var, rtol=0.05)
