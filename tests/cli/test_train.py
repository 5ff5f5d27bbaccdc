from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from safetensors.torch import load_file

import prunus
from prunus.cli import run
from support.training import same_bytes

SMALL = ["fc:64-16-10", "--data", "digits", "--length", "2ep"]


def command(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def test_a_run_folder_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL, "--lr", 0.05, "--seed", 3, "-o", tmp_path / "run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["settings"]["config"]["lr"] == 0.05
    assert record["settings"]["seed"] == record["settings"]["config"]["seed"] == 3
    assert record["versions"]["torch"]
    assert len(record["history"]) == 2
    assert told["final"] == record["history"][-1]
    ElementTree.parse(tmp_path / "run" / "curve.svg")
    model = prunus.models.make("fc:64-16-10")
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    test = prunus.data.load("digits", split="test")
    assert prunus.training.accuracy(model, test) == told["final"]["test_accuracy"]


def test_people_see_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL) == 0
    out = capsys.readouterr().out
    assert "test accuracy" in out
    assert "epoch 2" in out


@pytest.mark.parametrize("method", ["random", "snip", "grasp", "synflow", "magnitude", "gradual", "set", "rigl", "imp"])
def test_every_method_leaves_masks_and_zeros(method: str, tmp_path: Path) -> None:
    options = ["--method", method, "--sparsity", 0.5, "--rounds", 2, "--fraction", 0.3, "-o", tmp_path / "run"]
    assert command("train", *SMALL, *options, "--json") == 0
    masks = prunus.Masks.load(tmp_path / "run" / "masks.safetensors")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert masks.sparsity == pytest.approx(0.51 if method == "imp" else 0.5, abs=0.01)
    assert all(not weights[name][~mask].any() for name, mask in masks.items())


def test_masks_of_a_file_and_rescaling(tmp_path: Path) -> None:
    assert command("train", *SMALL, "--method", "random", "--sparsity", 0.8, "-o", tmp_path / "one", "--json") == 0
    file = tmp_path / "one" / "masks.safetensors"
    assert command("train", *SMALL, "--masks", file, "--rescale", "-o", tmp_path / "two", "--json") == 0
    assert prunus.Masks.load(file) == prunus.Masks.load(tmp_path / "two" / "masks.safetensors")


def test_resume_goes_on_and_differences_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ["fc:64-16-10", "--data", "digits", "--length", "3ep"]
    assert command("train", *long, "-o", tmp_path / "whole", "--json") == 0
    assert command("train", *long, "-o", tmp_path / "part", "--json") == 0
    newest = sorted((tmp_path / "part" / "checkpoints").iterdir())[-1]
    newest.unlink()  # as if the process had been killed before it was written
    (tmp_path / "part" / "record.json").unlink()
    assert command("train", *long, "-o", tmp_path / "part", "--resume", "--json") == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert same_bytes(one, two)
    capsys.readouterr()
    assert command("train", *long, "-o", tmp_path / "part") == 2
    assert "already holds a finished run" in capsys.readouterr().err
    assert command("train", *long, "--lr", 0.3, "-o", tmp_path / "part", "--resume") == 2
    assert "lr=0.1" in capsys.readouterr().err


def test_presets_are_listed_and_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command("train", "--presets", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"conv6-sgd", "mnist-2x2048", "resnet20-128"} <= {row["name"] for row in rows}
    assert command("train", "--preset", "digits-sgd", "--length", "1ep", "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"]["lr"] == 0.03
    assert command("train", "--preset", "imagenet-resnet50-sgd", "--length", "1it") == 2
    assert "ImageNet" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [
    ["--method", "magic"], ["--length", "soon"], ["--lr", "-1"], ["--optimizer", "lion"], ["--resume"],
    ["--fraction", "half", "--method", "imp"], ["--sparsity", "1.5", "--method", "random"], ["--preset", "none"],
])  # fmt: skip
def test_bad_input_is_status_two_and_one_sentence(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL, *wrong) == 2
    assert capsys.readouterr().err.startswith("prunus: ")
    assert command("train") == 2


def test_a_run_that_fails_is_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL, "--lr", 1e18, "--schedule", "constant") == 1
    assert "The loss became" in capsys.readouterr().err


