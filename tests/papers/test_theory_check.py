"""The tool that keeps the counts of `prunus theory --check`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tools import theory_check

from prunus.papers import verify
from prunus.theory import claims


def test_rows_count_by_paper_and_name_what_failed() -> None:
    good = claims["I-8a"]
    wrong = replace(good.cases[0], expect=dict.fromkeys(good.cases[0].expect, -1.0))
    rows, failed = theory_check.rows_of([replace(good, cases=(*good.cases, wrong)), claims["K-2a"]])
    assert [(row["paper"], row["claims"], row["failed"]) for row in rows] == [("iterand", 1, 1), ("tangent", 1, 0)]
    assert rows[0]["reference values"] == len(good.cases) + 1
    assert rows[1]["checks"] == len(verify.select_checks([claims["K-2a"]])) > 0
    assert [result.name for result in failed] == [f"I-8a case {len(good.cases)}"]


def test_a_failure_is_said_and_gives_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = claims["I-8a"]
    wrong = replace(claim.cases[0], expect=dict.fromkeys(claim.cases[0].expect, -1.0))
    monkeypatch.setattr(verify, "select", lambda: [replace(claim, cases=(wrong,))])
    assert theory_check.main(tmp_path) == 1
    assert "1 failed: I-8a case 0." in capsys.readouterr().out
    assert json.loads((tmp_path / "theory-check.json").read_text("utf8"))["rows"][0]["failed"] == 1
