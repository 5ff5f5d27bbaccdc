"""The frontier table of the certificates guide, made from docs/evidence: python -m tools.frontier writes it anew.

`tests/certificates/test_frontier.py` keeps the guide's numbers those of the evidence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide" / "certificates.md"
BEGIN, END = "<!-- frontier: begin -->\n", "<!-- frontier: end -->\n"


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of one file of evidence; none where it was not measured."""
    path = ROOT / "docs" / "evidence" / f"{name}.json"
    return list(json.loads(path.read_text("utf8"))["rows"]) if path.exists() else []


def _listed(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _acas() -> list[list[str]]:
    found = []
    rows = rows_of("equivalent-acas")
    for verdict, elsewhere in (
        ("proved", "VeryDiff: proved in .58, .57, .009 s"),
        ("refuted", "VeryDiff: under .02 s"),
    ):
        chosen = [row for row in rows if row["verdict"] == verdict]
        agreed = all(row["verdict"] == row["published"] for row in chosen)
        answer = f"{verdict}: {_listed([row['property'] for row in chosen])}{'' if agreed else ' (not as published)'}"
        seconds = _listed([f"{row['processor seconds']:.2g}" for row in chosen])
        found.append(["ACAS Xu 1_1, pruned5", "within .05 on properties 1 to 10", answer, seconds, elsewhere])
    return found


def _float16() -> list[list[str]]:
    found = []
    for number, most, elsewhere in ((1, 45, "NeuroDiff: 45 in 343 s on 12 threads"), (3, 42, ""), (4, 42, "")):
        chosen = [row for row in rows_of("equivalent-float16") if row["property"] == number]
        if chosen:
            proved = sum(row["verdict"] == "proved" for row in chosen)
            total = sum(row["processor seconds"] for row in chosen)
            left = "" if len(chosen) == most else f"; {most - len(chosen)} not run"
            what = [f"ACAS Xu, {most} networks, float16", f"within .05 on property {number}"]
            found.append([*what, f"{proved} proved of {len(chosen)}{left}", f"{total:.0f} together", elsewhere])
    return found


def _mnist() -> list[list[str]]:
    return [
        [
            row["pair"],
            f"{row['asked']}, {row['pixels']}, 20 images",
            f"{row['proved']} proved, {row['refuted']} refuted, {row['undecided']} undecided",
            f"{row['seconds']:.0f} together",
            "",
        ]
        for row in rows_of("equivalent-mnist")
    ]


def _labels() -> list[list[str]]:
    return [
        [
            f"{row['network']}, MNIST, {row['sparsity']:.0%}",
            f"same label within {row['radius']:g} of 1,000 points",
            f"{row['proved']:.1%} proved ({row['same label']:.1%} at the points)",
            f"{row['processor seconds']:.0f}",
            "",
        ]
        for row in rows_of("certificates-labels")
    ]


def _near() -> list[list[str]]:
    found = []
    for name in ("certificates-lenet", "certificates-crown", "certificates-transformers"):
        for row in rows_of(name):
            sparsity = f", {row['sparsity']:.0%}" if "sparsity" in row else ", 30%"
            answer = f"at most {row['bound']:.3g}, one moves it by {row['attained']:.3g}"
            crown = f"alpha-CROWN on the pair: {row['alpha-CROWN']:.3g}" if "alpha-CROWN" in row else ""
            question = f"how far within {row['radius']:g} of a point"
            found.append([f"{row['network']}{sparsity}", question, answer, f"{row['processor seconds']:.0f}", crown])
    return found


def table() -> str:
    """The table in Markdown."""
    lines = ["| networks | question | answer | processor seconds | elsewhere |", "|---|---|---|---|---|"]
    for part in (_acas, _float16, _mnist, _labels, _near):
        lines += [f"| {' | '.join(row)} |" for row in part()]
    return "\n".join(lines) + "\n"


def main() -> int:
    text = GUIDE.read_text("utf8")
    before, rest = text.split(BEGIN)
    GUIDE.write_text(before + BEGIN + table() + END + rest.split(END)[1], "utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
