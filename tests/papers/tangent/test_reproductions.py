"""The reproductions in small: right columns, numbers near the ledger's, charts that can be drawn."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from tools.evidence import record

from prunus.errors import BadInput
from prunus.papers.reproducing import reproductions
from prunus.papers.tangent import reproductions as ours
from prunus.tangent.comparison import ComparisonPlan
from support import PROVING, scale


def keep(name: str, rows: list[dict[str, object]], note: str) -> None:
    if PROVING:
        record(name, rows, inspect.cleandoc(note))


@pytest.mark.prove
def test_figure_1() -> None:
    """Means within five standard errors of the limit (6e-7 each); spreads within 35 % of the ledger's."""
    widths = (64, 128, 256) if not PROVING else tuple(ours._FIGURE_1)[:-1]
    rows = ours.figure_1(seed=1, widths=widths, networks=None if PROVING else 128)
    for row in rows:
        assert abs(row["mean"] - row["limit"]) < 5 * row["error"] + 0.05
        assert row["s.d."] == pytest.approx(row["ledger s.d."], rel=0.35)
    dense = [row["s.d."] for row in rows if row["network"] == "dense"]
    assert dense == sorted(dense, reverse=True)
    assert all(chart.svg() for chart in ours.charts("tangent-figure-1", rows))
    keep("tangent-figure-1", rows, ours.figure_1.__doc__ or "")


@pytest.mark.prove
def test_figure_2() -> None:
    """The deviation does not grow when the width grows with 1/density: the paper's sentence, with 4 errors' leave.

    Under full counts at the ledger's base width, each value within 5 errors of two such samples of the ledger's. The
    paper's own size, base width 1024, is `prunus reproduce tangent-figure-2`.
    """
    if PROVING:
        rows = ours.figure_2(seed=1, base=256, networks=200)
        for row in rows:
            for kind in ("linear", "quadratic"):
                if row.get(kind) is not None:
                    gap = abs(row[kind] - row[f"ledger {kind}, scaled"])
                    assert gap < 5 * math.sqrt(2) * row[f"{kind} error"]
    else:
        rows = ours.figure_2(seed=1, base=128, networks=50, probabilities=(0.0, 0.5))
    for kind in ("linear", "quadratic"):
        found = [(row[kind], row[f"{kind} error"]) for row in rows if row.get(kind) is not None]
        assert found[-1][0] <= found[0][0] + 4 * math.hypot(found[-1][1], found[0][1])
    assert all(chart.svg() for chart in ours.charts("tangent-figure-2", rows))
    keep("tangent-figure-2", rows, ours.figure_2.__doc__ or "")


@pytest.mark.prove
def test_exponent() -> None:
    """The dense coefficient is near 45; under full counts the quadratic one is within 4 errors of zero."""
    grid = None if PROVING else {32: 300, 64: 300, 128: 200}
    rows = ours.exponent(seed=1, grid=grid, densities=ours._DENSITIES if PROVING else (1.0, 0.5, 0.25))
    fit = {row["coefficient"][0]: row for row in rows if "coefficient" in row}
    assert abs(fit["A"]["value"] - 45) < 5 * fit["A"]["error"] + 10
    if PROVING:
        assert abs(fit["Q"]["value"]) < 4 * fit["Q"]["error"] + 0.3
    assert all(chart.svg() for chart in ours.charts("tangent-exponent", rows))
    keep("tangent-exponent", rows, ours.exponent.__doc__ or "")


def test_weighted_fit() -> None:
    random = np.random.default_rng(0)
    design = np.column_stack([np.ones(200), np.linspace(0, 5, 200)])
    errors = np.full(200, 0.1)
    values = design @ np.array([2.0, -1.0]) + errors * random.standard_normal(200)
    found, uncertainty = ours.weighted_fit(design, values, errors)
    assert np.all(np.abs(found - [2.0, -1.0]) < 5 * uncertainty)
    assert np.all(uncertainty < 0.05)


def test_digits() -> None:
    rows = ours.digits(widths=(64,), networks=1, inputs=scale(120, full=300))
    assert [row["width"] for row in rows] == ["limit", "64", "64", "64"]
    assert rows[0]["accuracy"] > 0.9
    assert rows[-1]["smallest"] < rows[0]["smallest"] / 5  # 6 connections are left to a unit
    assert rows[0]["distance"] == 0


def test_registered() -> None:
    expected = {"tangent-digits", "tangent-exponent", "tangent-figure-1", "tangent-figure-2"}
    assert expected <= set(reproductions)


def test_bad_plans() -> None:
    for options in ({"densities": (0.0,)}, {"networks": 0}):
        with pytest.raises(BadInput):
            ComparisonPlan(**options)  # type: ignore[arg-type]
