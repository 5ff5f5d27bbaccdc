"""Real loops of other libraries; each skips where its library is not installed."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from prunus.contract import Masks
from prunus.errors import BadInput, MissingExtra
from prunus.training import (
    FitConfig,
    GradualOptions,
    Growth,
    Ramp,
    Regrowth,
    fit,
    lightning_callback,
    random_ticket,
    trainer_callback,
)
from support.training import digits, fc

GROWTH = Growth(0.75, "balanced:8", Ramp("linear", every="2it"))


def check(model: nn.Module, masks: Masks, growing: bool, before: dict[str, torch.Tensor]) -> None:
    assert masks.sparsity == pytest.approx(0.75 if growing else 0.5, abs=0.01)
    for name, mask in masks.items():
        weight = dict(model.named_parameters())[name].detach()
        assert (weight[~mask].view(torch.int32) == 0).all()
        assert not torch.equal(weight[mask], before[name][mask])
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def lightning_module(lightning: Any, optimizer: Any, **options: float) -> Any:
    """A small network as a module of Lightning."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = fc("64-32-10")

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters(), **options)

    return Module()


@pytest.mark.parametrize("growing", [False, True])
def test_lightning_holds_and_grows_masks(growing: bool, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    module = lightning_module(lightning, torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    callback = lightning_callback(GROWTH if growing else random_ticket(module, 0.5))
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader(digits(256)[0], batch_size=64))
    check(module, callback.keeper.masks, growing, before)


@pytest.mark.parametrize("growing", [False, True])
def test_the_hugging_face_trainer_holds_and_grows_masks(growing: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = fc("64-32-10")

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.cross_entropy(self.net(inputs), labels)}

    model = Model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    callback = trainer_callback(GROWTH if growing else random_ticket(model, 0.5))
    data = [{"inputs": x, "labels": y} for x, y in digits(256)[0]]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=3, per_device_train_batch_size=64, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, learning_rate=1e-2,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()
    check(model, callback.keeper.masks, growing, before)


def hugging_face(model: nn.Module, callback: Any, folder: Path, resume: bool = False, **options: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    data = [{"inputs": x, "labels": y} for x, y in digits(128)[0]]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=32, report_to=[], use_cpu=True, disable_tqdm=True,
        learning_rate=1e-2, seed=1, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = fc("64-32-10")

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(inputs), labels)}


SET = Growth(0.5, ramp=Ramp("constant", every="1it"), options=GradualOptions(regrow=Regrowth("set", every="1it")))


def test_masks_survive_a_resumed_hugging_face_trainer(tmp_path: Path) -> None:
    whole = trainer_callback(SET)
    torch.manual_seed(0)
    hugging_face(Named(), whole, tmp_path / "whole", save_strategy="no", max_steps=8)
    torch.manual_seed(0)
    model = Named()
    hugging_face(model, trainer_callback(SET), tmp_path / "part", save_strategy="steps", save_steps=4, max_steps=8)
    import shutil

    shutil.rmtree(tmp_path / "part" / "checkpoint-8")
    resumed = trainer_callback(SET)
    hugging_face(Named(), resumed, tmp_path / "part", resume=True, save_strategy="steps", save_steps=4, max_steps=8)
    assert resumed.keeper.masks == whole.keeper.masks
    assert resumed.keeper.growing.updates == whole.keeper.growing.updates


def test_a_resumed_trainer_without_its_masks_is_refused(tmp_path: Path) -> None:
    hugging_face(Named(), trainer_callback(SET), tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    (tmp_path / "checkpoint-2" / "prunus.masks.safetensors").unlink()
    with pytest.raises(BadInput, match="output_dir"):
        hugging_face(Named(), trainer_callback(SET), tmp_path, resume=True, save_strategy="no", max_steps=4)


def test_masks_survive_a_resumed_lightning_trainer(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = fc("64-32-10")

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    def train(epochs: int, resume: str | None = None) -> Any:
        callback = lightning_callback(GROWTH)
        trainer = lightning.Trainer(
            max_epochs=4, limit_train_batches=4, callbacks=[callback, Stop(epochs)], logger=False, accelerator="cpu",
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, DataLoader(digits(256)[0], batch_size=64), ckpt_path=resume)
        return module, callback, trainer

    class Stop(lightning.Callback):
        def __init__(self, epochs: int) -> None:
            self.epochs = epochs

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch + 1 == self.epochs:
                trainer.save_checkpoint(tmp_path / "part.ckpt")
                trainer.should_stop = self.epochs < 4

    whole = train(4)
    train(2)
    again = train(4, str(tmp_path / "part.ckpt"))
    assert again[1].keeper.masks == whole[1].keeper.masks
    assert torch.equal(again[0].net.layers[0].weight, whole[0].net.layers[0].weight)


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_accumulated_gradients_count_as_one_step(library: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if library == "transformers":
        callback = trainer_callback(SET)
        hugging_face(Named(), callback, tmp_path, save_strategy="no", gradient_accumulation_steps=4, max_steps=4)
    else:
        lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

        callback = lightning_callback(SET)
        trainer = lightning.Trainer(
            max_steps=4, accumulate_grad_batches=4, callbacks=[callback], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(lightning_module(lightning, torch.optim.SGD, lr=1e-2), DataLoader(digits(512)[0], batch_size=32))
        fresh = lightning_callback(SET)
        fresh.load_state_dict(callback.state_dict())
        assert fresh.keeper.masks == callback.keeper.masks
    assert callback.keeper.growing.updates == 3  # at the start, and at steps 1 and 2 of 4; regrowth ends at 3


def test_tensorboard_gets_the_records(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train, test = digits(128)
    history = fit(fc(), train, "3ep", FitConfig(tensorboard=tmp_path), test=test)
    events = EventAccumulator(str(tmp_path)).Reload()
    rows = events.Scalars("test_accuracy")
    assert [row.step for row in rows] == [record.step for record in history]
    assert [row.value for row in rows] == pytest.approx([record.test_accuracy for record in history])


@pytest.mark.parametrize("package", ["lightning", "transformers", "torch.utils.tensorboard"])
def test_a_missing_library_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith(package):
            raise ImportError(name)
        return plain_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    masks = random_ticket(fc(), 0.5)
    jobs = {
        "lightning": lambda: lightning_callback(masks),
        "transformers": lambda: trainer_callback(masks),
        "torch.utils.tensorboard": lambda: fit(fc(), digits(64)[0], "1ep", FitConfig(tensorboard="nowhere")),
    }
    with pytest.raises(MissingExtra, match="pip install"):
        jobs[package]()


def test_bad_input() -> None:
    with pytest.raises(BadInput, match="RigL"):
        Growth(0.5, options=GradualOptions(regrow=Regrowth("rigl")))
    with pytest.raises(BadInput, match="needs data"):
        Growth(0.5, options=GradualOptions(score="snip"))
    with pytest.raises(BadInput, match="Masks or a Growth"):
        lightning_callback(0.5)  # type: ignore[arg-type]
    with pytest.raises(BadInput):
        Growth(1.5)
