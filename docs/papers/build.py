"""Writes the index page of the pages on the papers, README.md, from the claims.

Run it after a claim changed: python docs/papers/build.py. A test compares the committed page with `render()`.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from prunus.theory import claims

FOLDER = Path(__file__).resolve().parent
PAPERS = {
    "closeness": ("Closeness", "How far a pruned network can be from the original; norms of random layers."),
    "balanced": ("Balanced sparsity", "What pruning bank by bank costs over pruning freely."),
    "noisy_topk": ("Noisy top-k", "The law of a private selection: swaps, errors, privacy."),
    "tangent": ("Tangent kernels", "What random pruning does to the limiting kernel."),
    "iterand": ("Tickets", "How wide a random network must be to hold a target network."),
}
STATUS = {
    "right": "verified as printed",
    "sloppy": "true after an obvious repair",
    "misprint": "the formula as printed is wrong",
    "wrong": "the argument fails; a corrected statement is given",
    "added": "not in the paper; derived and checked here",
}
HEAD = """# The papers as a checked index

Every computable result of the papers is a function of `prunus.theory`, found by its id in `prunus.theory.claims`.
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
prunus theory --check             recomputes all reference values and runs all checks
prunus theory --vacuity           says what the closeness theorems allow in practice
```

This page is written by `docs/papers/build.py`.
"""


def render() -> str:
    """The whole page."""
    counts = Counter(claim.status for claim in claims.values())
    lines = [HEAD, f"## {len(claims)} claims", "", "| status | claims | meaning |", "|---|---|---|"]
    lines += [f"| {status} | {counts[status]} | {meaning} |" for status, meaning in STATUS.items()]
    for paper, (title, purpose) in PAPERS.items():
        chosen = [claim for claim in claims.values() if claim.paper == paper]
        lines += ["", f"## [{title}]({paper.replace('_', '-')}.md)", "", purpose, ""]
        lines += ["| id | result | status | erratum | function |", "|---|---|---|---|---|"]
        for claim in chosen:
            function = f"`{paper}.{claim.name}`"
            cells = (claim.id, claim.title, claim.status, claim.erratum, function)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write README.md beside this file."""
    page = FOLDER / "README.md"
    temporary = page.with_suffix(".md.tmp")
    temporary.write_text(render(), "utf8")
    os.replace(temporary, page)


if __name__ == "__main__":
    main()
