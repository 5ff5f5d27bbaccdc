"""What the closeness theorems allow: the ledger's tables, and honest verdicts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from prunus.errors import BadInput
from prunus.papers.closeness.vacuity import CONCENTRATION, LATALA1, LAWS, VacuityRow, vacuity
from prunus.theory import closeness as c


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str, int, int], VacuityRow]:
    return {(row.theorem, row.law[:1], row.width, row.layers): row for row in vacuity()}


def test_one_row_for_every_theorem_law_width_and_depth(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    assert len(vacuity()) == len(table) == 4 * 2 * 3 * 3
    assert {key[0] for key in table} == {"1", "1'", "2", "3"}
    assert {key[2] for key in table} == {256, 1024, 4096}
    assert {key[3] for key in table} == {3, 4, 5}
    assert [row.theorem for row in vacuity([64], [3])] == ["1", "1", "1'", "1'", "2", "2", "3", "3"]
    assert vacuity([64], [3], 0.1, 0.05) == vacuity([64], [3])


@pytest.mark.parametrize(
    "law, layers, width, prime, printed",
    [
        ("u", 3, 256, 1415, 0),
        ("u", 3, 1024, 34420, 5),
        ("u", 3, 4096, 682182, 84),
        ("u", 4, 1024, 11447, 1),
        ("u", 5, 1024, 5097, 0),
        ("u", 5, 4096, 120462, 7),
        ("X", 3, 1024, 6520, 1),
        ("X", 5, 4096, 7606, 2),
    ],
)
def test_the_ledgers_table(
    table: dict[tuple[str, str, int, int], VacuityRow], law: str, layers: int, width: int, prime: int, printed: int
) -> None:
    assert table["1'", law, width, layers].pruned == prime
    assert table["1", law, width, layers].pruned == printed


def test_verdicts_are_honest(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    for row in table.values():
        assert row.weights == row.width**2
        assert row.sparsity == row.pruned / row.weights
        assert row.reason
        if row.pruned == 0:
            assert row.verdict == "vacuous"
        elif row.sparsity < 1e-3:
            assert row.verdict == "negligible"
        else:
            assert row.verdict == "holds"
        assert row.probability <= 1
        if row.verdict != "vacuous":
            assert row.probability >= 0.95
            assert row.error <= 0.1
    assert all(row.verdict == "vacuous" for key, row in table.items() if key[0] in "23" and key[0] != "1'")
    assert not any(row.verdict == "holds" for key, row in table.items() if key[0] == "1")


def test_best_claims_of_theorem_2(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    row = table["2", "u", 1024, 3]
    assert row.error == pytest.approx(0.88, abs=0.001)
    assert row.probability == pytest.approx(0.1735, abs=0.001)
    assert row.log10_required_width == pytest.approx(15.5586, abs=1e-3)
    assert row.exponent == pytest.approx(0.36027, abs=1e-5)
    assert "10^21.6" in row.reason
    assert "0.68%" in row.reason
    assert table["2", "X", 4096, 5].log10_required_width == pytest.approx(27.146, abs=1e-3)


def test_theorem_3_is_negative_and_its_channels_are_many(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    row = table["3", "X", 1024, 3]
    cap = c.theorem3_exponent_cap(1024)
    direct = c.theorem3_probability(3, 32, 3, 1024, cap, 0.05, cap / 16, 1.0, 1.8, 0.6, 10, 10.0)["probability"]
    assert row.probability == pytest.approx(direct, rel=1e-9)
    assert row.probability < 0
    assert "below zero" in row.reason
    assert row.error == pytest.approx(c.theorem3_error(3, 32, 1024, 32, 3, 0.05, cap / 16, 10.0)["error"])
    for layers in (3, 4, 5):
        channels = 10 ** table["3", "u", 256, layers].log10_required_width
        assert (1 - channels ** (-1 / 3)) ** (2 * (layers - 2)) == pytest.approx(0.95)
    assert "misses the asked 0.95" in table["3", "u", 1024, 3].reason


def test_required_widths_are_where_the_theorems_begin(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    width = 10 ** table["1", "u", 256, 3].log10_required_width
    begin, before = vacuity([math.ceil(width)], [3])[0], vacuity([math.floor(width) - 1], [3])[0]
    assert begin.pruned >= 1
    assert before.pruned == 0
    assert f"from width {width:.0f} on" in before.reason
    width = round(10 ** table["1'", "u", 256, 3].log10_required_width)
    assert c.theorem1_prime_pruned(width, 3, 0.1, 0.05)["pruned"] >= 1
    assert c.theorem1_prime_pruned(width - 1, 3, 0.1, 0.05)["pruned"] == 0
    assert vacuity([width - 1], [3])[2].verdict == "vacuous"
    assert vacuity([width - 1], [3])[2].probability == 0.0


def test_generous_demands_are_met() -> None:
    rows = {(row.theorem, row.law[:1]): row for row in vacuity([10**8], [3], error=1e6, failure=0.99)}
    assert all(row.weights == 10**16 for row in rows.values())
    assert rows["3", "u"].verdict == ("holds" if rows["3", "u"].sparsity >= 1e-3 else "negligible")
    assert rows["3", "u"].pruned == math.floor((10**8) ** (2 - c.theorem3_exponent_cap(10**8)))
    assert rows["2", "u"].verdict in ("holds", "negligible")
    assert rows["2", "u"].pruned == math.floor(c.theorem2_exponent_cap(10**8, 10**8)["balls"])
    tight = {(row.theorem, row.law[:1]): row for row in vacuity([10**8], [3], error=0.1, failure=0.99)}
    assert "times the bound on the network itself" in tight["3", "u"].reason
    assert tight["3", "u"].verdict == "vacuous"


def test_too_narrow_layers_have_no_exponent() -> None:
    rows = {row.theorem: row for row in vacuity([3], [3])}
    for theorem in ("2", "3"):
        row = rows[theorem]
        assert row.verdict == "vacuous"
        assert (row.exponent <= 0) == ("no exponent is admissible" in row.reason)  # type: ignore[operator]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"widths": [2]}, "widths .* at least 3"),
        ({"layers": [2]}, "layers .* at least 3"),
        ({"error": 0.0}, "error"),
        ({"error": 0.99e-9}, "error must be a finite number of at least 1e-09"),
        ({"failure": 0.0}, "failure"),
        ({"failure": 1.0}, "failure"),
    ],
)
def test_bad_input(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        vacuity(**arguments)  # type: ignore[arg-type]


def test_the_ends_of_the_ranges_are_admitted() -> None:
    assert {row.verdict for row in vacuity([3], [3], error=1e-9)} == {"vacuous"}
    assert [row.width for row in vacuity([3, 4], [3])][:2] == [3, 4]


def test_rows_are_values() -> None:
    row = vacuity([64], [3])[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.pruned = 1  # type: ignore[misc]
    assert row == vacuity([64], [3])[0]


def test_a_reason_says_the_share_of_the_weights(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    assert table["1'", "u", 1024, 3].reason == f"{100 * 34420 / 1024**2:.2f}% of the weights may be pruned"
    assert table["1'", "u", 4096, 3].reason == f"{100 * 682182 / 4096**2:.2f}% of the weights may be pruned"
    assert table["1", "u", 4096, 3].reason.startswith("84 of 16777216 weights may be pruned")


def test_theorem_1_uses_the_rate_of_table_2(table: dict[tuple[str, str, int, int], VacuityRow]) -> None:
    """The rate is that of the 99.99 % quantile at width 512; another would change the width it speaks from."""
    rate = c.concentration_from_quantile(512, 0.9999)
    assert pytest.approx(rate, rel=1e-3) == CONCENTRATION
    row, law = table["1", "u", 1024, 3], LAWS[0]
    base = {"spread": law.spread, "latala": LATALA1, "concentration": round(rate, 5)}
    assert row.probability == pytest.approx(c.theorem1_probability(3, 1024, row.exponent, **base), rel=1e-12)
    least = c.theorem1_width(3, 1.0 - 1e-9, 0.1, 0.05, norm_bound=law.norm_bound, **base)["width"]
    assert row.log10_required_width == pytest.approx(math.log10(least), abs=1e-6)
    other = c.theorem1_probability(3, 64, 0.9, **base)
    assert other < c.theorem1_probability(3, 64, 0.9, **{**base, "concentration": 2 * rate})
