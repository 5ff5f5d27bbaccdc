"""A small line chart as plain SVG, for the plots of the theory pages."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 170, 36, 50
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#444444")
Series = Mapping[str, Sequence[tuple[float, float]]]


def line_chart(
    path: Path,
    series: Series,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    dashed: Sequence[str] = (),
    x_step: float | None = None,
) -> None:
    """Write one chart: named lines of (x, y) points, a legend at the right, optional logarithmic axes.

    `x_step` sets the distance of the ticks of x where the usual round steps do not suit (degrees).
    """
    points = [point for line in series.values() for point in line]
    x_axis = Axis([x for x, _ in points], log_x, LEFT, WIDTH - RIGHT, x_step)
    y_axis = Axis([y for _, y in points], log_y, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        '     font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in x_axis.ticks:
        x = x_axis.place(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_label(value)}</text>')
    for value in y_axis.ticks:
        y = y_axis.place(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="6 4"' if name in dashed else ""
        path_data = "L".join(f"{x_axis.place(x):.1f} {y_axis.place(y):.1f}" for x, y in line)
        parts.append(f'<path d="M{path_data}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = TOP + 10 + 20 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 42}" y="{y + 4}">{escape(name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f'transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y_label)}</text></svg>')
    temporary = path.with_suffix(".svg.tmp")
    temporary.write_text("\n".join(parts) + "\n", "utf8")
    os.replace(temporary, path)


class Axis:
    """Maps values to pixels and knows its round ticks."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float, step: float | None = None) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if high - low <= 8 * step)
            # The axis ends where the lines do, or at the next tick if that is close.
            first, last = math.floor(low / step), math.ceil(high / step)
            low = step * first if low - step * first < 0.15 * step else low
            high = step * last if step * last - high < 0.15 * step else high
            self.ticks = [10.0 ** (step * k) for k in range(first, last + 1) if low <= step * k <= high]
        else:
            step = step or _round_step((high - low) or 1.0)
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
            self.ticks = [low + step * k for k in range(round((high - low) / step) + 1)]
        self.low, self.high = float(low), float(high) if high > low else float(low + step)

    def place(self, value: float) -> float:
        """The pixel of a value."""
        position = math.log10(value) if self.log else value
        return self.start + (position - self.low) / (self.high - self.low) * (self.end - self.start)


def _round_step(span: float) -> float:
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)


def _label(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{round(value, 10):g}"
    return f"{value:.0e}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
