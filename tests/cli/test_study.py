from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.cli import run

SMALL = ["study", "fc:64-16-10", "--length", "1ep", "--certify", "1", "--kernel", "0", "--seeds", "1", "--workers", "1"]


def test_a_study_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["-o", str(tmp_path / "runs")]
    asked = [*SMALL, *where, "--pattern", "unstructured,2:4", "--sparsity", "0.5", "0.8"]
    assert run([*asked, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == 3
    assert run([*asked, "--json", "--export", str(tmp_path / "rows.csv"), "--columns", "pattern,accuracy"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cells"], found["failed"]) == (3, 0)
    assert all(set(row) == {"pattern", "accuracy"} for row in found["rows"])
    assert (tmp_path / "rows.csv").read_text().startswith("pattern,accuracy\n")
    assert run([*asked]) == 0, "nothing is left to run"
    shown = capsys.readouterr()
    assert "3 cells done, 0 failed" in shown.out
    assert "fc:64-16-10 on digits, dense " in shown.out, "what all cells share is said once"
    assert "[1/3]" not in shown.err
    assert run([*SMALL, *where, "--pattern", "unstructured", "--sparsity", "0.5", "--exclude", "nothing"]) == 1
    assert "matches no prunable weight" in capsys.readouterr().out


def test_cells_are_named_by_what_differs() -> None:
    from prunus.cli.study import _names
    from prunus.study import Grid

    several = Grid(model=("fc:64-10",), method=("prune", "reconstruct"), sparsity=(0.5,), seed=(0,)).cells()
    assert list(_names(several).values()) == ["magnitude unstructured 0.5", "reconstruct unstructured 0.5"]
    assert list(_names(several[:1]).values()) == ["unstructured 0.5"]
    seeds = Grid(model=("fc:64-10", "fc:64-9-10"), sparsity=(0.5,), seed=(0, 1)).cells()
    assert list(_names(seeds).values())[:2] == ["fc:64-10 unstructured 0.5 seed 0", "fc:64-10 unstructured 0.5 seed 1"]


def test_the_file_and_the_options_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.toml"
    file.write_text('model = "fc:64-10"\nsparsity = [0.5, 0.9]\nseed = [4, 5]\n[settings]\nlength = "1ep"\n')
    base = ["study", "--grid", str(file), "--dry-run", "--json", "-o", str(tmp_path / "runs")]
    for extra, cells in (([], 4), (["--seeds", "3"], 6), (["--sparsity", "0.7"], 2)):
        assert run([*base, *extra]) == 0
        assert json.loads(capsys.readouterr().out)["cells"] == cells


def test_damage_is_for_reconstruction_and_the_command_says_so_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SMALL, "--method", "prune", "reconstruct", "--allocation", "damage", "--sparsity", "0.5"]
    assert run([*asked, "--dry-run", "-o", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr()
    assert shown.err == "note: Only reconstruct measures damage: the allocation is uniform for prune.\n"
    assert shown.out.startswith("2 cells")
    assert run(["study", "--help"]) == 0
    assert "erk, lamp or damage" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["study"], "needs a network"),
        (["study", "fc:64-10", "--sparsity", "much"], "must be numbers"),
        (["study", "fc:64-10", "--sparsity", ","], "grid is empty"),
        (["study", "fc:64-10", "--seeds", "0"], "at least one seed"),
        (["study", "fc:64-10", "--allocation", "damge"], "did you mean 'damage'"),
        (["study", "fc:64-10", "--columns", "acuracy"], "did you mean 'accuracy'"),
        (["study", "fc:64-10", "--engine", "steam"], "local, ray"),
        (["study", "fc:64-10", "--workers", "0"], "at least one worker"),
        (["study", "fc:64-10", "--seeds", "500"], "add --yes"),
        (["study", "fc:64-10", "--grid", "absent.toml"], "cannot be read"),
        (["study", "nonsense"], "no model named"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "-o", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs" / "study.sqlite").exists()


def test_every_setting_is_a_flag_with_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The flags are made from `Settings`: none is missing, and the help is the line of its docstring."""
    import dataclasses

    from prunus.cli.options import attributes
    from prunus.study import Settings

    texts = attributes(Settings)
    assert list(texts) == [field.name for field in dataclasses.fields(Settings)]
    assert run(["study", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, text in texts.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert " ".join(text.replace("`", "").split()[:4]) in shown, name


def test_flags_of_training_are_made_from_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    from prunus.cli._training import TRAINED
    from prunus.cli.options import attributes
    from prunus.training import FitConfig

    shown = {}
    for command in ("train", "ticket", "distil"):
        assert run([command, "--help"]) == 0
        shown[command] = " ".join(capsys.readouterr().out.replace("│", " ").split())
        for name in TRAINED:
            assert f"--{name.replace('_', '-')}" in shown[command]
    texts = attributes(FitConfig)
    assert texts["lr"] in shown["train"]
    assert "Learning rate. 0.0005 unless given." in shown["distil"]
    assert "Learning rate. 0.3 unless given." in shown["ticket"]
    assert texts["label_smoothing"] in shown["train"]
    assert "(after each epoch), step or warmup. cosine-epoch unless given." in shown["ticket"]
