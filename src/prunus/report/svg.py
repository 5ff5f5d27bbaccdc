"""Histograms of weights with their fitted law, as inline SVG in the page's own colours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 260, 110


def histogram(row: Mapping[str, Any]) -> str:
    """Bars of the counts, and the density of the fitted law as a line; the scale is the bars' own."""
    counts, edge = row["counts"], row["edge"]
    total, bins = max(1, sum(counts)), len(counts)
    step = 2 * edge / bins
    law = [density(row, -edge + step * (place / 4)) * total * step for place in range(4 * bins + 1)]
    top = max(max(counts), max(law) if row["law"] != "laplace" else max(counts) * 1.15) or 1
    bars = "".join(
        f'<rect x="{place * WIDTH / bins + 0.5:.1f}" y="{HEIGHT - count / top * HEIGHT:.1f}" '
        f'width="{WIDTH / bins - 1:.1f}" height="{count / top * HEIGHT:.1f}"/>'
        for place, count in enumerate(counts)
        if count
    )
    line = " ".join(
        f"{place / (4 * bins) * WIDTH:.1f},{max(0.0, HEIGHT - value / top * HEIGHT):.1f}"
        for place, value in enumerate(law)
    )
    label = escape(f"Histogram of {row['name']}: closest law {row['law']}, deviation {row['deviation']:.3g}")
    return (
        f'<svg class="histogram" viewBox="0 -4 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{label}">'
        f'<g class="bars">{bars}</g><polyline class="law" points="{line}"/>'
        f'<line class="axis" x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
        f'<text x="0" y="{HEIGHT + 13}">{-edge:.2g}</text><text x="{WIDTH / 2}" y="{HEIGHT + 13}" '
        f'text-anchor="middle">0</text><text x="{WIDTH}" y="{HEIGHT + 13}" text-anchor="end">{edge:.2g}</text></svg>'
    )


def density(row: Mapping[str, Any], x: float) -> float:
    """Density at x of the law that fits best, with the weights' own mean and deviation."""
    mean, deviation = float(row["mean"]), max(float(row["deviation"]), 1e-12)
    if row["law"] == "uniform":
        return 1 / (2 * float(row["edge"]))
    if row["law"] == "laplace":
        scale = deviation / math.sqrt(2)
        return math.exp(-abs(x - mean) / scale) / (2 * scale)
    return math.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def verdict(row: Mapping[str, Any]) -> str:
    """Whether the layer looks like independent random values around 0, in words (ledger P-24)."""
    ratio = row["norm"] / max(row["bulk_norm"], 1e-12)
    if row["fits"]:
        return f"like independent random values: norm {row['norm']:.2f}, {ratio:.2f} times that of such values"
    why = "its mean alone explains more" if row["mean_norm"] > row["bulk_norm"] else "it has a strong direction"
    return f"not independent random values: norm {row['norm']:.2f}, {ratio:.1f} times that of such values ({why})"


def breakable(name: str) -> str:
    """The name of a layer with places after dots and underscores where a line may break, and nowhere else."""
    return re.sub(r"([._]+)(?=.)", r"\1<wbr>", escape(name))


def histograms(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the page shows of each layer."""
    return [
        {
            "name": row["name"].removesuffix(".weight"),
            "shape": " × ".join(map(str, row["shape"])),
            "picture": histogram(row),
            "law": f"{row['law'].capitalize() if row['law'] == 'laplace' else row['law']} law",
            "fits": row["fits"],
            "verdict": verdict(row),
            "second": row["second"],
            "share": row["leading_share"],
        }
        for row in rows
    ]
