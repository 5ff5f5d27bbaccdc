"""Draws the figures of tickets.md: python docs/guide/plot_tickets.py [curves]

Most come from the rows kept in docs/evidence; `curves` trains the three networks of the learning curves again.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from prunus.models import make
from prunus.papers.runs import digits
from prunus.storage import write
from prunus.charts import Chart, write_charts
from prunus.training import FitConfig, find_ticket, fit
from prunus.training.curves import svg_plot

FOLDER = Path(__file__).resolve().parent
ACCURACY = "test accuracy, %"


def kept(name: str) -> list[dict[str, Any]]:
    """The rows of a reproduction."""
    return json.loads((FOLDER.parent / "evidence" / f"reproduce-{name}.json").read_text("utf8"))["rows"]


def widths() -> Chart:
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in kept("ticket-widths-digits"):
        if row["weights"] == "kaiming_uniform":
            lines.setdefault(row["method"], []).append((row["width"], row["ours"], row["s.d."]))
    return Chart("Digits, 64-32w-32w-10, uniform weights, 100 epochs", "width w", ACCURACY, lines, log_x=True)


def sparsities() -> Chart:
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in kept("ticket-sparsity"):
        lines.setdefault(row["method"], []).append((row["sparsity"], row["ours"], row["s.d."]))
    return Chart("Digits, 64-64-64-10, signed constants", "sparsity", ACCURACY, lines)


def resamplings() -> Chart:
    """With standard errors: what is compared are means over seeds. Settings of the same number share a point."""
    none, *rows = kept("ticket-period-rate")
    found: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["seeds"], row["resamplings"]), []).append(row)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for (seeds, times), group in sorted(found.items()):
        error = math.sqrt(sum(row["s.d."] ** 2 / seeds for row in group)) / len(group)
        lines.setdefault(f"{seeds} seeds", []).append((times, statistics.fmean(row["ours"] for row in group), error))
    title, levels = "Digits, 64-16-16-10: mean and standard error", {"edge-popup": none["ours"]}
    return Chart(title, "times a pruned weight is drawn anew", ACCURACY, lines, log_x=True, levels=levels)


def iterative() -> Chart:
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in kept("imp-widths-digits"):
        if row["width"] == 128 and row["density"] < 1:
            lines.setdefault(row["method"], []).append((row["density"], row["ours"], row["s.d."]))
    return Chart("Digits, width 128", "density", ACCURACY, lines, log_x=True)


def curves() -> None:
    train, test = digits()
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in ("SGD", "iterand", "edge-popup"):
        init = "kaiming_uniform"
        model = make("fc:64-16-16-10", init=init, seed=1, bias=False)
        if name == "SGD":
            history = fit(model, train, "60ep", FitConfig(lr=0.03, seed=1), test=test)
        else:
            options = {"period": 7, "rate": 0.1, "config": FitConfig(lr=0.3, seed=1)}
            history = find_ticket(model, train, name, 0.5, length="60ep", test=test, **options).history
        lines[name] = [(record.epoch, record.test_accuracy or 0.0) for record in history]
        print(name, history[-1])
    title = "digits, 64-16-16-10, Kaiming uniform: test accuracy"
    write(FOLDER / "ticket-curves.svg", svg_plot(lines, title))


def main() -> None:
    charts = {"widths": widths, "sparsities": sparsities, "resamplings": resamplings, "imp": iterative}
    for name, chart in charts.items():
        print(write_charts(FOLDER / f"ticket-{name}.svg", [chart()]))
    if "curves" in sys.argv[1:]:
        curves()


if __name__ == "__main__":
    main()
