"""Recompute every reference value and run every check of the papers, and keep the counts in docs/evidence.

python -m tools.theory_check        # what `prunus theory --check` does; a minute
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tools.evidence import FOLDER, record

from prunus.papers import verify
from prunus.papers.index import Claim


def rows_of(chosen: list[Claim]) -> tuple[list[dict[str, Any]], list[verify.Verified]]:
    """A row for each paper with what was verified, and everything that failed."""
    rows, failed = [], []
    for paper in sorted({claim.paper for claim in chosen}):
        own = [claim for claim in chosen if claim.paper == paper]
        cases = list(verify.verify_cases(own))
        checks = list(verify.verify_checks(verify.select_checks(own)))
        failed += [result for result in (*cases, *checks) if not result.passed]
        methods = Counter(result.method for result in checks)
        rows.append(
            {
                "paper": paper,
                "claims": len(own),
                "reference values": len(cases),
                "checks": len(checks),
                "of them": ", ".join(f"{count} {method}" for method, count in sorted(methods.items())),
                "failed": sum(not result.passed for result in (*cases, *checks)),
            }
        )
    return rows, failed


def main(folder: Path = FOLDER) -> int:
    began = time.monotonic()
    rows, failed = rows_of(verify.select())
    claims, values, checks = (sum(row[name] for row in rows) for name in ("claims", "reference values", "checks"))
    end = f"{len(failed)} failed: {', '.join(result.name for result in failed)}." if failed else "all hold."
    note = (
        f"prunus theory --check: {values:,} reference values and {checks} checks of {claims} claims in "
        f"{time.monotonic() - began:.0f} s: {end}"
    )
    print(note)
    record("theory-check", rows, note, folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
