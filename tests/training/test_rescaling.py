from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from prunus.adapters import batches
from prunus.contract import Masks
from prunus.data import Labelled
from prunus.errors import BadInput
from prunus.training import FitConfig, accuracy, fit, random_ticket, recalibrate, rescaled
from support.training import conv_net, digits, fc, same_bytes


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
    assert same_bytes(old, dict(model.named_buffers()))  # the count of batches too
    assert loss() <= before


def test_recalibration_sees_pictures_as_training_did() -> None:
    """Cropped, with black borders: the statistics of plain pictures differ."""
    torch.manual_seed(0)
    raw = torch.randint(100, 256, (256, 3, 8, 8), dtype=torch.uint8)  # bright: the border shows
    pictures = Labelled(
        raw, torch.arange(256) % 4, "abcd", scale=1 / 255, mean=torch.zeros(3, 1, 1), std=torch.ones(3, 1, 1)
    )
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = copy.deepcopy(own)
    part = copy.deepcopy(own)
    for model in (own, plain, part):
        model[1].running_mean.fill_(math.nan)  # so that the new ones win
    recalibrate(own, pictures, batches=1, batch_size=256)
    recalibrate(plain, pictures, batches=1, batch_size=256, augment="none")
    recalibrate(part, Subset(Subset(pictures, range(256)), range(256)), batches=1, batch_size=256)
    assert torch.equal(own[1].running_var, part[1].running_var)  # a part of the data has the same black border
    assert not torch.allclose(own[1].running_var, plain[1].running_var, rtol=0.05)


def trained(train: Any) -> nn.Module:
    model = conv_net()
    fit(model, train, "6ep")
    return model.eval()


def state(model: nn.Module) -> tuple[Any, ...]:
    modes = [module.training for module in model.modules()]
    return {name: value.clone() for name, value in model.state_dict().items()}, modes, model.norm.momentum


def unchanged(model: nn.Module, before: tuple[Any, ...]) -> bool:
    return same_bytes(before[0], model.state_dict()) and before[1:] == state(model)[1:]


def test_without_labels_the_statistics_that_normalise_better_stay() -> None:
    train, test = digits(512)
    model = trained(train)
    inputs = train.dataset.tensors[0][:512]
    before, good = state(model), accuracy(model, test)
    recalibrate(model, inputs, batch_size=64, augment=lambda x, source: 0.05 * x)
    assert model.recalibrated.startswith("old statistics kept (error of normalisation")
    assert unchanged(model, before)
    recalibrate(model, inputs, batch_size=64)  # as good: no reason to change what training left
    assert "must win by 0.1" in model.recalibrated
    assert unchanged(model, before)
    with torch.no_grad():
        model.conv.weight.mul_(0.2)  # as far off as those of a network that lost most of its weights
        model.conv.bias.mul_(0.2)
    bad = accuracy(model, test)
    recalibrate(model, inputs, batch_size=64)
    assert model.recalibrated.startswith("new statistics kept (error of normalisation")
    assert bad < 0.6 < good - 0.03 < accuracy(model, test)


def test_a_channel_that_never_varies_counts_by_its_mean() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].weight[:2] = 0.0  # mean 0, as the old statistics say
    x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
    recalibrate(model, x, batches=1, augment="none")
    old = re.search(r"([0-9.e-]+) with the old", model.recalibrated)
    assert old is not None
    assert float(old[1]) < 0.05


def test_one_batch_is_shared_between_measuring_and_comparing() -> None:
    train, test = digits(512)
    model = trained(train)
    before, good = state(model), accuracy(model, test)
    recalibrate(model, train, batches=1, batch_size=512, augment=lambda x, source: 0.05 * x)
    assert model.recalibrated.startswith("old statistics kept (loss")
    assert unchanged(model, before)
    assert accuracy(model, test) == good
    recalibrate(model, train, batches=1, batch_size=511, augment=lambda x, source: 0.05 * x)  # one sample is left over
    assert unchanged(model, before)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("labels", [True, False])
