"""The plan's table is the mechanism's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunus.errors import BadInput
from prunus.papers.noisy_topk.planning import choose, summary, trade_off, write_plot
from prunus.private import NoisyTopK


def test_choices_agree() -> None:
    assert choose(0.01, 10_000, theta=1.5) == NoisyTopK(0.01, 1.5)
    assert choose(0.01, 10_000, swap_epsilon=3.0) == NoisyTopK(0.01, 1.5)
    assert choose(0.01, 10_000, local_epsilon=3.0).privacy(10_000).local == pytest.approx(3.0)
    assert choose(0.1, 1000, error=0.65).expected_error(1000) == pytest.approx(650.0)
    with pytest.raises(BadInput, match="exactly one"):
        choose(0.1, 1000)
    with pytest.raises(BadInput, match="exactly one"):
        choose(0.1, 1000, theta=1.0, error=0.5)


def test_table_runs_from_a_random_set_to_the_top_set(tmp_path: Path) -> None:
    rows = trade_off(NoisyTopK(0.05, 1.7), 2000)
    assert [row["theta"] for row in rows] == sorted(row["theta"] for row in rows)
    assert 1.7 in [row["theta"] for row in rows]
    kept = [row["kept of the top set"] for row in rows]
    assert kept == sorted(kept)
    assert kept[0] == pytest.approx(0.05)
    numbers = summary(NoisyTopK(0.05, 1.7), 2000)
    assert numbers["error of exact top-k"] < rows[-1]["expected error"] < rows[0]["expected error"] <= 0.95 + 1e-12
    two_level = rows[1]["two-level keeps at this local epsilon"]
    assert two_level > rows[1]["kept of the top set"]
    write_plot(rows, tmp_path / "plan.html")
    drawn = (tmp_path / "plan.html").read_text()
    assert drawn.count("<polyline") == 3
    assert "epsilon per swapped index" in drawn
