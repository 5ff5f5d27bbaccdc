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
        ("I-10a", {"window": 0.9, "resamples": 10**9, "half": 10**200, "outputs": 100}, "at most 1e\\+12 of them"),
        ("P-31e", {"image": 25_548_516, "kernel": 205, "stride": 2}, "12774156 windows"),
        ("K-5", {"angle": 0.0, "depth": 100_000, "density": 0.25}, "depth must be a whole number in"),
        ("K-7a", {"angle": 0.5, "density": 0.1, "layer": 100_000}, "layer must be a whole number in"),
        ("N-4b", {"m": 10**9, "others": 10**9, "swaps": 10**8}, "too many digits"),
        ("N-9d", {"d": 10**17, "m": 2 * 10**10, "epsilon": 1e15}, "overlaps count"),
        ("P-16b", {"n": 10**160, "r": 500, "delta": 0.5, "half_width": 1.0}, "no value that a float can hold"),
        (
            "K-24d",
            {"angle": 0.5, "depth": 3, "width": 46_956_540, "density": 0.3, "layer": 2},
            "4.41e\\+15 weights",
        ),
        (
            "P-17a",
            {"layers": 10**8, "norms": 2.0, "second": 1.0, "fourth": 3.0, "latala": 1.0},
            "layers must be a whole number in",
        ),
    ],
)
def test_wrong_kinds_are_refused_by_name(identifier: str, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PrunusError, match=sentence):
        claims[identifier](**arguments)


def test_extreme_theta_has_a_value() -> None:
    found = claims["N-7f"](m=10, others=90, theta=400.0, swaps=1, epsilon=1.0)
    assert 0.0 <= found["delta"] <= 1.0


def test_a_factor_beyond_every_float_leaves_the_product() -> None:
    """Values from fifty digits: the powers alone overflow or vanish."""
    given = {"norm_bound": 1.2, "difference": 0.1, "layers": 2000}
    assert claims["P-14b"](**given, lipschitz=0.8)["error"] == pytest.approx(1.24183643591973e34, rel=1e-11)
    assert claims["P-14c"](**given, lipschitz=0.4)["error"] == pytest.approx(1.81620493092073e-37, rel=1e-11)
    moments = {"second": 1.0, "fourth": 3.0, "latala": 1.0}
    constants = claims["P-17a"](layers=2000, norms=1.2, lipschitz=0.4, **moments)
    assert constants["constant2"] == pytest.approx(2.17944591710512e-36, rel=1e-11)
    assert claims["P-14b"](**(given | {"layers": 100_000}), lipschitz=0.25)["error"] == 0.0


def test_a_chance_is_at_most_one() -> None:
    assert claims["I-10a"](window=0.125, resamples=19, half=1000, outputs=10**300)["success"] <= 1.0


def test_what_is_simple_beyond_the_sizes_ends_at_once() -> None:
    assert claims["N-4b"](m=5, others=2_433_612_131, swaps=284_228_767) == {"count": 0}
    assert claims["I-9e"](error=1e-12, delta=1e-10, half=100)["failure"] <= 1e-10
    with pytest.raises(PrunusError, match="at least 1e-12"):
        claims["I-9e"](error=1e-300, delta=1e-10, half=100)
    with pytest.raises(PrunusError, match="more than 1e\\+08"):
        claims["B-8a"].printed(rows=1_347_119_032, columns=1024, banks=16, r=58)
