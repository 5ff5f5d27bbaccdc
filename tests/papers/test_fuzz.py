"""Odd arguments: every claim answers with numbers or one sentence, never with a raw error."""

from __future__ import annotations

import decimal
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
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
        ("N-5b", {"d": 10**132, "k": 0.05, "theta": 1e-37, "sigma": 0.5}, "too many to count one by one"),
        ("P-12a", {"d": 16 * 10**14, "count": 2 * 10**20, "limit": 10**8}, "8.4e\\+06 terms"),
        ("P-12a", {"d": 10**14, "count": 10**15, "limit": 60}, "8.4e\\+06 terms"),
        ("K-22a", {"x": [[1.0] * 8] * 8, "y": [[1.0] * 8] * 8, "depth": 20_000}, "K-22a takes at most 1e\\+08 steps"),
        ("P-9e", {"d": 64, "exponent": 0.5, "replacement": 10**5000}, "got more digits than can be written"),
        ("N-2c", {"gradient": np.array(3.0), "m": 2}, "gradient must be a list"),
        (
            "P-14a",
            {"norms": [1.0], "differences": [0.5], "radius": ["a" * 300]},
            "radius must be a number, .{60,100}\\.$",
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


def test_fractions_count_as_the_numbers_they_are() -> None:
    given = {"d": Fraction(21_000), "k": Fraction(1, 8), "budget": Fraction(325, 2), "sigma": Fraction(1, 2)}
    with pytest.raises(PrunusError, match="budget"):
        claims["N-11b"](**given)
    assert claims["B-3"](n=Fraction(4), r=Fraction(2)) == claims["B-3"](n=4, r=2)
    assert claims["B-2a"](sparsity=Fraction(1, 4)) == claims["B-2a"](sparsity=0.25)


@pytest.mark.parametrize(
    "m, k, epsilon", [(14_073_748_835_532_800, 1.85e-11, 1.0), (10**12, 0.3, 1e-9), (20, 0.1, 8.0)]
)
def test_a_small_budget_spread_over_many_keeps_its_digits(m: int, k: float, epsilon: float) -> None:
    """N-9e by fifty digits: m KL(p, k) is the budget."""
    found = claims["N-9e"](m=m, k=k, epsilon=epsilon)["kept"]
    with decimal.localcontext(prec=50):
        p, q = Decimal(found), Decimal(k)
        nearby = (p * (1 - Decimal(2) ** -50), p * (1 + Decimal(2) ** -50))
        below, above = (x * (x / q).ln() + (1 - x) * ((1 - x) / (1 - q)).ln() for x in nearby)
        assert below <= Decimal(epsilon) / m <= above


def test_large_filters_are_all_alike_but_for_their_scale() -> None:
    """K-22a: a filter that covers the image from every pixel sees the whole image, divided by its area."""
    image = [[1.0, -2.0], [0.5, 3.0]]
    found = {
        side: claims["K-22a"](x=image, y=image, depth=1, kernel=side)["covariance"] for side in (3, 101, 10**9 + 1)
    }
    for side, value in found.items():
        assert value * side**2 == pytest.approx(14.25, rel=1e-12)


def test_a_chance_is_at_most_one() -> None:
    assert claims["I-10a"](window=0.125, resamples=19, half=1000, outputs=10**300)["success"] <= 1.0


def test_what_is_simple_beyond_the_sizes_ends_at_once() -> None:
    assert claims["N-4b"](m=5, others=2_433_612_131, swaps=284_228_767) == {"count": 0}
    assert claims["I-9e"](error=1e-12, delta=1e-10, half=100)["failure"] <= 1e-10
    with pytest.raises(PrunusError, match="at least 1e-12"):
        claims["I-9e"](error=1e-300, delta=1e-10, half=100)
    with pytest.raises(PrunusError, match="more than 1e\\+08"):
        claims["B-8a"].printed(rows=1_347_119_032, columns=1024, banks=16, r=58)
