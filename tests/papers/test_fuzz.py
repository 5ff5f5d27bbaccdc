"""Odd arguments: every claim answers with numbers or one sentence, never with a raw error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from prunus.errors import PrunusError
from prunus.theory import claims
from support import scale
from support.fuzz import calls
from support.fuzzing import in_time

SECONDS = 20  # for one call; the slowest takes about one


@pytest.mark.prove
@pytest.mark.parametrize("letter", list("PBNKI"))
def test_no_raw_error(letter: str) -> None:
    """548 calls in `make test`, 16,440 under `make prove`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for claim in claims.search(letter):
            for given, printed in calls(claim, scale(2, full=60), seed=1):
                with in_time(SECONDS, f"{claim.id} with {given}"):
                    try:
                        (claim.printed if printed else claim)(**given)
                    except PrunusError as error:
                        message = str(error)
                        assert message.endswith((".", "?")), message
                        assert "\n" not in message, message


@pytest.mark.parametrize(
    "identifier, arguments, sentence",
    [
        ("N-15", {"sizes": 5, "kept": 2, "theta": 1.0}, "sizes must be a list of int"),
        ("K-6a", {"density": 0.01, "depth": 200}, "no value that a float can hold"),
        ("P-9e", {"d": 64, "exponent": 0.5, "replacement": "no"}, "replacement must be true or false"),
        ("B-8a", {"rows": 4, "columns": 8, "banks": 2, "r": 2, "sigma_input": "abc"}, "sigma_input must be a number"),
        ("P-14a", {"norms": ["a"], "differences": [1.0]}, "norms must hold numbers only"),
        ("B-2a", {"sparsity": 0.5, "law": 3}, "law must be a word"),
    ],
)
def test_wrong_kinds_are_refused_by_name(identifier: str, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PrunusError, match=sentence):
        claims[identifier](**arguments)


def test_extreme_theta_has_a_value() -> None:
    found = claims["N-7f"](m=10, others=90, theta=400.0, swaps=1, epsilon=1.0)
    assert 0.0 <= found["delta"] <= 1.0
