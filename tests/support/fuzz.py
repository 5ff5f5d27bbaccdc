"""Random calls of claims: mostly their own cases with one or two arguments replaced by something odd."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from prunus.theory import Claim

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 5, 10, 64, -1, 0.0, 0.5, 1.0, 0.1, 0.999999, 1e-3, 1e-9, 1e-17, 1e-300, 5e-324, 2.5, 20.0, 400.0,
    1e6, 1e9, 1e12, 1e18, 1e300, 1.7e308, -1e300, float("nan"), float("inf"), float("-inf"), 200, 1000, 10**9, 10**18,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    "abc", "", "no", "normal", None, True, False, [], [1, 2], [0.5, 0.5, 0.5], [[1.0]], [[1.0, 2.0], [3.0]], {}, 1j,
    [1e300, 1e-300], ["a"], [None], (), object,
)  # fmt: skip


def calls(claim: Claim, count: int, seed: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """(arguments, whether the printed form is meant), reproducible from the seed and the claim's id."""
    chance = random.Random(f"{claim.id} {seed}")
    cases = [case for case in claim.cases if case.given] or list(claim.cases)
    for _ in range(count):
        case = chance.choice(cases)
        given = dict(case.given)
        for name in chance.sample(sorted(claim.arguments), min(len(claim.arguments), chance.choice((1, 1, 2, 3)))):
            given[name] = chance.choice(NUMBERS if chance.random() < 0.75 else ODD)
        yield given, chance.random() < 0.25
