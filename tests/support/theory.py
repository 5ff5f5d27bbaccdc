"""Reference cases of the claims as test parameters, and the comparison at their tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from prunus.papers.checking import Check, all_checks
from prunus.theory import Case, Claim, claims


def cases(*papers: str, letters: str = "") -> list[Any]:
    """Every case of the claims of these papers, as (claim, case) with the claim's id in the test's name.

    `letters` keeps only the ids that begin with one of these letters: "B" for "B-3".
    """
    found = []
    for claim in claims.values():
        if claim.paper in papers and (not letters or claim.id[0] in letters):
            for number, case in enumerate(claim.cases):
                suffix = "-printed" if case.printed else ""
                found.append(pytest.param(claim, case, id=f"{claim.id}-{number}{suffix}"))
    return found


def verify(claim: Claim, case: Case) -> None:
    """Evaluate the claim (or its printed form, where the case is one of print) and compare what the case lists."""
    result = claim.printed(**case.given) if case.printed else claim(**case.given)
    assert result is not None, f"{claim.id} has printed cases but no printed form"
    for name, expected in case.expect.items():
        message = f"{claim.id}: {name} is {result[name]!r}, expected {expected!r}"
        assert agree(result[name], expected, case.tolerance, case.absolute), message


def assert_published_differs(identifier: str, arguments: Mapping[str, Any]) -> None:
    """Every number of the published formula is off by more than a thousandth from the corrected one."""
    claim = claims[identifier]
    published, corrected = claim.printed(**arguments), claim(**arguments)
    assert published
    for name in published:
        assert not agree(published[name], corrected[name], 1e-3), name


def assert_published_forms_are_recorded(paper: str) -> None:
    """A claim has a published form where its record describes one, and nowhere else."""
    for claim in claims.values():
        if claim.paper == paper:
            assert (claim.printed_function is not None) == bool(claim.printed_returns), claim.id


def agree(value: Any, expected: Any, tolerance: float = 1e-9, absolute: float = 0.0) -> bool:
    """Relative agreement, or within `absolute`; integers and booleans exact, lists elementwise."""
    if isinstance(expected, Mapping):
        return all(agree(value[key], item, tolerance, absolute) for key, item in expected.items())
    if isinstance(expected, (list, tuple)):
        items = np.asarray(value).tolist() if isinstance(value, np.ndarray) else list(value)
        return len(items) == len(expected) and all(agree(a, b, tolerance, absolute) for a, b in zip(items, expected))
    if isinstance(expected, bool):
        return isinstance(value, (bool, np.bool_)) and bool(value) == expected
    if isinstance(expected, int):
        return not isinstance(value, (bool, np.bool_)) and value == expected
    if isinstance(expected, str):
        return bool(value == expected)
    if math.isnan(expected):
        return math.isnan(value)
    if math.isinf(expected):
        return bool(value == expected)
    return abs(value - expected) <= max(tolerance * abs(expected), absolute)


def checks_of(*papers: str) -> list[Any]:
    """The registered checks of these papers as test parameters."""
    wanted = [check for check in all_checks_of(papers) if check.name.split(".")[0] in papers]
    return [pytest.param(check, id=check.name) for check in wanted]


def all_checks_of(papers: Iterable[str]) -> list[Check]:
    """The checks of these papers only, so that one subject can be tested while another is being written."""
    return list(all_checks(*papers).values())


def unchecked(*papers: str, letters: str = "") -> set[str]:
    """Ids of claims without an independent check: must be empty."""
    covered = {identifier for check in all_checks_of(papers) for identifier in check.claims}
    wanted = {c.id for c in claims.values() if c.paper in papers and (not letters or c.id[0] in letters)}
    return wanted - covered
