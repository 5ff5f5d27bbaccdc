"""A command destroys nothing: neither what it reads nor what Prunus did not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunus.cli import run

MODEL = "fc:64-16-10"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run(["prune", MODEL, "--sparsity", "0.5", "-o", "p.safetensors", "--json"]) == 0
    (tmp_path / "note.txt").write_text("my notes")
    (tmp_path / "photos").mkdir()
    return tmp_path


REFUSED = {
    "compress": ["compress", MODEL, "--weights", "p.safetensors", "-o", "p.safetensors"],
    "compress by another name": ["compress", MODEL, "--weights", "./p.safetensors", "-o", "photos/../p.safetensors"],
    "no ending": ["prune", MODEL, "--weights", "p.safetensors", "-o", "p"],
    "masks beside": ["reconstruct", MODEL, "--data", "digits", "--masks", "p.masks.safetensors", "-o", "p.safetensors"],
    "teacher": ["distil", MODEL, "--teacher", "p.safetensors", "--data", "digits", "--output", "p.safetensors"],
    "data": ["prune", MODEL, "--data", "note.txt", "-o", "note.txt"],
    "column": ["prune", MODEL, "--data", "note.txt:text", "-o", "note.txt"],
    "certify": ["certify", MODEL, "--masks", "p.masks.safetensors", "-o", "p.masks.safetensors"],
    "onnx": ["compress", MODEL, "--weights", "p.safetensors", "--onnx", "p.safetensors"],
    "note": ["prune", MODEL, "-o", "note.txt"],
    "folder": ["prune", MODEL, "-o", "."],
    "folder above": ["prune", MODEL, "-o", ".."],
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_and_foreign_files_are_never_replaced(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert run(REFUSED[case]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    words = {"note": "no file that Prunus wrote", "folder": "is a folder", "folder above": "is a folder"}
    assert words.get(case, "would replace") in said
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_the_model_in_a_folder_is_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / "enc"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes((folder / "p.safetensors").read_bytes())
    for output in ("enc", "enc/model.safetensors", "enc/config.json"):
        assert run(["compress", "hf:enc", "-o", output]) == 2
        assert "which is the model" in capsys.readouterr().err


def test_the_same_command_can_be_given_again(folder: Path) -> None:
    commands = [
        ["prune", MODEL, "--sparsity", "0.75", "-o", "p", "--json"],
        ["compress", MODEL, "--weights", "p.safetensors", "--input", "64", "-o", "small.safetensors", "--json"],
        ["certify", MODEL, "--masks", "p.masks.safetensors", "-o", "c.json", "--json"],
    ]
    for command in commands:
        assert [run(command), run(command)] == [0, 0]
    (folder / "empty").touch()
    assert run(["certify", MODEL, "--sparsity", "0.5", "-o", "empty", "--json"]) == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["prune", MODEL, "--weights", "."], ". is a folder"),
        (["prune", MODEL, "-o", "/proc/x.safetensors"], "/proc takes no new files"),
        (["prune", MODEL, "-o", "none/x.safetensors"], "there is no folder none"),
    ],
)
def test_places_are_called_what_they_are(
    command: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2
    assert words in capsys.readouterr().err


def test_a_sparsity_beside_masks_is_refused_unless_it_is_theirs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reconstruct", MODEL, "--data", "digits", "--samples", "1", "--masks", "p.masks.safetensors"]
    assert run([*command, "--sparsity", "0.9"]) == 2
    assert "leave one of the two out" in capsys.readouterr().err
    assert run([*command, "--sparsity", "0.5"]) == 0
    assert "sparsity 0.5000, 1 sample;" in capsys.readouterr().out
