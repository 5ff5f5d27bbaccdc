"""Writes the index of the claims, README.md, the errata sheets and the pages of formulas, from the claims' records and checks.

Run it after a claim changed: python docs/papers/build.py. A test compares the committed page with `render()`.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from prunus.papers import STATUS
from prunus.papers.errata import sheet
from prunus.papers.statements import page as statements_page
from prunus.theory import claims

FOLDER = Path(__file__).resolve().parent
PAPERS = {
    "closeness": ("Closeness", "How far a pruned network can be from the original; norms of random layers."),
    "balanced": ("Balanced sparsity", "What pruning bank by bank costs over pruning freely."),
    "noisy_topk": ("Noisy top-k", "The law of a private selection: swaps, errors, privacy."),
    "tangent": ("Tangent kernels", "What random pruning does to the limiting kernel."),
    "iterand": ("Tickets", "How wide a random network must be to hold a target network."),
}
HEAD = """# The papers as a checked index

The computable results of the papers are functions of `prunus.theory`, found by their ids in `prunus.theory.claims`.
The corrected form is the function; the printed form, where it differs, is kept beside it. Each claim has reference
values and at least one independent check: enumeration, a second formula, Monte Carlo with a false-alarm rate of 1e-6,
or a property.

```python
from prunus.theory import claims

claims["B-3"](n=4, r=2)  # the corrected form
claims["B-3"].printed(n=4, r=2)  # what the paper's formula gives
claims["B-3"].erratum  # what is wrong with it, in one sentence
```

```
prunus theory                     lists the claims
prunus theory B-3                 explains one
prunus theory B-3 n=4 r=2         evaluates it, printed beside corrected
prunus theory "Theorem 3.5"       searches by paper, theorem or word
prunus theory --check             recomputes all reference values and runs all checks
prunus theory --vacuity           says what the closeness theorems allow in practice
```

[What covers each statement](statements.md) lists the papers' numbered statements, tables and figures, and what is missing.

This page is written by `docs/papers/build.py`.
"""


def render() -> str:
    """The whole page."""
    counts = Counter(claim.status for claim in claims.values())
    lines = [HEAD, f"## {len(claims)} claims", "", "| status | claims | meaning |", "|---|---|---|"]
    lines += [f"| {status} | {counts[status]} | {meaning} |" for status, meaning in STATUS.items()]
    for paper, (title, purpose) in PAPERS.items():
        chosen = [claim for claim in claims.values() if claim.paper == paper]
        name = paper.replace("_", "-")
        lines += [
            "",
            f"## [{title}]({name}.md)",
            "",
            f"{purpose} [Formulas and symbols](formulas-{name}.md), [errata](errata-{name}.md).",
            "",
        ]
        lines += ["| id | result | status | erratum | code |", "|---|---|---|---|---|"]
        for claim in chosen:
            file = Path(claim.function.__module__.replace(".", "/")).with_suffix(".py")
            code = f"[`{claim.name}`](../../src/{file.as_posix()})"
            cells = (claim.id, claim.title, claim.status, claim.erratum, code)
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def formulas(paper: str) -> str:
    """The page of a paper's claims: formula, symbols, and where the code is."""
    title, purpose = PAPERS[paper]
    name = paper.replace("_", "-")
    lines = [f"# Formulas: {title}", "", f"{purpose} [Explained]({name}.md), [errata](errata-{name}.md)."]
    for claim in claims.values():
        if claim.paper != paper:
            continue
        module = Path(claim.function.__module__.replace(".", "/")).with_suffix(".py").as_posix()
        lines += ["", f"## {claim.id}", "", f"{claim.title}. {claim.source}; {claim.status}.", ""]
        lines += ["$$", claim.formula, "$$", "", "| symbol | meaning |", "|---|---|"]
        lines += [f"| `{key}` | {_cell(meaning)} |" for key, meaning in claim.arguments.items()]
        lines += [f"| `{key}` (result) | {_cell(meaning)} |" for key, meaning in claim.returns.items()]
        lines += ["", f"Code: [`{claim.name}`](../../src/{module})."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", chr(92) + "|")


def pages() -> dict[str, str]:
    """Names and texts of all pages that are written here: index, statements, errata sheets, formulas."""
    names = {paper: paper.replace("_", "-") for paper in PAPERS}
    sheets = {f"errata-{name}.md": sheet(paper) for paper, name in names.items()}
    listed = {f"formulas-{name}.md": formulas(paper) for paper, name in names.items()}
    return {"README.md": render(), "statements.md": statements_page(), **sheets, **listed}


def main() -> None:
    """Write the pages beside this file."""
    for name, text in pages().items():
        temporary = FOLDER / f"{name}.tmp"
        temporary.write_text(text, "utf8")
        os.replace(temporary, FOLDER / name)


if __name__ == "__main__":
    main()