def test_torchrun_shares_the_batches(tmp_path: Path) -> None:
    code = "from prunus.cli import main; main()"
    script = tmp_path / "go.py"
    script.write_text(code)
    arguments = ["train", "fc:64-16-10", "--data", "digits", "--length", "1ep", "-o", str(tmp_path / "run"), "--json"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=180, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["final"]["epoch"] == 1  # one document: only one process speaks
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "random", "--sparsity", "0.9999"], "no weight in layers.0.weight"),
        (["--method", "imp", "--pattern", "balanced:16"], "leave out --pattern"),
        (["--method", "gradual", "--rescale"], "--rescale is for masks that do not change"),
        (["--rescale"], "--rescale is for masks that do not change"),
        (["--method", "imp", "--fraction", "certified"], "needs --error"),
        (["--controls", "shuffle"], "--method imp"),
        (["--clip", "-1"], "clip is -1.0"),
        (["--preset", "digits-iterand"], "use it with prunus ticket"),
    ],
)
def test_what_would_not_be_looked_at_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("train", *SMALL, *arguments) == 2
    assert words in capsys.readouterr().err


def test_rescaling_is_part_of_what_a_resumed_run_agrees_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--method", "random", "--sparsity", 0.8, "-o", tmp_path / "run"]
    assert command("train", *options, "--rescale") == 0
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert command("train", *options, "--resume") == 2
    assert "rescale=True" in capsys.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_short_runs_regrow_and_imp_has_its_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL, "--method", "set", "--sparsity", 0.5, "-o", tmp_path / "run") == 0
    masks = prunus.Masks.load(tmp_path / "run" / "masks.safetensors")
    assert masks.notes["updates"] > 5
    capsys.readouterr()
    assert command("train", *SMALL, "--method", "imp", "--rounds", 1, "--controls", "reinitialise", "--json") == 0
    assert "reinitialise" in json.loads(capsys.readouterr().out)["levels"][1]


def test_interrupted_runs_say_how_to_go_on(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "prunus", "train", "fc:64-300-10", "--data", "digits", "--length", "5000ep"]
    # Where the tests themselves run in the background, children would inherit that the signal is ignored.
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = subprocess.Popen([*arguments, "-o", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True, **reset)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run").glob("checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "--resume" in told
    assert "Traceback" not in told


def test_parts_of_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["--milestones", "1ep", "--factor", "0.5", "--lr", "0.08", "-o", tmp_path / "step", "--json"]
    assert command("train", *SMALL, *steps) == 0
    assert json.loads(capsys.readouterr().out)["final"]["lr"] == pytest.approx(0.04)
    assert command("train", *SMALL, "--schedule", "constant", "--warmup", "2ep", "--lr", "0.08", "--json") == 0
    assert json.loads(capsys.readouterr().out)["final"]["lr"] == pytest.approx(0.08)
    warm = ["--schedule", "cosine-epoch", "--warmup", "1ep", "--lr", "0.08", "--length", "3ep", "--json"]
    assert command("train", *SMALL[:-2], *warm) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["final"]["lr"] == pytest.approx(0.04)
    assert (
        told["config"]["schedule"] | {"by": "epoch", "shape": "cosine", "warmup": "1ep"} == told["config"]["schedule"]
    )
    assert command("train", *SMALL, "--schedule", "warmup", "--warmup", "1ep", "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"]["schedule"]["warmup"] == "1ep"
    assert command("train", *SMALL, "--schedule", "zigzag", "--warmup", "1ep") == 2
    assert "no schedule named 'zigzag'" in capsys.readouterr().err
    assert command("train", *SMALL, "--schedule", "cosine", "--factor", "0.5") == 2
    assert "--schedule step" in capsys.readouterr().err


def test_batch_norms_are_measured_anew(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", *SMALL, "--method", "random", "--sparsity", 0.5, "--recalibrate", 3, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recalibrated test accuracy"] == told["final"]["test_accuracy"]  # no batch norm: nothing to measure
    assert told["recalibrated"].startswith("nothing to measure")
    assert command("train", *SMALL, "--recalibrate", -1) == 2
    assert "--recalibrate" in capsys.readouterr().err


def test_people_see_which_statistics_were_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "normed_for_train.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))\n"
    )
    few = ["normed_for_train:net", "--data", "digits", "--length", "1ep", "--recalibrate", 2]
    assert command("train", *few) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"batch norm: (old|new) statistics kept \(loss .* with the old\); test accuracy 0\.\d+", out)
    assert command("train", *few, "-o", tmp_path / "run", "--json") == 0
    assert "statistics kept" in json.loads(capsys.readouterr().out)["recalibrated"]
    assert "statistics kept" in (tmp_path / "run" / "record.json").read_text()
