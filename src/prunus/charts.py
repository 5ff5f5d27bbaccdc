"""Line charts as plain SVG, and pages that hold several of them: every picture of ours but those of the study's page.

Nothing is loaded, so a chart opens anywhere. The study's page draws with the plotly.js it carries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from prunus.errors import BadInput
from prunus.storage import write

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 380, 70, 180, 36, 50
_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#444444")
_CROWDED = 60  # points of a line above which it is drawn without markers
Point = tuple[float, float] | tuple[float, float, float]


@dataclass(frozen=True)
class Chart:
    """One chart: named lines, two axes, a legend at the right.

    Attributes:
        title: Stands above it.
        x_label: Stands below the horizontal axis.
        y_label: Stands beside the vertical axis.
        lines: Points (x, y) or (x, y, half the length of an error bar) by name.
        log_x: Logarithmic horizontal axis.
        log_y: Logarithmic vertical axis.
        levels: Dashed horizontal lines across the chart, by name.
        dashed: Names of lines that are drawn dashed.
        dots: Names of lines whose points are not joined.
        x_step: Distance of the ticks of x, where the usual round steps do not suit (degrees).
        x_names: Names of the places x = 0, 1, 2, ... where x is not a number.

    Example:
        >>> from prunus.charts import Chart
        >>> Chart("Accuracy", "epoch", "%", {"test": [(1, 60.0), (2, 80.0)]}).svg()[:4]
        '<svg'
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[Point]]
    log_x: bool = False
    log_y: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    dashed: Sequence[str] = ()
    dots: Sequence[str] = ()
    x_step: float | None = None
    x_names: Sequence[str] = ()

    def svg(self) -> str:
        """The chart as one SVG document.

        Raises:
            BadInput: No point can be drawn.
        """
        points = [point for line in self.lines.values() for point in line if self._drawable(point)]
        if not points:
            raise BadInput(f"There is nothing to draw in {self.title!r}: all values are missing or infinite.")
        low_high = [point[1] + sign * (point[2] if len(point) > 2 else 0) for point in points for sign in (-1, 1)]
        y_values = [y for y in [*low_high, *self.levels.values()] if not self.log_y or y > 0]
        places = [point[0] for point in points] + ([-0.5, len(self.x_names) - 0.5] if self.x_names else [])
        x = _Axis(places, self.log_x, _LEFT, _WIDTH - _RIGHT, 1.0 if self.x_names else self.x_step)
        y = _Axis(y_values, self.log_y, _HEIGHT - _BOTTOM, _TOP)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
            'font-size="12" role="img">',
            f'<title>{escape(self.title)}</title><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(self.title)}</text>',
            *self._grid(x, y),
        ]
        for number, (name, line) in enumerate(self.lines.items()):
            parts += self._line(number, name, [point for point in line if self._drawable(point)], x, y)
        for number, (name, level) in enumerate(self.levels.items(), len(self.lines)):
            path = f"M{_LEFT} {y.place(level):.1f}H{_WIDTH - _RIGHT}"
            parts.append(f'<path d="{path}" stroke="{_colour(number)}" stroke-dasharray="6 4"/>')
            parts += _legend(number, name, dashed=True)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _drawable(self, point: Point) -> bool:
        x, y = point[:2]
        return math.isfinite(x) and math.isfinite(y) and (x > 0 or not self.log_x) and (y > 0 or not self.log_y)

    def _grid(self, x: _Axis, y: _Axis) -> list[str]:
        parts = []
        ticks = {value: _label(value) for value in x.ticks}
        if self.x_names:
            ticks = {float(number): escape(name) for number, name in enumerate(self.x_names)}
        for value, text in ticks.items():
            at = x.place(value)
            parts.append(f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#e5e5e5"/>')
            place = f'x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle"'
            if len(self.x_names) > 2:  # many names need a slant to stand beside each other
                low = _HEIGHT - _BOTTOM + 12
                place = f'x="{at:.1f}" y="{low}" text-anchor="end" font-size="9" transform="rotate(-20 {at:.1f} {low})"'
            parts.append(f"<text {place}>{text}</text>")
        for value in y.ticks:
            at = y.place(value)
            parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#e5e5e5"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_label(value)}</text>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(self.x_label)}</text>')
        turned = f'transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)"'
        return [*parts, f'<text {turned} text-anchor="middle">{escape(self.y_label)}</text>']

    def _line(self, number: int, name: str, line: Sequence[Point], x: _Axis, y: _Axis) -> list[str]:
        colour = _colour(number)
        places = [(x.place(point[0]), y.place(point[1])) for point in line]
        dash = ' stroke-dasharray="6 4"' if name in self.dashed else ""
        parts = _legend(number, name, dashed=name in self.dashed)
        if places and name not in self.dots:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for point, (a, b) in zip(line, places) if len(line) <= _CROWDED else ():
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>')
            if len(point) > 2:
                ends = [y.place(max(point[1] + sign * point[2], y.smallest)) for sign in (-1, 1)]
                parts.append(f'<path d="M{a:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{colour}"/>')
        return parts


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _legend(number: int, name: str, dashed: bool = False) -> list[str]:
    at, dash = _TOP + 10 + 20 * number, ' stroke-dasharray="6 4"' if dashed else ""
    return [
        f'<path d="M{_WIDTH - _RIGHT + 12} {at}h24" stroke="{_colour(number)}" stroke-width="2"{dash}/>',
        f'<text x="{_WIDTH - _RIGHT + 42}" y="{at + 4}">{escape(name)}</text>',
    ]


class _Axis:
    """Maps values to pixels and knows its round ticks."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float, step: float | None = None) -> None:
        self.log, self.start, self.end, self.smallest = log, start, end, min(values)
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            if high == low:
                low, high = low - 0.5, high + 0.5
            decades = next(count for count in (1, 2, 5, 10, 20, 50, 100) if high - low <= 8 * count)
            # The axis ends where the lines do, or at the next power if that is close.
            first, last = math.floor(low / decades), math.ceil(high / decades)
            low = decades * first if low - decades * first < 0.15 * decades else low
            high = decades * last if decades * last - high < 0.15 * decades else high
            # Few decades are too coarse to read a value from: 2 and 5 stand between them.
            between = (1, 2, 5) if high - low <= 2 else (1,)
            ticks = [part * 10.0 ** (decades * k) for k in range(first, last + 1) for part in between]
            self.ticks = [tick for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
        else:
            step = step or _round_step((high - low) or max(abs(high), 1.0))
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
            high = high if high > low else low + step
            self.ticks = [round(low + step * k, 12) for k in range(round((high - low) / step) + 1)]
        self.low, self.high = float(low), float(high)

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


def check_target(path: str | os.PathLike[str]) -> Path:
    """The path; refuses one that no plot can be written to, so that it is known before the work is done."""
    target = Path(path)
    if target.suffix not in (".svg", ".html"):
        raise BadInput(f"{target} must end in .svg or .html: these are the plots that can be written.")
    return target


def write_charts(path: str | os.PathLike[str], charts: Sequence[Chart], title: str = "Charts") -> Path:
    """One chart as .svg; several, below each other, as .svg or as an .html page that needs nothing else."""
    target = check_target(path)
    if target.suffix == ".html":
        body = "\n".join(f"<figure>{chart.svg()}</figure>" for chart in charts)
        style = "body{max-width:46rem;margin:2rem auto;font-family:sans-serif}figure{margin:1rem 0}"
        head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
        body = f"<body><h1>{escape(title)}</h1>\n{body}</body>"
        return write(target, f'<!doctype html><html lang="en"><head>{head}</head>{body}</html>\n')
    if len(charts) == 1:
        return write(target, charts[0].svg())
    inner = "".join(
        chart.svg().replace("<svg ", f'<svg y="{number * _HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" ', 1)
        for number, chart in enumerate(charts)
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT * len(charts)}"'
    return write(target, f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{inner}</svg>\n')


def lines_by(rows: Sequence[Mapping[str, Any]], group: str, x: str, y: str) -> dict[str, list[Point]]:
    """Lines for a chart: one for each value of `group`, sorted by `x`; rows without a value are left out."""
    lines: dict[str, list[Point]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            lines.setdefault(f"{group} {row[group]}", []).append((float(row[x]), float(row[y])))
    return {name: sorted(line) for name, line in lines.items()}
