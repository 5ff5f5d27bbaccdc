from __future__ import annotations

import json

import pytest

from prunus.cli import run
from prunus.cli.reproduce import _parts
from prunus.errors import BadInput
from prunus.papers.reproducing import reproduction, reproductions


@pytest.fixture
def toy():  # type: ignore[no-untyped-def]
    @reproduction("toy-table", "A toy table", "Nobody 2020, table 1", minutes=0.1)
    def toy(seed: int = 0) -> list[dict[str, float]]:
        return [{"published": 1.0, "ours": 1.5 + seed}]

    @reproduction("toy-far", "A toy table", "Nobody 2020, table 2", out_of_reach="it needs a thousand machines.")
    def far() -> list[dict[str, float]]:
        return []

    yield
    del reproductions["toy-table"], reproductions["toy-far"]


def test_list_and_run(toy: None, capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert run(["reproduce", "--list", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["toy-table"]["status"] == "runs here"
    assert "thousand" in rows["toy-far"]["status"]
    assert run(["reproduce", "toy-table", "--seed", "2", "--json", "-o", str(tmp_path / "rows.json")]) == 0
    assert json.loads(capsys.readouterr().out) == {"toy-table": [{"published": 1.0, "ours": 3.5}]}
    assert json.loads((tmp_path / "rows.json").read_text())["toy-table"][0]["ours"] == 3.5
    assert run(["reproduce", "toy-table"]) == 0
    assert "Nobody 2020" in capsys.readouterr().out


def test_bad_names(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "toy-tabel"]) == 2
    assert "did you mean 'toy-table'" in capsys.readouterr().err
    assert run(["reproduce", "toy-far"]) == 2
    with pytest.raises(BadInput, match="exists already"):
        reproduction("toy-table", "Again", "Nobody")(lambda: [])


def test_the_list_fits_a_narrow_terminal(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("toy-table"))
    assert lines[place].split() == ["toy-table", "about", "6", "s"]
    assert lines[place + 1].strip() == "A toy table"
    assert place < lines.index("Out of reach here") < lines.index("toy-far")


def test_wide_tables_are_cut_in_parts_that_fit() -> None:
    rows = [{"layer": "first", **{f"column number {number}": 1.0 for number in range(12)}}]
    parts = list(_parts(list(rows[0]), rows, 60))
    assert all(part[0] == "layer" for part in parts)
    assert [name for part in parts for name in part[1:]] == list(rows[0])[1:]
    assert max(len(part) for part in parts) <= 7
    assert list(_parts(list(rows[0]), rows, 400)) == [list(rows[0])]
