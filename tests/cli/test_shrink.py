"""`prunus shrink` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import prunus
from prunus.cli import run


def test_a_smaller_model_and_its_masks_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "shrink fc:64-48-10 --data digits --fraction 0.5 --samples 64 -o small.safetensors --json"
    assert run(command.split()) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["share"] <= 0.5
    assert record["parameters_after"] < record["parameters_before"]
    assert [group["name"] for group in record["groups"]] == ["layers.0"]
    assert {"accuracy_before", "accuracy_after", "seconds_before", "seconds_after"} <= record.keys()
    small = prunus.structure.load("small.safetensors", prunus.models.make("fc:64-48-10"))
    assert small.layers[0].out_features == record["groups"][0]["after"]
    assert prunus.Masks.load("small.masks.safetensors").sparsity > 0.4


def test_depth_and_distillation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "shrink resnet20:width=0.25,channels=1 --data digits-images --samples 32 --json --fraction"
    assert run([*command.split(), "0.6", "--depth", "--distil", "2it"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["share"] <= 0.6
    assert record["parameters_after"] < record["parameters_before"]


def test_any_metric_is_told_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "def width(model, data):\n    return float(model.layers[0].out_features)\n"
    (tmp_path / "own_metric.py").write_text(text, "utf8")
    command = "shrink fc:64-48-10 --data digits --samples 64 --metric own_metric:width"
    assert run([*command.split(), "--distil", "1it"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "own_metric:width: 48 before, 24 without training, 24 after 1it of distillation" in printed


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("shrink fc:64-48-10 --fraction 2", "between 0 and 1"),
        ("shrink fc:64-48-10 --score tailor", "did you mean 'taylor'"),
        ("shrink fc:64-48-10 --exclude layer.7", "matches no layer"),
        ("shrink fc:64-48-10 --input 3xx", "not a shape"),
        ("shrink fc:64-48-10 --distil 1ep", "needs --data"),
        ("shrink fc:64-48-10 --depth", "no residual block"),
    ],
)
def test_bad_input_exits_with_two(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    assert text in " ".join(capsys.readouterr().err.split())
