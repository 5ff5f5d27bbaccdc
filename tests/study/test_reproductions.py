"""Random rows: at most 40 numbers, each within 5.5 standard errors; a false alarm has a chance below 2e-6."""

from __future__ import annotations

from itertools import islice

import pytest

from prunus.study import reproductions
from support import scale


def test_energies_by_bank() -> None:
    rows = list(reproductions.energy_by_bank())
    assert len(rows) == 9
    for row in rows:
        assert abs(row["standard errors"]) < 5.5, row
        assert row["energy, banks"] > row["energy, free choice"]
    excess = [row["excess, %"] for row in rows if row["sparsity"] == 0.8]
    assert excess == pytest.approx([6.4, 3.3, 1.7], abs=0.1), "ledger B-6"


@pytest.mark.prove
def test_norms_of_uniform_matrices() -> None:
    for row in islice(reproductions.closeness_table_2(), scale(3, full=15)):
        assert abs(row["standard errors"]) < 5.5, row


@pytest.mark.prove
def test_calibrated_constants() -> None:
    for row in islice(reproductions.closeness_table_3(), scale(2, full=15)):
        assert abs(row["standard errors"]) < 5.5, row
        assert abs(row["our C"] - row["published C"]) < 0.012, row


def test_parameter_counts() -> None:
    rows = list(reproductions.ticket_parameters())
    assert len(rows) == 7
    for row in rows:
        assert abs(row["difference, %"]) < 0.15, row


def test_times_have_both_sides() -> None:
    first = next(reproductions.balanced_times())
    assert first["published, times faster"] == pytest.approx(294.1 / 370.9)
    assert first["ours, times faster"] > 0
