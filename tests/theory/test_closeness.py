"""Closeness theorems: reference cases, errata, orderings, and bad input."""

from __future__ import annotations

import pytest
from support.theory import cases, verify

from prunus.theory import Case, Claim


@pytest.mark.parametrize("claim, case", cases("closeness"))
def test_case(claim: Claim, case: Case) -> None:
    verify(claim, case)
