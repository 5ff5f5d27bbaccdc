from __future__ import annotations

import copy
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.evidence import record
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import prunus
from prunus.contract import Masks
from prunus.errors import BadFile, BadInput
from prunus.training import Callback, FitConfig, Schedule, fit
from prunus.training.batches import fingerprint
from prunus.training.checkpoints import Checkpoints, read, write
from support import PROVING, scale
from support.training import Noisy, Stop, StopAt, conv_net, digits, fc, same_bytes


def half_masks(model: torch.nn.Module) -> Masks:
    source = torch.Generator().manual_seed(5)
    return Masks({n: torch.rand(p.shape, generator=source) < 0.5 for n, p in model.named_parameters() if p.dim() > 1})


@pytest.mark.parametrize("options", [
    {"optimizer": "sgd", "nesterov": True, "schedule": "warmup"},
    {"optimizer": "adam", "schedule": "step"},
    {"optimizer": "adamw", "schedule": Schedule("cosine", warmup="3it"), "weight_decay": 0.1},
], ids=lambda options: options["optimizer"])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_a_resumed_run_ends_in_the_same_bytes(tmp_path: Path, options: dict, masked: bool) -> None:
    """Dropout, batch norm, momentum, a data set with random transforms, masks, stops in the middle of an epoch."""
    data = Noisy(130)
    config = FitConfig(batch_size=32, seed=3, **options)
    whole, broken = conv_net(), conv_net()
    masks = half_masks(whole) if masked else None
    expected = fit(whole, data, "4ep", config, masks=masks, test=data)
    kept = config.replace(folder=tmp_path, resume=True, every="2it")
    for stop in (1, 7, 8, 15):
        with pytest.raises(Stop):
            fit(broken, data, "4ep", kept.replace(callbacks=(StopAt(stop),)), masks=masks, test=data)
        broken = conv_net(seed=stop)  # what the model held before is overwritten
    history = fit(broken, data, "4ep", kept, masks=masks, test=data)
    assert same_bytes(whole.state_dict(), broken.state_dict())
    drop = ("seconds",)
    rows = [[{k: v for k, v in row.items() if k not in drop} for row in h.to_dicts()] for h in (expected, history)]
    assert rows[0] == rows[1]


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    train, _ = digits(100)
    config = FitConfig(folder=tmp_path, resume=True)
    model = fc()
    first = fit(model, train, "2ep", config)
    other = fc(seed=9)
    second = fit(other, train, "2ep", config)
    assert same_bytes(model.state_dict(), other.state_dict())
    assert first == second


def test_a_run_of_the_first_versions_goes_on(tmp_path: Path) -> None:
    """They joined the digests of the data by another hash."""
    train, other = digits(100)
    config = FitConfig(folder=tmp_path, every="1it", resume=True)
    with pytest.raises(Stop):
        fit(fc(), train, "2ep", config.replace(callbacks=(StopAt(3),)))
    for path in Checkpoints(tmp_path).paths():
        tensors, record = read(path)
        record["agreement"]["data"] = fingerprint(train, earlier=True)
        write(path, tensors, record)
    with pytest.raises(BadInput, match="data="):
        fit(fc(), other, "2ep", config)
    whole, again = fc(), fc(seed=9)
    fit(whole, train, "2ep")
    fit(again, train, "2ep", config)
    assert same_bytes(whole.state_dict(), again.state_dict())


def test_a_used_folder_is_not_overwritten(tmp_path: Path) -> None:
    train, _ = digits(100)
    fit(fc(), train, "1ep", FitConfig(folder=tmp_path))
    with pytest.raises(BadInput, match="already holds a run"):
        fit(fc(), train, "1ep", FitConfig(folder=tmp_path))


