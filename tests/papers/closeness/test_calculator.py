"""What can I prune? Guarantees are those of the theorems, estimates lie above them and fit the error."""

from __future__ import annotations

import json

import pytest

from prunus.cli import run
from prunus.errors import BadInput
from prunus.papers.closeness.calculator import what_can_i_prune
from prunus.theory import closeness as c


@pytest.mark.parametrize("width, layers", [(64, 3), (1024, 3), (1024, 5)])
def test_answers_agree_with_the_theorems(width: int, layers: int) -> None:
    magnitude, random, expected, expected_random = what_can_i_prune(width, layers, 0.1)
    assert magnitude.guaranteed
    assert not expected.guaranteed
    assert magnitude.pruned == c.theorem1_prime_pruned(width, layers, 0.1, 0.05)["pruned"]
    assert random.pruned == c.theorem2_prime_pruned(width, layers, 0.1, 0.05)["count"]
    assert expected.pruned >= magnitude.pruned >= random.pruned
    assert expected.pruned >= expected_random.pruned >= random.pruned
    norm = c.uniform_norm_limit(width, width)
    for count, fits in ((expected.pruned, True), (expected.pruned + 1, False)):
        difference = c.difference_norm_heuristic(width, width, count)
        assert (c.equal_norm_error(norm, difference, layers) <= 0.1) == fits


def test_more_error_allows_more() -> None:
    few, many = what_can_i_prune(256, 3, 0.05), what_can_i_prune(256, 3, 0.5)
    assert all(a.pruned <= b.pruned for a, b in zip(few, many))
    assert [row.pruned for row in what_can_i_prune(256, 3, 1e-9)] == [
        0,
        0,
        *[row.pruned for row in what_can_i_prune(256, 3, 1e-9)][2:],
    ]


@pytest.mark.parametrize("change", [{"width": 1}, {"layers": 2}, {"error": 0.0}, {"failure": 1.0}])
def test_bad_input(change: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        what_can_i_prune(**{"width": 64, "layers": 3, "error": 0.1, **change})  # type: ignore[arg-type]


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["theory", "--prune", "--width", "64,128", "--layers", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    assert run(["theory", "--prune", "--width", "64", "--layers", "3"]) == 0
    out = capsys.readouterr().out
    assert "Theorem 1'" in out
    assert "proved" in out