def test_statistics_stay_where_nothing_can_be_compared(count: int, labels: bool) -> None:
    train, _ = digits(64)
    model = trained(train)
    before = state(model)
    inputs, wanted = train.dataset.tensors
    recalibrate(model, (inputs[:count], wanted[:count]) if labels else inputs[:count])
    assert model.recalibrated.startswith("old statistics kept (too few samples")
    assert unchanged(model, before)


def test_a_norm_that_no_batch_reaches_keeps_its_statistics() -> None:
    model = conv_net()
    model.other = nn.BatchNorm2d(4)
    model.other.running_mean.fill_(3.0)
    recalibrate(model, torch.randn(256, 64) + 5.0, batches=1, batch_size=128)
    assert model.recalibrated.startswith("new")
    assert model.other.running_mean.tolist() == [3.0] * 4


def _raises(error: BaseException) -> Any:
    def augment(inputs: Tensor, source: torch.Generator) -> Tensor:
        augment.calls += 1  # type: ignore[attr-defined]
        if augment.calls > 1:  # type: ignore[attr-defined]
            raise error
        return inputs

    augment.calls = 0  # type: ignore[attr-defined]
    return augment


GOOD, LABELS = torch.rand(64, 64), torch.arange(64) % 10


@pytest.mark.parametrize(
    ("data", "augment", "kind", "said"),
    [
        (GOOD, _raises(KeyboardInterrupt("^C")), KeyboardInterrupt, "C"),
        (GOOD, _raises(RuntimeError("own")), RuntimeError, "own"),
        (GOOD, lambda x, source: x * math.inf, BadInput, "NaN or infinite"),
        (GOOD, lambda x, source: None, BadInput, "a tensor"),
        (GOOD * 1e38, "none", BadInput, "The batch norm norm is given NaN"),
        (torch.cat([GOOD, torch.full((1, 64), math.nan)]), "own", BadInput, "NaN or infinite"),
        ([GOOD, GOOD, GOOD, torch.full((8, 64), math.nan)], "own", BadInput, "NaN or infinite"),
        ([(GOOD, LABELS)] * 3 + [(torch.rand(8, 63), LABELS[:8])], "own", BadInput, "cannot run on the data"),
        ([(GOOD[:10, :60], LABELS[:10])] * 4, "own", BadInput, "cannot run on the data"),
        ((GOOD, LABELS + 90), "own", BadInput, "labels that fit"),
        (None, "own", BadInput, "needs data"),
    ],
)
def test_after_an_error_everything_is_what_it_was(data: Any, augment: Any, kind: Any, said: str) -> None:
    train, _ = digits(128)
    model = trained(train).train()
    model.dropout.eval()
    before = state(model)
    with pytest.raises(kind, match=said):
        recalibrate(model, data, batches=2, batch_size=16, augment=augment)
    assert unchanged(model, before)
    assert not hasattr(model, "recalibrated")


def test_old_statistics_that_are_no_numbers_lose() -> None:
    train, _ = digits(256)
    for data in (train, train.dataset.tensors[0][:256]):
        model = trained(train)
        model.norm.running_var[0] = math.nan
        recalibrate(model, data, batch_size=32)
        assert model.recalibrated.startswith("new statistics kept")
        assert bool(model.norm.running_var.isfinite().all())


@pytest.mark.parametrize("wrong", [{"batches": "3"}, {"batches": 0}, {"batches": 1.5}, {"batch_size": None}])
def test_counts_are_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))} is .* whole number of at least one"):
        recalibrate(conv_net(), GOOD, **wrong)


def test_a_teacher_takes_the_place_of_labels_and_must_fit() -> None:
    train, _ = digits(256)
    dense = trained(train).train()
    model = copy.deepcopy(dense)
    with torch.no_grad():
        model.conv.weight.mul_(0.2)
    recalibrate(model, train.dataset.tensors[0][:256], batch_size=32, teacher=dense)
    assert model.recalibrated.startswith("new statistics kept (loss")
    assert all(module.training for module in dense.modules())
    with pytest.raises(BadInput, match="same outputs"):
        recalibrate(model, GOOD, teacher=fc("64-32-5"))
    assert recalibrate(fc(), GOOD).recalibrated.startswith("nothing to measure")