def test_a_run_with_other_settings_or_data_is_refused_with_the_difference(tmp_path: Path) -> None:
    train, _ = digits(100)
    config = FitConfig(folder=tmp_path, resume=True)
    fit(fc(), train, "1ep", config)
    with pytest.raises(BadInput, match=r"lr=0\.1, batch_size=64 .* lr=0\.2, batch_size=32"):
        fit(fc(), train, "1ep", config.replace(lr=0.2, batch_size=32))
    with pytest.raises(BadInput, match=r"length='1ep'.*length='2ep'"):
        fit(fc(), train, "2ep", config)
    with pytest.raises(BadInput, match="data='100 samples"):
        fit(fc(), digits(99)[0], "1ep", config)
    with pytest.raises(BadInput, match="model="):
        fit(fc("64-16-10"), train, "1ep", config)
    with pytest.raises(BadInput, match="masks="):
        fit(fc(), train, "1ep", config, masks=half_masks(fc()))
    fit(fc(), train, "1ep", config.replace(every="3it", keep=5))  # where it is kept may differ


def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(tmp_path: Path) -> None:
    train, _ = digits(200)
    config = FitConfig(batch_size=50, folder=tmp_path, resume=True, keep=3)
    whole = fc()
    fit(whole, train, "3ep", config)
    newest = Checkpoints(tmp_path).paths()[0]
    content = bytearray(newest.read_bytes())
    content[-5] ^= 0x10
    newest.write_bytes(content)
    again = fc(seed=4)
    with pytest.warns(UserWarning, match=r"step-0000000012\.safetensors .* is damaged"):
        history = fit(again, train, "3ep", config)
    assert "is damaged" in history.notes[0]
    assert same_bytes(whole.state_dict(), again.state_dict())


def test_where_all_checkpoints_are_damaged_the_run_is_refused(tmp_path: Path) -> None:
    train, _ = digits(100)
    config = FitConfig(folder=tmp_path, resume=True)
    fit(fc(), train, "2ep", config)
    for path in Checkpoints(tmp_path).paths():
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadFile, match="Every checkpoint"):
        fit(fc(), train, "2ep", config)


@pytest.mark.prove
def test_any_flipped_or_lost_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    write(path, {"a": torch.arange(8.0), "b": torch.tensor([True, False])}, {"step": 3})
    tensors, record = read(path)
    assert record == {"step": 3}
    assert torch.equal(tensors["a"], torch.arange(8.0))
    good = path.read_bytes()
    source = random.Random(0)
    for position in source.sample(range(len(good)), scale(100, full=len(good))):
        bad = bytearray(good)
        bad[position] ^= 1 << source.randrange(8)
        path.write_bytes(bad)
        try:
            tensors, record = read(path)
        except BadFile:
            continue
        # only padding of the header may change unseen
        assert record == {"step": 3}
        assert torch.equal(tensors["a"], torch.arange(8.0))
        assert good[position : position + 1] == b" "
    for size in range(0, len(good), 37):
        path.write_bytes(good[:size])
        with pytest.raises(BadFile):
            read(path)


@pytest.mark.parametrize("every", ["0.0001min", "3it", "0.5ep"])
def test_checkpoints_by_time_steps_and_parts_of_an_epoch(tmp_path: Path, every: str) -> None:
    train, _ = digits(320)
    with pytest.raises(Stop):
        config = FitConfig(batch_size=32, folder=tmp_path, every=every, keep=99, callbacks=(Slow(), StopAt(9)))
        fit(fc(), train, "1ep", config)
    steps = [int(path.stem[5:]) for path in reversed(Checkpoints(tmp_path).paths())]
    assert steps == {"0.0001min": list(range(10)), "3it": [0, 3, 6, 9], "0.5ep": [0, 5]}[every]


class Slow(Callback):
    def after_step(self, run) -> None:
        time.sleep(0.007)


def test_the_penaltys_vectors_are_part_of_the_state(tmp_path: Path) -> None:
    train, _ = digits(200)
    config = FitConfig(spectral_penalty=2e-3, seed=1)
    whole, broken = fc("64-32-32-10"), fc("64-32-32-10")
    fit(whole, train, "3ep", config)
    kept = config.replace(folder=tmp_path, resume=True, every="2it")
    with pytest.raises(Stop):
        fit(broken, train, "3ep", kept.replace(callbacks=(StopAt(7),)))
    fit(broken, train, "3ep", kept)
    assert same_bytes(whole.state_dict(), broken.state_dict())


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    train, _ = digits(200)
    fit(fc(), train, "5ep", FitConfig(folder=tmp_path, keep=2))
    assert [path.name for path in Checkpoints(tmp_path).paths()] == [
        "step-0000000020.safetensors",
        "step-0000000016.safetensors",
    ]


