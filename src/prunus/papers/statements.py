"""The papers' numbered statements, and what covers each: claims, code that carries it out, or why nothing does."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from prunus.papers import LETTERS, PAPERS


@dataclass(frozen=True)
class Statement:
    """One numbered statement: ids of claims, the name of code that carries it out, and what is missing, if anything."""

    paper: str
    name: str
    claims: tuple[str, ...] = ()
    code: str = ""
    open: str = ""


def statements(paper: str) -> list[Statement]:
    """The statements of one paper, in its own order."""
    text = (resources.files("prunus.papers") / paper / "statements.toml").read_text("utf8")
    return [Statement(paper, **{**row, "claims": tuple(row["claims"])}) for row in tomllib.loads(text)["statement"]]


def page() -> str:
    """All statements as a page in Markdown."""
    lines = ["# What covers each statement", ""]
    lines += ["Claims are evaluated and checked by `prunus theory`; the last column gives what is missing, and why."]
    for paper, letter in PAPERS.items():
        found = statements(paper)
        done = sum(not statement.open for statement in found)
        lines += ["", f"## {LETTERS[letter]}", "", f"{done} of {len(found)} covered in full.", ""]
        lines += ["| statement | claims | code | missing |", "|---|---|---|---|"]
        for row in found:
            code = f"`{row.code}`" if row.code else ""
            lines.append(f"| {row.name} | {', '.join(row.claims)} | {code} | {row.open} |")
    return "\n".join(lines) + "\n"
