from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import prunus.training as training
from prunus.contract import Masks
from prunus.errors import BadInput, RunFailed
from prunus.training import Callback, FitConfig, Schedule, fit
from prunus.training.batches import in_order
from support.training import Noisy, conv_net, digits, fc, same_bytes


def random_masks(model: torch.nn.Module, seed: int = 0) -> Masks:
    source = torch.Generator().manual_seed(seed)
    named = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    return Masks({name: torch.rand(p.shape, generator=source) < 0.5 for name, p in named.items()})


def test_the_defaults_learn_digits() -> None:
    train, test = digits()
    model = fc("64-300-100-10")
    history = fit(model, train, length="20ep", test=test)
    assert len(history) == 20
    assert history[-1].epoch == 20
    assert history[-1].step == 20 * -(-len(train) // 64)
    assert history[-1].test_accuracy > 0.96
    assert history[-1].loss < history[0].loss
    loss, accuracy = training.evaluate(model, test)
    assert (loss, accuracy) == (history[-1].test_loss, history[-1].test_accuracy)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(optimizer: str) -> None:
    train, _ = digits(200)
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(states))  # what the caller drew before must not matter
        model = conv_net()
        fit(model, train, "2ep", FitConfig(optimizer=optimizer, seed=seed))
        states.append(model.state_dict())
    assert same_bytes(states[0], states[1])
    assert not same_bytes(states[0], states[2])


def test_the_callers_random_states_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    fit(conv_net(), Noisy(100), "1ep")
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_a_length_in_iterations_stops_there() -> None:
    train, _ = digits(200)
    history = fit(fc(), train, "6it", FitConfig(batch_size=50))
    assert [record.step for record in history] == [4, 6]
    assert history[-1].epoch == 2


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    history = fit(fc(), digits(50)[0], "3ep", FitConfig(batch_size=999))
    assert history[-1].step == 3


def test_masked_weights_stay_plus_zero_and_masks_must_fit() -> None:
    train, _ = digits(200)
    model = conv_net()
    masks = random_masks(model)
    history = fit(model, train, "2ep", FitConfig(weight_decay=0.1), masks=masks)
    for name, mask in masks.items():
        dropped = model.get_parameter(name).detach()[~mask]
        assert (dropped.view(torch.int32) == 0).all()  # +0.0, not -0.0
        assert model.get_parameter(name).detach()[mask].abs().min() > 0
    assert history[-1].sparsity == pytest.approx(masks.sparsity)
    with pytest.raises(BadInput, match="this model"):
        fit(fc(), train, "1ep", masks=masks)


def test_after_the_run_masks_are_let_go_and_the_mode_is_back() -> None:
    train, _ = digits(100)
    model = conv_net().eval()
    fit(model, train, "1ep", masks=random_masks(model))
    assert not model.training
    model(torch.zeros(1, 64)).sum().backward()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_every_sample_is_read_once_in_an_epoch() -> None:
    inputs = torch.arange(37.0)[:, None]
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.detach().flatten())
            return super().forward(x / 100)

    fit(Spy(1, 2), TensorDataset(inputs, torch.zeros(37, dtype=torch.long)), "2ep", FitConfig(batch_size=8))
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert torch.equal(first.sort().values, inputs.flatten())
    assert torch.equal(second.sort().values, inputs.flatten())
    assert not torch.equal(first, second)


def test_in_memory_and_item_by_item_reading_agree() -> None:
    train, _ = digits()
    inputs, labels = train.tensors
    states = []
    for data in (train, Subset(train, range(len(train))), TensorDataset(inputs, labels), list(zip(inputs, labels))):
        model = fc()
        fit(model, data, "1ep")
        states.append(model.state_dict())
    assert all(same_bytes(states[0], state) for state in states[1:])


def test_loss_that_explodes_stops_with_step_norms_and_the_good_checkpoint(tmp_path) -> None:
    train, _ = digits(200)
    config = FitConfig(lr=1e15, schedule=Schedule("constant"), folder=tmp_path, every="1it")
    with pytest.raises(RunFailed, match=r"at step \d+ .*layers\.0\.weight") as caught:
        fit(fc("64-32-32-10"), train, "5ep", config)
    kept = sorted(tmp_path.glob("*.safetensors"))
    assert not kept or str(kept[-1]) in str(caught.value)


def test_callbacks_hear_of_every_step_and_epoch() -> None:
    heard: list[str] = []

    class Ear(Callback):
        def start(self, run) -> None:
            heard.append("start")

        def before_step(self, run) -> None:
            heard.append(f"before {run.step}")

        def after_backward(self, run) -> None:
            assert all(p.grad is not None for p in run.model.parameters())

        def after_step(self, run) -> None:
            heard.append(f"after {run.step}")

        def finish(self, run) -> None:
            heard.append("finish")

    records = []
    fit(fc(), digits(100)[0], "1ep", FitConfig(batch_size=50, callbacks=(Ear(), records.append)))
    assert heard == ["start", "before 0", "after 0", "before 1", "after 1", "finish"]
    assert [record.epoch for record in records] == [1]
    with pytest.raises(BadInput, match="no callback"):
        fit(fc(), digits(100)[0], "1ep", FitConfig(callbacks=(3,)))


