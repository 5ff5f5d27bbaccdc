"""The frontier table of the guide says what was measured."""

from __future__ import annotations

from tools import frontier


def test_the_guide_shows_the_evidence() -> None:
    shown = frontier.GUIDE.read_text("utf8").split(frontier.BEGIN)[1].split(frontier.END)[0]
    assert shown == frontier.table()
    assert shown.count("\n") > 8


def test_verdicts_are_those_published() -> None:
    rows = frontier.rows_of("equivalent-acas")
    assert {row["property"]: row["verdict"] for row in rows} == {row["property"]: row["published"] for row in rows}
    assert all(row["processor seconds"] <= 60 for row in rows)
    assert len(rows) == 9
