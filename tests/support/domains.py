"""Bad arguments read off the ledger's own descriptions: what it excludes must be refused in one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from prunus.errors import BadInput
from prunus.theory import Claim, claims

NUMBER = r"(-?\d+(?:\.\d+)?)"


def bad_arguments(*papers: str, letters: str = "P") -> list[Any]:
    """(claim, argument, value) for every argument of the claims: values their descriptions exclude."""
    return _values(excluded, papers, letters)


def boundary_arguments(*papers: str, letters: str = "P") -> list[Any]:
    """(claim, argument, value) for every argument whose description includes an end of its range: that end."""
    return _values(included, papers, letters)


def _values(of: Callable[[str], list[Any]], papers: tuple[str, ...], letters: str) -> list[Any]:
    return [
        pytest.param(claim, name, value, id=f"{claim.id}-{name}={value!r}")
        for claim in claims.values()
        if claim.paper in papers and claim.id[0] in letters and claim.cases
        for name, meaning in claim.arguments.items()
        for value in of(meaning)
    ]


def included(meaning: str) -> list[Any]:
    """Ends of the range that a description such as "float: share (0 < share <= 1)" includes: here 1."""
    kind, _, text = meaning.partition(":")
    values = []
    if both := re.search(rf"\({NUMBER} (<=?) \w+ (<=?) {NUMBER}", text):
        low, first, second, high = both.groups()
        values = [float(low)] * (first == "<=") + [float(high)] * (second == "<=")
    elif one := re.search(rf">= {NUMBER}", text):
        values = [float(one.group(1))]
    if kind not in ("int", "float"):
        return []
    return [int(value) if kind == "int" else value for value in values]


def admit(claim: Claim, name: str, value: Any) -> None:
    """The claim, given its first case with one argument at an end of its range, must not refuse that argument."""
    case = next(case for case in claim.cases if not case.printed and len(case.given) > 0)
    try:
        claim.function(**{**case.given, name: value})
    except BadInput as error:  # another argument may have to change with this one
        if str(error).startswith(f"{name} must"):
            raise


def excluded(meaning: str) -> list[Any]:
    """Values that a description such as "int: side (image >= 1)" or "float: level (0 < level < 1)" excludes."""
    kind, _, text = meaning.partition(":")
    if kind not in ("int", "float"):
        return ["wrong", math.nan] if kind == "str" else []
    whole = kind == "int"
    values: list[Any] = [math.nan, math.inf, "text", True, None] if "default" not in meaning else [math.nan, "text"]
    values += [2.5] if whole else []
    if both := re.search(rf"\({NUMBER} (<=?) \w+ (<=?) {NUMBER}", text):
        low, first, second, high = both.groups()
        values.append(float(low) if first == "<" else float(low) - (1 if whole else 1e-6))
        values.append(float(high) if second == "<" else float(high) + (1 if whole else 1e-6))
    elif one := re.search(rf"(>=?) {NUMBER}", text):
        low = float(one.group(2))
        values.append(low if one.group(1) == ">" else low - (1 if whole else 1e-6))
    return [int(value) if whole and isinstance(value, float) and value.is_integer() else value for value in values]


def refuse(claim: Claim, name: str, value: Any) -> None:
    """The claim, given its first case with one argument spoiled, must raise one sentence that names the argument."""
    case = next(case for case in claim.cases if not case.printed and len(case.given) > 0)
    with pytest.raises(BadInput) as caught:
        claim.function(**{**case.given, name: value})
    message = str(caught.value)
    assert message.endswith("."), message
    assert "\n" not in message
    assert name in message or isinstance(value, str), message
