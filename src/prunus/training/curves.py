"""Learning curves: a few lines of text for a terminal, and a small SVG image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prunus.charts import Chart
from prunus.training.history import History

Lines = Mapping[str, Sequence[tuple[float, float]]]


def lines_of(history: History) -> dict[str, list[tuple[float, float]]]:
    """Accuracy over epochs, on training and test data; the loss where there is no accuracy."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in history:
        values = {"training accuracy": record.accuracy, "test accuracy": record.test_accuracy}
        if record.accuracy is None:
            values = {"training loss": record.loss, "test loss": record.test_loss}
        for name, value in values.items():
            if value is not None:
                found.setdefault(name, []).append((float(record.epoch), value))
    return found


def _range(lines: Lines) -> tuple[float, float, float, float]:
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    low, high = min(ys), max(ys)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    return min(xs), max(max(xs), min(xs) + 1.0), low, high


def text_plot(lines: Lines, width: int = 60, height: int = 10) -> str:
    """The lines as characters: the first with *, the second with o, then + and x; empty where there is nothing."""
    if not any(lines.values()):
        return ""
    left, right, low, high = _range(lines)
    rows = [[" "] * width for _ in range(height)]
    marks = "*o+x"
    for number, line in reversed(list(enumerate(lines.values()))):
        for x, y in line:
            column = round((x - left) / (right - left) * (width - 1))
            row = round((high - y) / (high - low) * (height - 1))
            rows[row][column] = marks[number % len(marks)]
    labels = [f"{high:7.3f} "] + [" " * 8] * (height - 2) + [f"{low:7.3f} "]
    body = [f"{label}|{''.join(row)}" for label, row in zip(labels, rows)]
    scale = f"{left:g}".ljust(width - len(f"{right:g}")) + f"{right:g}"
    legend = "   ".join(f"{marks[i % len(marks)]} {name}" for i, name in enumerate(lines))
    return "\n".join([*body, " " * 8 + "+" + "-" * width, " " * 9 + scale + "  epoch", " " * 9 + legend])


def svg_plot(lines: Lines, title: str = "") -> str:
    """The lines as an SVG document; an empty one where there is nothing."""
    if not any(lines.values()):
        return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 380"/>\n'
    return Chart(title, "epoch", "loss" if all("loss" in name for name in lines) else "accuracy", lines).svg()
