from __future__ import annotations

import math

import numpy as np
import pytest

from prunus.errors import BadInput, UnknownName
from prunus.papers import verify
from prunus.papers.checking import Check, all_checks
from prunus.theory import Case, Claim, claims


def claim_of(*cases: Case, id: str = "I-8c") -> Claim:
    return Claim(
        id,
        "a title",
        "a source",
        "wrong",
        "",
        "iterand",
        {"error": "float"},
        {"bound": ""},
        {"bound": ""},
        cases,
    )


def test_all_claims_and_checks_are_selected_without_ids():
    assert [claim.id for claim in verify.select()] == list(claims)
    covered = {identifier for check in verify.select_checks(verify.select()) for identifier in check.claims}
    assert set(claims) <= covered, "claims without an independent check"
    assert len(verify.select_checks(verify.select())) == len(all_checks())


def test_ids_select_their_claims_and_checks_only():
    chosen = verify.select(["I-8", "K-2"])
    assert [claim.id for claim in chosen] == ["I-8a", "K-2a"]
    for check in verify.select_checks(chosen):
        assert {"I-8a", "K-2a"} & set(check.claims)
    with pytest.raises(UnknownName):
        verify.select(["I-8", "nothing"])


def test_every_reference_value_of_the_index_holds():
    results = list(verify.verify_cases(verify.select()))
    assert len(results) == sum(len(claim.cases) for claim in claims.values())
    failures = [f"{result.name}: {result.message}" for result in results if not result.passed]
    assert not failures


def test_results_of_cases():
    good = Case({"error": 0.2}, {"bound": 0.2})
    printed = Case({"error": 0.2}, {"bound": 0.1}, printed=True)
    wrong = Case({"error": 0.2}, {"bound": 0.3})
    unknown = Case({"error": 0.2}, {"size": 0.3})
    outside = Case({"error": 2.0}, {"bound": 0.3})
    results = list(verify.verify_cases([claim_of(good, printed, wrong, unknown, outside)]))
    assert [result.passed for result in results] == [True, True, False, False, False]
    assert [result.name for result in results][:2] == ["I-8c case 0", "I-8c case 1 (printed)"]
    assert results[0].message == "agrees"
    assert results[2].message == "bound is 0.2, expected 0.3"
    assert results[3].message == "size is not among the returned values"
    assert results[4].message.startswith("BadInput: error must be")
    assert all(result.seconds >= 0 and result.claims == ("I-8c",) for result in results)
    assert {result.method for result in results} == {"reference value"}


def test_printed_case_without_a_printed_form():
    case = Case({"error": 0.5, "delta": 0.5}, {"draws": 1}, printed=True)
    assert "no printed form" in verify.case_failure(claim_of(case, id="I-7a"), case)


def test_results_of_checks():
    def good() -> str:
        return "one agrees with one"

    def silent() -> str:
        raise AssertionError

    def outside() -> str:
        raise BadInput("density must be positive.")

    def broken() -> str:
        raise ZeroDivisionError("division by zero")

    checks = [Check(f.__name__, ("X-1",), "property", f) for f in (good, silent, outside, broken)]
    results = list(verify.verify_checks(checks))
    assert [result.passed for result in results] == [True, False, False, False]
    expected = [
        "one agrees with one",
        "an assertion failed",
        "BadInput: density must be positive.",
        "ZeroDivisionError: division by zero",
    ]
    assert [result.message for result in results] == expected
    assert [result.name for result in results] == ["good", "silent", "outside", "broken"]
    assert results[0].method == "property"
    assert results[0].claims == ("X-1",)


@pytest.mark.parametrize(
    "value, expected, same",
    [
        (1.0 + 1e-10, 1.0, True),
        (1.0 + 1e-8, 1.0, False),
        (-1.0, 1.0, False),
        (1e-13, 0.0, True),
        (1e-11, 0.0, False),
        (3, 3, True),
        (3.0, 3, True),
        (4, 3, False),
        (True, True, True),
        (np.bool_(True), True, True),
        (1, True, True),
        (False, True, False),
        (True, 1, False),
        (True, 1.0, False),
        ("exact", "exact", True),
        ("exact", "hidden", False),
        ([1.0, 2.0], [1.0, 2.0], True),
        (np.array([1.0, 2.0]), [1.0, 2.0], True),
        ([1.0], [1.0, 2.0], False),
        ([1.0, 2.0, 3.0], [1.0, 2.0], False),
        ([1.0, 2.1], [1.0, 2.0], False),
        (math.inf, math.inf, True),
        (1e300, math.inf, False),
        (math.nan, math.nan, True),
        (1.0, math.nan, False),
        (math.nan, 1.0, False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"b": 1.0}, {"a": 1.0}, False),
        ({"a": 2.0}, {"a": 1.0}, False),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, False),
    ],
)
def test_agreement(value, expected, same):
    assert verify.agree(value, expected, 1e-9, 1e-12) is same


def test_agreement_at_the_tolerance_itself():
    assert verify.agree(0.0, 0.0, 1e-9, 0.0)
    assert verify.agree(1.5, 1.0, 0.5, 0.0)
    assert verify.agree(1.5, 1.0, 0.0, 0.5)
