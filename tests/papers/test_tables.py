"""Random rows: at most 40 numbers, each within 5.5 standard errors; a false alarm has a chance below 2e-6."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from prunus.papers.balanced import reproductions as balanced
from prunus.papers.closeness import reproductions as norms
from prunus.papers.closeness import reproductions_weights as weights
from prunus.papers.iterand import reproductions_tables as tickets
from support import scale


def test_energies_by_bank() -> None:
    rows = list(balanced.energy_by_bank())
    assert len(rows) == 9
    for row in rows:
        assert abs(row["standard errors"]) < 5.5, row
        assert row["energy, banks"] > row["energy, free choice"]
    excess = [row["excess, %"] for row in rows if row["sparsity"] == 0.8]
    assert excess == pytest.approx([6.4, 3.3, 1.7], abs=0.1), "ledger B-6"


@pytest.mark.prove
def test_norms_of_uniform_matrices() -> None:
    for row in islice(norms.closeness_table_2(), scale(3, full=15)):
        assert abs(row["standard errors"]) < 5.5, row


@pytest.mark.prove
def test_calibrated_constants() -> None:
    for row in islice(norms.closeness_table_3(), scale(2, full=15)):
        assert abs(row["standard errors"]) < 5.5, row
        assert abs(row["our C"] - row["published C"]) < 0.012, row


def test_parameter_counts() -> None:
    rows = list(tickets.ticket_parameters())
    assert len(rows) == 7
    for row in rows:
        assert abs(row["difference, %"]) < 0.15, row


def test_times_have_both_sides() -> None:
    first = next(balanced.balanced_times())
    assert first["published, times faster"] == pytest.approx(294.1 / 370.9)
    assert first["ours, times faster"] > 0


def test_a_histogram_in_one_line() -> None:
    assert weights.sketch([0, 1, 4, 8, 4, 1, 0], columns=7) == "·▁▄█▄▁·"
    assert len(weights.sketch([1] * 41)) == 21


@pytest.mark.data
def test_weights_of_a_trained_resnet_are_checked(data_folder) -> None:  # type: ignore[no-untyped-def]
    rows = list(weights.closeness_figure_2(data_folder))
    assert len(rows) == 20
    last = next(row for row in rows if row["layer"] == "layer3.2.conv2")
    assert last["independent draws"] == "no"
    assert last["norm"] > 1.5 * last["norm of free draws"]


@pytest.mark.data
def test_weights_on_covertype_stand_beside_the_table(data_folder) -> None:  # type: ignore[no-untyped-def]
    rows = list(weights.closeness_table_1(folder=data_folder, length="3it", sizes="54-64-64-64-64-64-7"))
    assert [row["published variance"] for row in rows] == [0.0155, 0.0035, 0.0022, 0.0019, 0.0016, 0.0057]
    assert rows[1]["variance at the start"] == pytest.approx(1 / (3 * 64), rel=0.1)
    assert rows[1]["our variance"] != rows[1]["variance at the start"]


def test_tickets_beside_pruning_in_rounds() -> None:
    rows = tickets.ticket_table_7(seeds=2, levels=(0.9,), length="8ep")
    assert [row["method"] for row in rows] == ["iterand", "edge-popup", "imp"]
    found = {row["method"]: row["ours, %"] for row in rows}
    assert found["imp"] > found["edge-popup"] + 5, "trained weights beat chosen ones at 90 %, as in print"


def test_tickets_by_width() -> None:
    rows = tickets.ticket_table_8(seeds=1, length="5ep")
    popup = {row["width"]: row["ours, %"] for row in rows if row["method"] == "edge-popup"}
    assert popup[1.3] > popup[0.5]
    assert {row["published s.d."] for row in rows} == {0.06, 0.16, 0.53, 0.08, 0.19}


def test_four_ways_to_find_a_ticket_run() -> None:
    from prunus.papers.iterand.reproductions_supermasks import VARIANTS, supermasks

    rows = list(supermasks(seeds=1, rates=(0.3,), epochs=2, networks=(("64-16-16-10", 0.5),)))
    assert [row["method"] for row in rows] == list(VARIANTS)
    for row in rows:
        assert row["ours"] > 25, row
        assert row["sparsity"] == 0.5 or (row["sparsity"] > 0.5 and "not restored" in row["method"])


def test_the_guides_row_of_conv6_is_the_evidence() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    rows = json.loads((docs / "evidence" / "reproduce-ticket-conv6-cifar.json").read_text("utf8"))["rows"]
    found = {row["method"]: row for row in rows}
    methods = [found[name] for name in ("iterand", "edge-popup", "sgd")]
    ours = " | ".join(f"{row['ours']:.1f} ± {row['s.d.']:.1f}" for row in methods)
    text = (docs / "guide" / "tickets.md").read_text("utf8")
    published = text.partition(f"10 of 100 epochs, two seeds | {ours} |")[2].partition("|")[0].split("/")
    assert list(map(float, published)) == pytest.approx([row["published, 100 epochs"] for row in methods], abs=0.051)
    assert {row["seeds"] for row in methods} == {2}
    kept = found["iterand, period left at 300 steps"]
    assert (
        f"{kept['redraws of a pruned weight']} redraws, IteRand had\n{kept['ours']:.1f} ± {kept['s.d.']:.1f}." in text
    )
