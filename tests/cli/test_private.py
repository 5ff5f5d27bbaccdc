"""`prunus private`: tables for people, JSON for machines, and a status that tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.cli import run


def test_plan_says_both_readings(capsys, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(["private", "plan", "--d", "10000", "--k", "0.01", "--swap-epsilon", "5.28", "-o", str(page)]) == 0
    text = capsys.readouterr().out
    assert "metric privacy" in text
    assert "no protection" in text
    assert page.read_text().count("<polyline") == 3


def test_plan_as_json(capsys) -> None:
    assert run(["private", "plan", "--d", "10000", "--k", "0.01", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["privacy"]["per_swap"] == 5.28
    assert record["privacy"]["local"] == pytest.approx(528.0)
    assert len(record["table"]) > 5


def test_audit_accepts_and_rejects(capsys) -> None:
    arguments = ["private", "audit", "--draws", "4000", "--seed", "1", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert run([*arguments, "--fault", "reused-seed"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_simulate(capsys) -> None:
    assert run(["private", "simulate", "digits", "--clients", "3", "--rounds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows][:3] == ["dense", "top-k", "noisy top-k"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["plan", "--k", "0"], "k as a fraction"),
        (["plan", "--theta", "1", "--error", "0.9"], "exactly one"),
        (["plan", "--d", "1000", "--k", "0.1", "--error", "0.01"], "exact top-k costs"),
        (["audit", "--fault", "none"], "no fault named"),
        (["simulate", "digits", "--dropout", "2"], "dropout"),
        (["train", "digits", "--k", "3"], "k between"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys) -> None:
    assert run(["private", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_help_teaches(capsys) -> None:
    for command in ("plan", "simulate", "audit", "train"):
        assert run(["private", command, "--help"]) == 0
        assert "Example" in capsys.readouterr().out
