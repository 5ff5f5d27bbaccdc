"""Verify the index: recompute every reference case and run every registered check.

Used by `prunus theory --check`; they yield one result at a time, so that progress
can be shown, and never raise because a claim fails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prunus.errors import PrunusError
from prunus.papers.checking import Check, all_checks
from prunus.papers.index import Case, Claim, claims


@dataclass(frozen=True)
class Verified:
    """One case or check: what was verified, how, whether it held, and one sentence about it."""

    name: str
    claims: tuple[str, ...]
    method: str
    passed: bool
    message: str
    seconds: float


def select(identifiers: Iterable[str] = ()) -> list[Claim]:
    """The claims of these ids, in the order given; all claims where none is given. Unknown ids raise `UnknownName`."""
    wanted = list(identifiers)
    return [claims[identifier] for identifier in wanted] if wanted else list(claims.values())


def select_checks(chosen: Iterable[Claim]) -> list[Check]:
    """The registered checks that support at least one of these claims."""
    ids = {claim.id for claim in chosen}
    papers = sorted({claims[identifier].paper for identifier in ids})
    return [check for check in all_checks(*papers).values() if ids.intersection(check.claims)]


def verify_cases(chosen: Iterable[Claim]) -> Iterator[Verified]:
    """Recompute the reference cases of these claims, one result for each."""
    for claim in chosen:
        for number, case in enumerate(claim.cases):
            started = time.perf_counter()
            message = case_failure(claim, case)
            name = f"{claim.id} case {number}{' (printed)' if case.printed else ''}"
            seconds = time.perf_counter() - started
            yield Verified(name, (claim.id,), "reference value", not message, message or "agrees", seconds)


def verify_checks(checks: Iterable[Check]) -> Iterator[Verified]:
    """Run these checks, one result for each."""
    for check in checks:
        started = time.perf_counter()
        try:
            passed, message = True, check.run()
        except AssertionError as error:
            passed, message = False, str(error) or "an assertion failed"
        except (PrunusError, ArithmeticError, ValueError) as error:
            passed, message = False, f"{type(error).__name__}: {error}"
        yield Verified(check.name, check.claims, check.method, passed, message, time.perf_counter() - started)


def case_failure(claim: Claim, case: Case) -> str:
    """What is wrong with this case, or an empty string where the claim gives the expected values."""
    try:
        result = claim.printed(**case.given) if case.printed else claim(**case.given)
    except (PrunusError, ArithmeticError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if result is None:
        return "the case is about the published form, but the claim has no printed form"
    for name, expected in case.expect.items():
        if name not in result:
            return f"{name} is not among the returned values"
        if not agree(result[name], expected, case.tolerance, case.absolute):
            return f"{name} is {result[name]!r}, expected {expected!r}"
    return ""


def agree(value: Any, expected: Any, tolerance: float, absolute: float) -> bool:
    """Relative agreement, or within `absolute`; whole numbers, truth values and words exactly, lists elementwise."""
    if isinstance(expected, Mapping):
        return all(key in value and agree(value[key], item, tolerance, absolute) for key, item in expected.items())
    if isinstance(expected, (list, tuple)):
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        return len(items) == len(expected) and all(agree(a, b, tolerance, absolute) for a, b in zip(items, expected))
    if isinstance(expected, bool) or isinstance(value, bool):
        return isinstance(expected, bool) and bool(value) == expected
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(value)
    if isinstance(expected, (int, str)) or math.isinf(expected):
        return bool(value == expected)
    return bool(abs(value - expected) <= max(tolerance * abs(expected), absolute))
