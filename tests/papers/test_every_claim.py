"""What holds for the claims of every paper: reference cases, independent checks, printed forms."""

from __future__ import annotations

from typing import Any

import pytest

from prunus.papers.checking import Check
from prunus.theory import Case, Claim, claims
from support.theory import agree, cases, checks_of, unchecked, verify

PAPERS = ("closeness", "balanced", "noisy_topk", "tangent", "iterand")


@pytest.mark.parametrize("claim, case", cases(*PAPERS))
def test_case(claim: Claim, case: Case) -> None:
    verify(claim, case)


@pytest.mark.parametrize("check", checks_of(*PAPERS))
def test_check(check: Check) -> None:
    assert check.run()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_has_a_check(paper: str) -> None:
    assert not unchecked(paper)


def test_some_claims_are_checked_by_name() -> None:
    covered = {identifier for parameter in checks_of("closeness") for identifier in parameter.values[0].claims}
    assert {"P-5", "P-6a", "P-6b", "P-6c", "P-16b", "P-22a", "P-22b", "P-22c", "P-22d", "P-33"} <= covered


@pytest.mark.parametrize("paper", ["tangent", "iterand"])
def test_only_the_claims_with_a_printed_table_have_a_printed_form(paper: str) -> None:
    for claim in claims.values():
        if claim.paper == paper:
            assert (claim.printed_function is not None) == bool(claim.printed_returns), claim.id


@pytest.mark.parametrize(
    "identifier, arguments",
    [
        ("K-2a", {"angle": 1.0, "depth": 3}),
        ("K-5", {"angle": 1.0, "depth": 3, "density": 0.5}),
        ("K-7b", {"density": 0.5, "layer": 2}),
        ("K-11a", {"probability": 0.1, "count": 1000, "deviation": 0.3}),
        ("K-12", {"sigma": 1.0, "scale": 1.0, "deviation": 2.0}),
        ("K-13b", {"frobenius": 1.0, "spectral": 1.0, "deviation": 20.0}),
        ("K-14a", {"density": 0.1, "deviation": 0.2, "delta": 0.05, "depth": 3, "rows": 1024}),
        ("K-15", {"delta": 0.05}),
        ("I-4c", {"samples": 45000, "batch": 128}),
        ("I-8c", {"error": 0.2}),
        ("I-9a", {"error": 0.5, "delta": 0.01, "resamples": 10}),
        ("I-9b", {"error": 0.5, "half": 1, "resamples": 19}),
        ("I-9d", {"error": 0.5, "delta": 0.01}),
        ("I-10a", {"window": 0.05, "resamples": 30, "half": 2, "outputs": 3}),
        ("I-10b", {"outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 10}),
        ("I-11", {"inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 100}),
        ("I-12a", {"layers": 2, "inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1, "resamples": 551}),
        ("I-12b", {"layers": 2, "inputs": 4, "outputs": 3, "error": 0.5, "delta": 0.1}),
        ("I-12e", {"inputs": 4, "error": 0.5}),
        ("I-12f", {"widths": [4, 3, 3], "error": 0.5, "delta": 0.1, "resamples": 100}),
    ],
)
def test_the_published_formula_is_wrong_there(identifier: str, arguments: dict[str, Any]) -> None:
    claim = claims[identifier]
    printed, true = claim.printed(**arguments), claim(**arguments)
    assert printed is not None
    for name in printed:
        assert not agree(printed[name], true[name], 1e-3), name
