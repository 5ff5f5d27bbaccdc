"""`distil`: the student comes nearer to its teacher, zeros stay, runs resume to the same bytes."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import prunus
from prunus.errors import BadInput, PrunusError, RunFailed
from prunus.training import Callback, DistilOptions, FitConfig, distil
from support.training import StopAt, conv_net, digits, fc, same_bytes


class Encoder(nn.Module):
    """Tokens in by name, hidden states out, as encoders of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return {"last_hidden_state": hidden}


def sentences(count: int = 12) -> list[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(0)
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[2:, 4:] = 0
    return [{"input_ids": torch.randint(30, (4, 7), generator=source), "attention_mask": mask} for _ in range(count)]


def pruned(teacher: nn.Module, sparsity: float = 0.6) -> tuple[nn.Module, prunus.Masks]:
    student = copy.deepcopy(teacher)
    return student, prunus.prune(student, sparsity)


@pytest.mark.parametrize("data", ["samples", "tensor", "batches by name"])
def test_the_student_comes_nearer_and_its_zeros_stay(data: str) -> None:
    torch.manual_seed(0)
    teacher: nn.Module = Encoder() if data == "batches by name" else fc()
    given: Any = {"samples": digits(256)[0], "tensor": torch.randn(256, 64), "batches by name": sentences()}[data]
    student, masks = pruned(teacher)
    kept = copy.deepcopy(teacher.state_dict())
    quick = FitConfig(optimizer="adamw", lr=4e-3, weight_decay=0.0, batch_size=32)
    history = distil(student, teacher, given, "6ep", masks, quick)
    assert history[-1].loss < 0.8 * history[0].loss
    assert len(history) == 6
    for name, parameter in masks.parameters_of(student).items():
        assert (parameter[~masks[name]] == 0).all()
    assert same_bytes(teacher.state_dict(), kept)
    assert teacher.training
    assert not any(module._forward_hooks for module in [*teacher.modules(), *student.modules()])


def test_zeros_are_held_even_if_nobody_gives_masks() -> None:
    student, masks = pruned(fc())
    distil(student, fc(), digits(64)[0], "1ep")
    assert all((p[~masks[name]] == 0).all() for name, p in masks.parameters_of(student).items())


def test_padded_positions_do_not_count() -> None:
    torch.manual_seed(0)
    teacher = Encoder()
    student, masks = pruned(teacher)
    changed = [{**batch, "input_ids": batch["input_ids"] * batch["attention_mask"]} for batch in sentences()]
    one, two = copy.deepcopy(student), copy.deepcopy(student)
    distil(one, teacher, sentences(), "1ep", masks)
    distil(two, teacher, changed, "1ep", masks)  # other tokens, but only where sentences are padded
    frozen = "table.weight"
    for name, value in one.state_dict().items():
        if name != frozen:
            torch.testing.assert_close(value, two.state_dict()[name])


def test_batch_norms_and_dropout_stand_still() -> None:
    teacher = conv_net()
    student, masks = pruned(teacher, 0.3)
    before = {name: value.clone() for name, value in student.named_buffers()}
    distil(student, teacher, digits(64)[0], "1ep", masks)
    assert all(torch.equal(value, before[name]) for name, value in student.named_buffers())
    exact = copy.deepcopy(teacher)
    assert distil(exact, teacher, digits(64)[0], "1ep")[0].loss < 1e-4  # with dropout the two would differ


def test_a_broken_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    teacher = Encoder()
    whole, masks = pruned(teacher)
    broken = copy.deepcopy(whole)
    config = FitConfig(optimizer="adamw", lr=1e-3, folder=tmp_path, every="3it")
    distil(whole, teacher, sentences(), "2ep", masks, config.replace(folder=None))

    class Killed(PrunusError):
        pass

    def kill(record: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        distil(broken, teacher, sentences(), "2ep", masks, config.replace(callbacks=(kill,)))
    again = copy.deepcopy(teacher)
    distil(again, teacher, sentences(), "2ep", masks, config.replace(resume=True))
    assert same_bytes(whole.state_dict(), again.state_dict())
    with pytest.raises(BadInput, match="hidden"):
        distil(
            again, teacher, sentences(), "2ep", masks, config.replace(resume=True), options=DistilOptions(hidden=2.0)
        )


def test_a_narrower_student_learns_from_the_whole_network() -> None:
    teacher = fc()
    student = prunus.shrink(teacher, 0.5, example=torch.zeros(1, 64))
    assert student.layers[0].out_features < teacher.layers[0].out_features
    history = distil(student, teacher, digits(256)[0], "6ep")
    assert history[-1].loss < 0.8 * history[0].loss
    with pytest.raises(BadInput, match="No hidden state"):
        hidden = DistilOptions(outputs=0.0, layers=("layers.0",))
        distil(student, teacher, torch.randn(8, 64), options=hidden)


def test_half_precision_and_parts_of_a_batch_learn_too() -> None:
    torch.manual_seed(0)
    teacher = Encoder()
    student, masks = pruned(teacher)
    config = FitConfig(optimizer="adamw", lr=1e-3, precision="bf16", ema=0.9, accumulate=2)
    history = distil(student, teacher, sentences(), "4ep", masks, config)
    assert history[-1].loss < history[0].loss
    assert {p.dtype for p in student.parameters()} == {torch.float32}
    assert all(not bool(p[~masks[name]].any()) for name, p in masks.parameters_of(student).items())


def test_what_cannot_be_distilled_is_refused() -> None:
    with pytest.raises(BadInput, match=r"differ in 'layers\.0\.weight'"):
        distil(fc(), fc("64-16-10"), torch.randn(8, 64))
    with pytest.raises(BadInput, match="needs data"):
        distil(fc(), fc(), None)
    student, broken = fc(), torch.randn(600, 64)
    with pytest.raises(BadInput, match="before pruning"):
        distil(student, student, torch.randn(8, 64))
    with pytest.raises(BadInput, match="before pruning"):
        distil(student, None, torch.randn(8, 64))  # type: ignore[arg-type]
    broken[599, 3] = torch.nan  # in the last batch: the student must not have moved by then
    before = [parameter.detach().clone() for parameter in student.parameters()]
    for data in (broken, TensorDataset(broken, torch.zeros(600, dtype=torch.long))):
        with pytest.raises(BadInput, match="NaN"):
            distil(student, fc(), data)
    assert all(torch.equal(old, new) for old, new in zip(before, student.parameters()))
    with pytest.raises(BadInput, match=r"no module named 'layer\.9'"):
        distil(fc(), fc(), torch.randn(8, 64), options=DistilOptions(layers=("layer.9",)))
    with pytest.raises(BadInput, match="nothing to learn"):
        DistilOptions(outputs=0.0, hidden=0.0)


class Sometimes(nn.Module):
    """Gives NaN where the first value of an input is large."""

    counts = False

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(64), fc()
        self.norm.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.norm.seen = self.norm.seen + 1  # a buffer that is replaced, not changed
        return self.inner(self.norm(x)) * torch.where(x[:, :1] > 50.0, torch.nan, 1.0)


class Spoil(Callback):
    def after_step(self, run: Any) -> None:
        next(run.model.parameters()).data[0] = torch.inf


def test_after_an_error_the_student_is_as_it_was(tmp_path: Path) -> None:
    teacher = Sometimes()
    student, masks = pruned(teacher)
    student.counts = True
    student.norm.eval()
    parameter = next(student.parameters())
    parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(student.state_dict())
    broken = torch.randn(8 * 16, 64)
    broken[100, 0] = 100.0
    quick = FitConfig(optimizer="adamw", lr=1e-3, batch_size=16, seed=3)
    healthy = digits(64)[0]
    far = FitConfig(optimizer="sgd", lr=1e6, momentum=0.0, batch_size=32)
    for data, config, length, error in (
        (broken, quick, "1ep", BadInput),
        (healthy, far, "9ep", RunFailed),
        (healthy, quick.replace(callbacks=(Spoil(),)), "1it", RunFailed),  # no loss shows it
        (healthy, quick.replace(callbacks=(StopAt(2),)), "1ep", Exception),
        (healthy, quick.replace(folder=tmp_path, callbacks=(StopAt(2),)), "1ep", Exception),
    ):
        with pytest.raises(error):
            distil(student, teacher, data, length, masks, config)
        assert same_bytes(student.state_dict(), before)
        assert [student.training, student.norm.training, student.inner.training] == [True, False, True]
        assert bool((parameter.grad == 1).all())
    distil(student, teacher, healthy, "1ep", masks, quick.replace(folder=tmp_path, resume=True))
    assert not same_bytes(student.state_dict(), before)
    assert [student.training, student.norm.training] == [True, False]


def test_after_an_interrupt_the_student_keeps_its_steps() -> None:
    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    student, masks = pruned(fc())
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(KeyboardInterrupt):
        distil(student, fc(), digits(64)[0], "2ep", masks, FitConfig(lr=0.01, callbacks=(stop,)))
    assert not same_bytes(student.state_dict(), before)  # as fit leaves a model


def test_a_teacher_in_mixed_modes_keeps_them() -> None:
    teacher = conv_net()
    student, _ = pruned(teacher, 0.3)
    teacher.norm.eval()
    distil(student, teacher, digits(64)[0], "1it")
    assert [teacher.training, teacher.norm.training, teacher.conv.training] == [True, False, True]


class Spare(nn.Module):
    """`spare` never runs, `late` only where the model is told to."""

    def __init__(self, late: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.late, self.spare, self.runs_late = nn.Linear(16, 16), nn.Linear(16, 16), late

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x + self.late(x) if self.runs_late else x


def test_blocks_that_do_not_run_in_both_are_left_out() -> None:
    torch.manual_seed(0)
    teacher, data = Spare(late=False), torch.randn(64, 16)
    student = Spare()
    student.load_state_dict(teacher.state_dict())
    masks = prunus.prune(student, 0.6)
    history = distil(student, teacher, data, "8ep", masks, FitConfig(optimizer="adamw", lr=4e-3, batch_size=32))
    assert history[-1].loss < history[0].loss
    (note,) = history.notes
    assert "after spare, late:" in note
    assert not distil(student, teacher, data, "1it", options=DistilOptions(hidden=0.0)).notes
    assert not distil(student, teacher, data, "1it", options=DistilOptions(layers="layers.1")).notes  # type: ignore[arg-type]
    hidden = DistilOptions(outputs=0.0, layers=("spare",))
    with pytest.raises(BadInput, match="give outputs a positive weight"):
        distil(student, teacher, data, options=hidden)


@pytest.mark.parametrize("name", ["masks", "config", "options"])
@pytest.mark.parametrize("given", [{}, {"lr": 0.1}, "quick"])
def test_settings_of_another_kind_are_named(name: str, given: Any) -> None:
    with pytest.raises(BadInput, match=f"^{name} must be .*, not {type(given).__name__}"):
        distil(fc(), fc(), torch.randn(8, 64), **{name: given})


def test_numbers_that_are_no_scores_come_near_in_size_and_in_common_part() -> None:
    """Softmax would see neither a shift of all outputs nor, where they are large, how far they are off."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    student, data = copy.deepcopy(teacher), torch.randn(256, 8)
    with torch.no_grad():
        student[2].bias += 3.0
    history = distil(
        student, teacher, data, "30ep", config=FitConfig(optimizer="adamw", lr=3e-2, weight_decay=0.0, batch_size=32),
        options=DistilOptions(hidden=0.0),
    )  # fmt: skip
    assert history[0].loss > 1.0
    assert float((student(data) - teacher(data)).abs().mean()) < 0.3


def test_every_place_of_an_image_keeps_its_class() -> None:
    """Logits of segmentation have classes in front of height and width."""
    torch.manual_seed(0)

    class Segmenting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 4, 1)

        def forward(self, pixel_values: Tensor) -> Any:
            return SimpleNamespace(logits=self.head(pixel_values))

    teacher, images = Segmenting().eval(), {"pixel_values": torch.randn(32, 3, 6, 6)}
    student = copy.deepcopy(teacher)
    with torch.no_grad():
        student.head.bias += torch.tensor([2.0, -1.0, 1.0, -2.0])

    def same() -> float:
        return float((student(**images).logits.argmax(1) == teacher(**images).logits.argmax(1)).float().mean())

    assert same() < 0.5
    distil(
        student, teacher, images, "60ep", config=FitConfig(optimizer="adamw", lr=3e-2, weight_decay=0.0, batch_size=8),
        options=DistilOptions(hidden=0.0),
    )  # fmt: skip
    assert same() > 0.9
