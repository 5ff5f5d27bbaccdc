"""The papers' numbered statements, tables and figures, and what covers each, or why nothing does."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from prunus.papers import LETTERS, PAPERS


@dataclass(frozen=True)
class Statement:
    """One numbered statement, table or figure, and what covers it.

    claims: ids of claims. code: name of code that carries it out. reproductions: ids of runs beside the published
    numbers. open: what is missing, if anything, and why.
    """

    paper: str
    name: str
    claims: tuple[str, ...] = ()
    code: str = ""
    reproductions: tuple[str, ...] = ()
    open: str = ""


def statements(paper: str) -> list[Statement]:
    """The statements of one paper, in its own order."""
    text = (resources.files("prunus.papers") / paper / "statements.toml").read_text("utf8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["statement"]
    return [Statement(paper, **_frozen(row)) for row in rows]


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its lists as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def page() -> str:
    """All statements as a page in Markdown."""
    lines = ["# What covers each statement", ""]
    lines += ["Claims are evaluated and checked by `prunus theory`; the last column gives what is missing, and why."]
    for paper, letter in PAPERS.items():
        found = statements(paper)
        done = sum(not statement.open for statement in found)
        lines += ["", f"## {LETTERS[letter]}", "", f"{done} of {len(found)} covered in full.", ""]
        lines += ["| statement | claims | code | reproductions | missing |", "|---|---|---|---|---|"]
        for row in found:
            code = f"`{row.code}`" if row.code else ""
            runs = ", ".join(f"`{name}`" for name in row.reproductions)
            lines.append(f"| {row.name} | {', '.join(row.claims)} | {code} | {runs} | {row.open} |")
    return "\n".join(lines) + "\n"
