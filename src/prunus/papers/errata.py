"""Errata sheets, one for each paper: what is published, what is right, why, and how it was checked."""

from __future__ import annotations

from prunus.papers import LETTERS, PAPERS, STATUS
from prunus.papers.checking import all_checks
from prunus.papers.index import Claim, claims
from prunus.papers.verify import agree

_WRONG = ("misprint", "wrong", "sloppy")


def entries(paper: str) -> list[Claim]:
    """The claims of a paper whose published form is not right as it stands."""
    return [claim for claim in claims.values() if claim.paper == paper and claim.status in _WRONG]


def sheet(paper: str) -> str:
    """The errata sheet of one paper as a page in Markdown, made from the claims' records and checks."""
    letter = PAPERS[paper]
    found = entries(paper)
    counts = ", ".join(f"{sum(c.status == status for c in found)} {status} ({STATUS[status]})" for status in _WRONG)
    lines = [
        f"# Errata: {LETTERS[letter]}",
        "",
        f"{len(found)} entries: {counts}. Values are of the first reference case; `prunus theory ID` evaluates others.",
        "The paper's main statements stand unless an entry says otherwise.",
    ]
    checks = all_checks(paper).values()
    for claim in found:
        how = [f"{check.method} (`{check.name}`)" for check in checks if claim.id in check.claims]
        how += [f"{len(claim.cases)} reference values"] if claim.cases else []
        lines += ["", f"## {claim.id}: {claim.title}", "", f"{claim.source}. Status: {claim.status}.", ""]
        lines += [f"- **Published**: {text}" for text in _printed(claim)]
        lines += [f"- **Right**: {name}: {meaning}" for name, meaning in claim.returns.items()]
        lines += [f"- **Why**: {claim.erratum}"] if claim.erratum else []
        example = _example(claim)
        lines += [f"- **Example**: {example}"] if example else []
        lines += [f"- **Checked by**: {'; '.join(how)}."]
    return "\n".join(lines) + "\n"


def _printed(claim: Claim) -> list[str]:
    """What the paper has: the values of its formula, or a sentence where it has none that can be evaluated."""
    return [f"{name}: {meaning}" for name, meaning in claim.printed_returns.items()] or [claim.published]


def _example(claim: Claim) -> str:
    """The first reference case at which the two forms differ, as one line; empty where there is none."""
    for case in claim.cases:
        if claim.printed_function is None or case.printed:
            continue
        right = claim(**case.given)
        try:
            published = claim.printed(**case.given)
        except ValueError:  # the published form covers less
            continue
        for name, value in (published or {}).items():
            if name in right and isinstance(value, (int, float)) and not agree(value, float(right[name]), 1e-9, 0.0):
                given = ", ".join(f"{key} = {item}" for key, item in case.given.items())
                return f"{given}: {name} is {float(right[name]):.6g}, published {float(value):.6g}"
    return ""
