"""What a `FitConfig` adds to a plain step: parts of a batch, precision, groups, the mean of the weights, smoothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import prunus
from prunus.errors import BadInput, UnknownName
from prunus.training import Callback, FitConfig, ImpOptions, Schedule, fit, imp
from support.training import conv_net, digits, fc, same_bytes

QUICK = FitConfig(lr=0.05, batch_size=32)


class Halt(Exception):
    pass


class HaltAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def before_step(self, run: Any) -> None:
        if run.step == self.step:
            raise Halt


def test_a_batch_in_parts_makes_the_same_step() -> None:
    train, _ = digits(100)
    models = [fc(), fc()]
    histories = [fit(m, train, "2ep", QUICK.replace(accumulate=n)) for m, n in zip(models, (1, 5))]
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert histories[0][-1].loss == pytest.approx(histories[1][-1].loss, rel=1e-4)
    assert histories[0][-1].accuracy == histories[1][-1].accuracy
    assert histories[0][-1].step == histories[1][-1].step


def test_named_inputs_are_taken_in_parts_and_padding_has_no_share() -> None:
    from prunus.adapters import IGNORED, as_batch
    from prunus.training.batches import in_parts

    labels = torch.zeros(4, 3, dtype=torch.long)
    labels[0, 1:] = IGNORED
    labels[3] = IGNORED
    batch = as_batch({"input_ids": torch.arange(12).reshape(4, 3), "labels": labels})
    found = list(in_parts(batch, labels, 4))
    assert [share for _, _, share in found] == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert found[1][0].kwargs["input_ids"].tolist() == [[3, 4, 5]]


def test_autocast_computes_in_bfloat_and_keeps_full_weights() -> None:
    train, test = digits(300)
    model = fc()
    seen: list[torch.dtype] = []
    model.layers[0].register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype) if model.training else None
    )
    history = fit(model, train, "15ep", QUICK.replace(precision="bf16"))
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert history[-1].loss < history[0].loss
    assert prunus.training.accuracy(model, test) > 0.5


def test_groups_have_their_own_rates_and_decay_on_the_same_schedule(tmp_path: Path) -> None:
    train, _ = digits(100)
    rates: list[list[float]] = []

    class Watch(Callback):
        def before_step(self, run: Any) -> None:
            rates.append([group["lr"] for group in run.optimizer.param_groups])

    groups = {"layers.0.*": {"lr": 0.0}, "*.bias": {"lr": 0.01, "weight_decay": 0.0}}
    config = QUICK.replace(groups=groups, callbacks=(Watch(),))
    model, fresh = fc(), fc()
    fit(model, train, "2ep", config)
    assert torch.equal(model.layers[0].weight, fresh.layers[0].weight)
    assert torch.equal(model.layers[0].bias, fresh.layers[0].bias)
    assert not torch.equal(model.layers[1].weight, fresh.layers[1].weight)
    assert rates[0] == [0.0, 0.01, 0.05]
    assert all(row[1] == pytest.approx(0.2 * row[2]) for row in rates)
    assert rates[-1][2] < 0.01
    broken = fc()
    kept = config.replace(folder=tmp_path, every="1it", callbacks=(HaltAt(5),))
    with pytest.raises(Halt):
        fit(broken, train, "2ep", kept)
    again = fc()
    fit(again, train, "2ep", kept.replace(resume=True, callbacks=()))
    assert same_bytes(again.state_dict(), model.state_dict())


def test_the_mean_of_the_weights_is_what_the_run_leaves(tmp_path: Path) -> None:
    train, test = digits(100)
    decay, means, count = 0.5, {}, 0

    class Watch(Callback):
        def after_step(self, run: Any) -> None:
            nonlocal count
            count += 1
            part = min(decay, (1 + count) / (10 + count))
            for name, value in run.model.state_dict().items():
                old = means.get(name, begin[name])
                means[name] = part * old + (1 - part) * value if value.is_floating_point() else value.clone()

    model = conv_net()
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    masks = prunus.find_masks(model, 0.5)
    begin = {name: value * masks[name] if name in masks else value for name, value in begin.items()}
    config = QUICK.replace(ema=decay, callbacks=(Watch(),))
    history = fit(model, train, "2ep", config, masks=masks, test=test)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, means[name], rtol=1e-5, atol=1e-6)
        if name in masks:
            assert not bool(value[~masks[name]].any())
    assert history[-1].test_accuracy == prunus.training.accuracy(model, test)
    kept = QUICK.replace(ema=decay, folder=tmp_path, every="1it")
    with pytest.raises(Halt):
        fit(conv_net(), train, "2ep", kept.replace(callbacks=(HaltAt(5),)), masks=masks)
    for _ in range(2):  # a run that is over gives the mean again
        again = conv_net()
        fit(again, train, "2ep", kept.replace(resume=True), masks=masks)
        assert same_bytes(again.state_dict(), model.state_dict())


def test_labels_are_smoothed_in_training_and_not_in_measuring() -> None:
    train, _ = digits(64)
    model = fc()
    inputs, labels = train.tensors if hasattr(train, "tensors") else zip(*train)
    inputs, labels = torch.stack(list(inputs)), torch.as_tensor(list(labels))
    with torch.no_grad():
        wanted = F.cross_entropy(model(inputs), labels, label_smoothing=0.2)
        plain = F.cross_entropy(model(inputs), labels)
    history = fit(model, train, "1ep", FitConfig(lr=0.0, batch_size=64, label_smoothing=0.2), test=train)
    assert history[0].loss == pytest.approx(float(wanted), rel=1e-5)
    assert history[0].test_loss == pytest.approx(float(plain), rel=1e-5)


def test_real_labels_are_not_smoothed() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8))
    with pytest.raises(BadInput, match="label_smoothing"):
        fit(torch.nn.Linear(4, 1), data, "1ep", FitConfig(label_smoothing=0.1))


def test_the_rate_falls_at_every_step_unless_a_paper_wants_epochs() -> None:
    train, _ = digits(96)
    seen: dict[str, list[float]] = {"cosine": [], "cosine-epoch": []}
    for name, rates in seen.items():

        class Watch(Callback):
            def after_step(self, run: Any, rates: list[float] = rates) -> None:
                rates.append(run.lr)

        fit(fc(), train, "2ep", QUICK.replace(schedule=name, callbacks=(Watch(),)))
    assert seen["cosine"] == pytest.approx([0.025 * (1 + math.cos(math.pi * i / 6)) for i in range(6)])
    assert seen["cosine-epoch"] == pytest.approx([0.05] * 3 + [0.025] * 3)
    assert [Schedule(warmup="2ep").rate(1.0, step, 40, 4) for step in (0, 3, 7)] == [0.125, 0.5, 1.0]
    assert [Schedule(warmup="2ep", by="epoch").rate(1.0, step, 40, 4) for step in (0, 3, 7)] == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"accumulate": 0}, "accumulate"),
        ({"precision": "half"}, "precision"),
        ({"ema": 1.0}, "ema"),
        ({"label_smoothing": -0.1}, "label_smoothing"),
        ({"label_smoothing": 0.1, "loss": "mse"}, "label_smoothing"),
        ({"groups": {"*": {"momentum": 0.5}}}, "momentum"),
        ({"groups": {"*": {"lr": -1.0}}}, "at least 0"),
        ({"groups": ("*",)}, "mapping"),
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=words):
        FitConfig(**wrong)


def test_a_group_that_fits_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'head\.\*'"):
        fit(fc(), digits(32)[0], "1ep", QUICK.replace(groups={"head.*": {"lr": 0.1}}))


def test_the_rate_alone_goes_back_and_the_weights_stay_as_trained() -> None:
    train, _ = digits(128)
    started: list[tuple[dict[str, torch.Tensor], float]] = []

    class Watch(Callback):
        def before_step(self, run: Any) -> None:
            if run.step == 4:
                started.append(({name: value.clone() for name, value in run.model.state_dict().items()}, run.lr))

    config = QUICK.replace(callbacks=(Watch(),))
    levels = imp(fc(), train, 2, 0.5, "4it", "8it", config=config, options=ImpOptions(rewound="rate"))
    for before, level, (state, lr) in zip(levels[:-1], levels[1:], started[1:], strict=True):
        assert lr == started[0][1]
        for name, value in before.model.state_dict().items():
            wanted = value * level.masks[name] if name in level.masks else value
            assert torch.equal(state[name], wanted)
    with pytest.raises(UnknownName, match="rewind"):
        ImpOptions(rewound="time")
