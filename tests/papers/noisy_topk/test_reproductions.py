"""The published results come out again."""

from __future__ import annotations

import pytest

from prunus.papers.noisy_topk import reproductions


def test_error_theorem_corrected_holds_and_printed_does_not() -> None:
    """Corrected within 5 standard errors in every row (6e-7 each); printed far off at theta = 8."""
    rows = reproductions.expected_error(draws=100)
    assert all(abs(row["measured"] - row["corrected"]) < 5 * row["standard error"] for row in rows)
    last = next(row for row in rows if row["theta"] == 8.0)
    assert abs(last["measured"] - last["printed"]) > 10 * last["standard error"]


def test_monotone() -> None:
    rows = reproductions.monotone()
    assert all(row["-2 Var"] == pytest.approx(row["difference quotient"], rel=1e-5) for row in rows)
    errors = [row["expected error"] for row in rows]
    assert errors == sorted(errors, reverse=True)


def test_calibration_is_a_random_mask() -> None:
    first = reproductions.calibration()[0]
    assert first["epsilon of a step"] == pytest.approx(1.395e-4, rel=1e-3)
    assert first["theta"] == pytest.approx(2.13e-8, rel=2e-3)
    assert first["gain over a random mask"] == pytest.approx(3.4e-9, rel=0.02)
    assert first["gain over a random mask"] == pytest.approx(first["first order"], rel=1e-3)
