"""Draws the figures of the tangent guide from the rows kept in docs/evidence: python docs/guide/plot_tangent.py"""

from __future__ import annotations

import json
from pathlib import Path

from prunus.papers.tangent import reproductions
from prunus.charts import write_charts

FOLDER = Path(__file__).resolve().parent
KEPT = {
    "tangent-figure-1": "tangent-figure-1",
    "tangent-figure-2": "reproduce-tangent-figure-2",
    "tangent-exponent": "tangent-exponent",
}


def main() -> None:
    """Write one .svg for each figure beside this file."""
    for name, evidence in KEPT.items():
        rows = json.loads((FOLDER.parent / "evidence" / f"{evidence}.json").read_text("utf8"))["rows"]
        print(write_charts(FOLDER / f"{name}.svg", reproductions.charts(name, rows)))


if __name__ == "__main__":
    main()
