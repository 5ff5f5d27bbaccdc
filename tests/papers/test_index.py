from __future__ import annotations

import pytest

from prunus.errors import BadInput, UnknownName
from prunus.papers.index import _check_kind
from prunus.theory import Case, Claim, claims

STATUSES = {"right", "sloppy", "misprint", "wrong", "added"}


def test_every_record_is_complete_and_has_its_function():
    for name, claim in claims.items():
        assert claim.id == name
        assert claim.title
        assert claim.source
        assert claim.status in STATUSES
        assert claim.returns
        assert claim.cases, f"{name} has no reference value"
        assert claim.formula, f"{name} has no formula"
        assert claim.formula.count("{") == claim.formula.count("}"), f"{name}: braces"
        assert claim.formula.count(r"\left") == claim.formula.count(r"\right"), f"{name}: brackets"
        assert callable(claim.function)
        assert claim.printed_function is not None or not claim.printed_returns
        assert not claim.erratum or claim.erratum.endswith(".")


def test_ids_are_in_the_order_of_the_ledger():
    names = list(claims)
    assert names.index("K-2a") < names.index("K-2b") < names.index("K-9") < names.index("K-10a")
    assert [name[0] for name in names] == sorted(name[0] for name in names)
    assert len(claims) == len(names) == len(set(names))


@pytest.mark.parametrize(
    "asked, found",
    [
        ("K-2a", "K-2a"),
        ("K-2", "K-2a"),
        ("k-2", "K-2a"),
        ("k-2a", "K-2a"),
        ("b-3", "B-3"),
        (" B-3 ", "B-3"),
        ("k-2B", "K-2b"),
    ],
)
def test_an_id_is_found_without_its_letter_and_in_any_case(asked, found):
    assert claims[asked].id == found
    assert asked in claims


def test_an_unknown_id_suggests_three():
    with pytest.raises(
        UnknownName, match=r"^There is no claim named 'K-99'; the nearest of the \d+ are K-9, [^,]+, [^,]+\.$"
    ):
        claims["K-99"]
    assert "K-99" not in claims


def test_a_single_number_and_a_mapping_both_become_a_mapping():
    assert claims["I-4b"](rate=0.1) == {"flip_rate": 0.05}
    assert set(claims["K-1a"](correlation=0.5)) == {"step", "ramp"}
    assert claims["I-4b"].printed(rate=0.1) is None
    assert claims["I-4c"].printed(samples=45000, batch=128) == {"iterations": 351}


def test_wrong_arguments_name_the_right_ones():
    with pytest.raises(BadInput, match=r"I-4b cannot be evaluated: .*it takes rate \(float"):
        claims["I-4b"](speed=1)
    with pytest.raises(BadInput, match="it takes rate"):
        claims["I-4b"]()


def test_defaults_of_a_case():
    case = Case({"n": 1}, {"m": 2.0})
    assert (case.tolerance, case.absolute, case.printed) == (1e-9, 0.0, False)
    claim = Claim("I-3c", "", "", "right", "", "iterand", {}, {"fan": ""})
    assert claim.cases == ()
    assert claim.printed_returns == {}
    assert claim(channels=3) == {"fan": 3}


def test_the_index_shows_its_size():
    assert repr(claims) == f"<{len(claims)} claims: {', '.join(list(claims)[:4])}, ...>"


def test_an_argument_that_is_left_out_has_no_kind() -> None:
    _check_kind("half", None, "int: neurons for each coordinate")
    with pytest.raises(BadInput, match="half must be a number"):
        _check_kind("half", "many", "int: neurons for each coordinate")
