"""Draws the figure of private.md from the rows kept in docs/evidence: python docs/guide/plot_private.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prunus.charts import Chart, write_charts

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tools.private_study import GUIDE, pooled_error  # noqa: E402

EPSILON = 3.0
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}


def by_bytes(data: str) -> Chart:
    """Accuracy against bytes at one epsilon, 1 % of it on the indices; the error bar is that of all rows together."""
    rows = json.loads((FOLDER.parent / "evidence" / f"private-tanh-{data}.json").read_text("utf8"))["rows"]
    rows = [row for row in rows if row["method"] in GUIDE]
    error, _ = pooled_error(rows)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["megabytes sent"]):
        if row["epsilon"] == EPSILON and row["index share"] in (0.0, 0.01) and row["method"] != "two-level":
            name = {"random": "random mask", "noisy-top-k": "noisy top-k"}.get(row["method"], row["method"])
            lines.setdefault(name, []).append((row["megabytes sent"], row["test"], error))
    title = f"{TITLES[data]}, tanh CNN, epsilon {EPSILON:g}"
    return Chart(title, "megabytes sent by a worker", "test accuracy, %", lines, log_x=True)


if __name__ == "__main__":
    write_charts(FOLDER / "private-bytes.svg", [by_bytes(data) for data in TITLES])