def test_penalty_and_distillation_change_what_is_learnt() -> None:
    train, test = digits()
    teacher = fc("64-100-10", seed=1)
    fit(teacher, train, "10ep")
    before = copy.deepcopy(teacher.state_dict())
    student, plain, shrunk = fc(), fc(), fc()
    fit(student, train, "4ep", FitConfig(distill_from=teacher, distill_weight=0.9))
    fit(plain, train, "4ep")
    fit(shrunk, train, "4ep", FitConfig(penalty=lambda model: 0.05 * sum(p.square().sum() for p in model.parameters())))
    assert same_bytes(before, teacher.state_dict())

    def agreement(model: torch.nn.Module) -> float:
        points = test.tensors[0]
        with torch.no_grad():
            return float((torch.softmax(model(points), 1) - torch.softmax(teacher(points), 1)).abs().sum(1).mean())

    assert agreement(student) < agreement(plain)
    norm = lambda model: sum(float(p.detach().square().sum()) for p in model.parameters())  # noqa: E731
    assert norm(shrunk) < norm(plain)


def test_the_spectral_penalty_lowers_the_norms_at_no_cost_in_accuracy() -> None:
    """Ledger P-26, its network, data and weight 2e-3: the product of the norms falls from 331 to 65.5 there."""

    def of_unit_length(data: Any) -> TensorDataset:
        inputs, labels = (torch.cat(part) for part in zip(*in_order(data, 4096)))
        return TensorDataset(torch.nn.functional.normalize(inputs.flatten(1), dim=1), labels)

    train, test = map(of_unit_length, digits())
    products, accuracies = [], []
    for weight in (0.0, 2e-3):
        model = fc("64-256-256-256-10")
        config = FitConfig(lr=0.1, weight_decay=0.0, spectral_penalty=weight)
        history = fit(model, train, "40ep", config, test=test)
        norms = [float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) for layer in model.layers]
        products.append(float(np.prod(norms)))
        accuracies.append(history[-1].test_accuracy)
    assert products[1] < products[0] / 3
    assert accuracies[1] > accuracies[0] - 0.01


def test_a_live_line_is_shown_where_asked(capfd: pytest.CaptureFixture[str]) -> None:
    fit(fc(), digits(100)[0], "2ep", FitConfig(progress=True), test=digits(50)[0])
    shown = capfd.readouterr().err
    assert "epoch 2/2" in shown or "epoch" in shown
    assert "loss" in shown
    fit(fc(), digits(100)[0], "1ep", FitConfig(progress=False))
    assert capfd.readouterr().err == ""


def test_one_output_and_real_labels_are_understood() -> None:
    inputs = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    sign = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    history = fit(torch.nn.Linear(5, 1), sign, "20ep")
    assert history[-1].accuracy > 0.9
    real = TensorDataset(inputs, inputs @ torch.arange(5.0))
    history = fit(torch.nn.Linear(5, 1), real, "20ep", FitConfig(lr=0.05))
    assert history[-1].accuracy is None
    assert history[-1].loss < 0.1


def test_gradient_clipping_bounds_the_step() -> None:
    train, _ = digits(64)
    model = fc()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    fit(model, train, "1it", FitConfig(lr=1.0, momentum=0.0, weight_decay=0.0, clip=1e-3))
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_bad_input_is_one_sentence() -> None:
    train, _ = digits(20)
    with pytest.raises(BadInput, match="160ep"):
        fit(fc(), train, "10 epochs")
    with pytest.raises(BadInput, match="empty"):
        fit(fc(), Subset(train, []), "1ep")
    frozen = fc()
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(BadInput, match="nothing to train"):
        fit(frozen, train, "1ep")
    for wrong in ({"lr": -1.0}, {"batch_size": 0}, {"optimizer": "lion"}, {"schedule": "zigzag"}, {"resume": True}):
        with pytest.raises(BadInput):
            FitConfig(**wrong)
    with pytest.raises(BadInput, match="images"):
        fit(fc(), train, "1ep", FitConfig(augment="resized-crop-flip"))


def test_data_that_does_not_fit_and_masks_that_empty_a_layer_are_refused() -> None:
    train, _ = digits(100)
    with pytest.raises(BadInput, match=r"cannot learn from this data .* shape \(64, 64\)"):
        fit(fc("32-16-10"), train, "1ep")
    with pytest.raises(BadInput, match="labels go up to 9"):
        fit(fc("64-16-5"), train, "1ep")
    model = fc()
    empty = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    with pytest.raises(BadInput, match="no weight in"):
        fit(model, train, "1ep", masks=Masks(empty))


def test_a_last_step_that_ruins_the_model_is_no_success() -> None:
    train, test = digits(100)
    with pytest.raises(RunFailed, match="loss on the test data became"):
        fit(fc(), train, "1it", FitConfig(lr=1e38), test=test)