def train_to_the_end(folder: str) -> None:
    torch.set_num_threads(1)
    config = FitConfig(batch_size=16, seed=3, folder=folder, resume=True, every="1it")
    model = conv_net()
    fit(model, Noisy(200), "4ep", config, masks=half_masks(conv_net()))


@pytest.mark.prove
def test_killed_runs_end_in_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random moments; after each, every checkpoint is whole."""
    data, whole = Noisy(200), conv_net()
    fit(whole, data, "4ep", FitConfig(batch_size=16, seed=3), masks=half_masks(conv_net()))
    context, source = multiprocessing.get_context("fork"), random.Random(7)
    kills, folder, number, steps = 0, tmp_path / "0", 0, set()
    while kills < scale(5, full=50):
        process = context.Process(target=train_to_the_end, args=(str(folder),))
        process.start()
        if source.random() < 0.8:  # else while it starts
            wait_for_progress(process, folder)
        process.join(source.uniform(0.0, 0.05))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        for path in Checkpoints(folder).paths():
            steps.add((number, read(path)[1]["step"]))
        if process.exitcode == 0:
            check_end(folder, whole)
            number += 1
            folder = tmp_path / str(number)
    began = time.monotonic()
    process = context.Process(target=train_to_the_end, args=(str(folder),))
    process.start()
    process.join(120)
    assert process.exitcode == 0, f"not finished after {time.monotonic() - began:.0f} s"
    check_end(folder, whole)
    if PROVING:
        rows = [{"kills": kills, "runs finished": number + 1, "distinct steps found after a kill": len(steps)}]
        rows[0] |= {"half-written files": 0, "ends that differ": 0}
        record(
            "training-kills", rows, "SIGKILL at random moments of a training run that keeps a checkpoint every step."
        )


def wait_for_progress(process: multiprocessing.Process, folder: Path) -> None:
    """Until a checkpoint appears that was not there, or the process ends."""
    before = Checkpoints(folder).paths()[:1]
    while process.is_alive() and Checkpoints(folder).paths()[:1] == before:
        time.sleep(0.001)


def check_end(folder: Path, whole: torch.nn.Module) -> None:
    end = conv_net(seed=1)
    config = FitConfig(batch_size=16, seed=3, folder=folder, resume=True, every="1it")
    history = fit(end, Noisy(200), "4ep", config, masks=half_masks(conv_net()))
    assert same_bytes(whole.state_dict(), end.state_dict())
    assert history[-1].step == 52
    assert [row.epoch for row in history] == [1, 2, 3, 4]


class Remembering(nn.Module):
    """A module with a state beside its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kept = nn.Linear(8, 4), {"scale": 3}

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found

    def get_extra_state(self) -> dict[str, int]:
        return self.kept

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.kept = state


def test_models_with_a_state_that_is_no_tensor_are_kept_and_go_on(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randint(0, 4, (64,), generator=generator))
    torch.manual_seed(0)
    whole, broken = Remembering(), Remembering()
    broken.load_state_dict(whole.state_dict())
    start = copy.deepcopy(broken)
    settings: dict[str, Any] = {"every": "1ep", "progress": False, "batch_size": 16, "ema": 0.9}
    fit(whole, data, "3ep", FitConfig(**settings, folder=tmp_path / "whole"))

    with pytest.raises(Stop):
        fit(broken, data, "3ep", FitConfig(**settings, folder=tmp_path / "run", callbacks=(StopAt(9),)))
    fit(start, data, "3ep", FitConfig(**settings, folder=tmp_path / "run", resume=True))
    assert torch.equal(whole.layer.weight, start.layer.weight)
    assert start.kept == {"scale": 3}
    path = prunus.models.save_weights(start, tmp_path / "weights.safetensors")
    other = prunus.models.load_weights(Remembering(), path)
    assert torch.equal(other.layer.weight, start.layer.weight)
