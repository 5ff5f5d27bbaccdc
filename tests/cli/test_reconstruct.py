"""`prunus reconstruct`, `prunus distil` and `prunus prune --reconstruct`, one after the other as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import prunus
from prunus.cli import run
from prunus.models import save_weights

NET = "fc:64-48-10"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a trained network in it."""
    monkeypatch.chdir(tmp_path)
    model = prunus.models.make(NET, seed=0)
    prunus.training.fit(model, prunus.data.load("digits", split="train"), "3ep")
    save_weights(model, tmp_path / "dense.safetensors")
    return tmp_path


def test_reconstruct_then_distil(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = [
        "--weights",
        "dense.safetensors",
        "--data",
        "digits",
        "--sparsity",
        "0.8",
        "--exclude",
        "layers.1",
        "--json",
    ]
    assert run(["prune", NET, *data, "--pattern", "balanced:16"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run(["prune", NET, *data, "--pattern", "balanced:16", "--reconstruct"]) == 0
    adjusted = json.loads(capsys.readouterr().out)
    assert run(["reconstruct", NET, *data, "-o", "small.safetensors"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert plain["accuracy_after"] < adjusted["accuracy_after"] <= 1
    assert plain["accuracy_after"] < found["accuracy_after"]
    assert found["layers"][0]["after"] < found["layers"][0]["before"]
    masks = prunus.Masks.load(folder / "small.masks.safetensors")
    assert abs(masks.sparsity - found["sparsity"]) < 1e-12
    call = ["distil", NET, "--weights", "small.safetensors", "--teacher", "dense.safetensors", "--data", "digits"]
    assert run([*call, "--length", "30it", "--output", "better.safetensors", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["final"]["sparsity"] > 0.75
    better = prunus.models.resolve(NET, str(folder / "better.safetensors"))
    assert all((p[~masks[name]] == 0).all() for name, p in masks.parameters_of(better).items())


def test_distil_leaves_a_whole_run_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pruning = ["--data", "digits", "--sparsity", "0.6", "--exclude", "layers.1", "-o", "small.safetensors"]
    assert run(["reconstruct", NET, "--weights", "dense.safetensors", *pruning]) == 0
    call = ["distil", NET, "--weights", "small.safetensors", "--teacher", "dense.safetensors", "--data", "digits"]
    call += ["--length", "3ep"]
    capsys.readouterr()
    assert run([*call, "-o", "run.safetensors"]) == 2
    assert "give a folder, as in -o run;" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "run.safetensors").exists()
    assert run([*call, "-o", "run"]) == 0
    assert "weights are in run/model.safetensors: name it with --weights" in " ".join(capsys.readouterr().out.split())
    names = ["checkpoints", "curve.svg", "masks.safetensors", "model.safetensors", "record.json"]
    assert sorted(path.name for path in (folder / "run").iterdir()) == names
    record = json.loads((folder / "run" / "record.json").read_text())
    assert record["settings"]["teacher"] == "dense.safetensors"
    assert record["settings"]["config"]["optimizer"] == "adamw"
    assert record["result"]["weights_file"] == "run/model.safetensors"
    assert len(record["history"]) == 3
    masks, weights = prunus.Masks.load("run/masks.safetensors"), load_file("run/model.safetensors")
    assert masks == prunus.Masks.load("small.masks.safetensors")
    assert all(not weights[name][~mask].any() for name, mask in masks.items())
    student = prunus.models.resolve(NET, "run/model.safetensors")
    test = prunus.data.load("digits", split="test")
    assert prunus.training.accuracy(student, test) == record["result"]["accuracy_after"]

    assert run([*call, "-o", "run"]) == 2  # a finished run is not overwritten
    assert run([*call, "-o", "broken", "--json"]) == 0
    sorted((folder / "broken" / "checkpoints").glob("*.safetensors"))[-1].unlink()  # as if killed before it was written
    for name in names[1:]:
        (folder / "broken" / name).unlink()
    assert run([*call, "-o", "broken", "--resume", "--json"]) == 0
    assert (folder / "broken" / "model.safetensors").read_bytes() == (folder / "run" / "model.safetensors").read_bytes()


def test_tables_for_people_fit_eighty_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    call = ["reconstruct", NET, "--weights", "dense.safetensors", "--data", "digits", "--samples", "128"]
    assert run([*call, "--pattern", "2:4"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "magnitude" in shown
    assert "no training" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reconstruct", NET], "name some with --data"),
        (["reconstruct", NET, "--data", "digits", "--pattern", "blanced:16"], "did you mean"),
        (["reconstruct", NET, "--data", "digits", "--samples", "0"], "samples is 0"),
        (["distil", NET, "--data", "digits"], "--weights of a pruned network"),
        (["prune", NET, "--reconstruct"], "name some with --data"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_recipe_by_name_goes_on_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["cnn-retrain", "encoder", "llm-oneshot"]
    call = ["recipe", "llm-oneshot", "fc:64-32-10", "--data", "digits", "--exclude", "layers.1", "--json"]
    call += ["--sparsity", "0.75", "--folder", str(tmp_path / "state")]
    for number in range(2):
        assert run([*call, "-o", str(tmp_path / f"{number}.safetensors")]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["sparsity"] == pytest.approx(0.75)
        assert record["layers"]["layers.0.weight"]["after"] < record["layers"]["layers.0.weight"]["before"]
    assert (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()
    assert run(["recipe", "encoder"]) == 2
    assert "needs a model" in capsys.readouterr().err


def test_layers_that_stay_dense_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["reconstruct", NET, "--weights", "dense.safetensors", "--data", "digits", "--samples", "64"]
    call += ["--pattern", "balanced:64", "--misfits", "skip"]
    assert run(call) == 0
    assert "left dense, as it does not fit the pattern: layers.1.weight" in capsys.readouterr().out
    assert run([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == ["layers.1.weight"]
