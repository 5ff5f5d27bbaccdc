"""Learning curves: a few lines of text for a terminal, and a small SVG image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from prunus.training.history import History

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 300, 56, 130, 30, 40

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
    """The lines as an SVG document."""
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    parts.append(f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>')
    if not any(lines.values()):
        return "\n".join([*parts, "</svg>\n"])
    left, right, low, high = _range(lines)
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (x - left) / (right - left) * wide, _TOP + (high - y) / (high - low) * tall

    for step in range(5):
        value = low + (high - low) * step / 4
        y = place(left, value)[1]
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_LEFT + wide}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        at = left + (right - left) * step / 4
        x = place(at, low)[0]
        parts.append(f'<text x="{x:.1f}" y="{_TOP + tall + 16}" text-anchor="middle">{at:.3g}</text>')
    parts.append(f'<text x="{_LEFT + wide / 2:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">epoch</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        x, y = place(*line[-1])
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>')
        legend = _TOP + 14 + 18 * number
        parts.append(f'<path d="M{_LEFT + wide + 10} {legend - 4}h14" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + wide + 28}" y="{legend}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])
