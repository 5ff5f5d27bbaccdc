from __future__ import annotations

import math

import numpy as np
import pytest

from prunus.errors import BadInput, UnknownName
from prunus.formulas import domain


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3.0), np.array(3), np.uint8(3)])
def test_whole_numbers_come_back_as_ints(value):
    result = domain.whole("n", value, 3, 3)
    assert result == 3
    assert type(result) is int


def test_large_whole_numbers_keep_every_digit():
    assert domain.whole("n", 2**80 + 1) == 2**80 + 1


@pytest.mark.parametrize("value", [2.5, math.nan, math.inf, -math.inf, "3", None, True, np.bool_(True), 1j, [3]])
def test_what_is_not_whole_is_refused(value):
    with pytest.raises(BadInput, match=r"^n must be a"):
        domain.whole("n", value)


@pytest.mark.parametrize(
    "low, high, message",
    [
        (4, None, "n must be a whole number of at least 4, got 3."),
        (None, 2, "n must be a whole number of at most 2, got 3."),
        (4, 9, "n must be a whole number in [4, 9], got 3."),
        (0, 2, "n must be a whole number in [0, 2], got 3."),
    ],
)
def test_whole_says_the_range(low, high, message):
    with pytest.raises(BadInput) as caught:
        domain.whole("n", 3, low, high)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((0.0, 1.0), {"open_low": True}, "x must be a finite number in (0, 1], got 0."),
        ((-2.0, 0.0), {"open_high": True}, "x must be a finite number in [-2, 0), got 0."),
        ((1.0,), {}, "x must be a finite number of at least 1, got 0."),
        ((0.0,), {"open_low": True}, "x must be a finite number above 0, got 0."),
        ((None, -1.0), {}, "x must be a finite number of at most -1, got 0."),
        ((None, 0.0), {"open_high": True}, "x must be a finite number below 0, got 0."),
    ],
)
def test_real_says_the_range(arguments, options, message):
    with pytest.raises(BadInput) as caught:
        domain.real("x", 0, *arguments, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, False])
def test_real_wants_finite_numbers(value):
    with pytest.raises(BadInput, match=r"^x must be a"):
        domain.real("x", value)


def test_closed_ends_are_admissible():
    assert domain.real("x", 1, 1, 1) == 1.0
    assert type(domain.real("x", 1)) is float
    assert domain.probability("p", 0) == 0.0
    assert domain.probability("p", 1) == 1.0
    assert domain.positive("x", 1e-300) == 1e-300
    for call in (
        lambda: domain.positive("x", 0.0),
        lambda: domain.probability("p", 1.0, open_high=True),
        lambda: domain.probability("p", 0.0, open_low=True),
        lambda: domain.probability("p", 1.0000001),
        lambda: domain.probability("p", -1e-9),
    ):
        with pytest.raises(BadInput):
            call()


def test_arrays():
    assert domain.array("w", [[1, 2], [3, 4]], 2).dtype == np.float64
    assert domain.array("w", 3.0).shape == ()
    for value, dimensions, message in (
        ([1.0], 2, "w must have 2 dimensions, got 1."),
        ([[1.0]], 1, "w must have 1 dimension, got 2."),
        ([], None, "w must hold at least one number, got none."),
        ([1.0, math.nan], None, "w must hold finite numbers only, got NaN or infinity."),
        ([[1.0], [1.0, 2.0]], None, "w must be a regular array of numbers, with rows of equal length."),
        (["a"], None, "w must be a regular array of numbers, with rows of equal length."),
    ):
        with pytest.raises(BadInput) as caught:
            domain.array("w", value, dimensions)
        assert str(caught.value) == message


def test_reals_check_every_entry():
    assert domain.reals("p", 0.5).shape == ()
    assert domain.reals("p", [[0.0, 1.0]], 0.0, 1.0).shape == (1, 2)
    for value in ([0.5, 1.5], [-0.1, 0.5], 2.0, [math.inf], "x"):
        with pytest.raises(BadInput, match="p must"):
            domain.reals("p", value, 0.0, 1.0)
    with pytest.raises(BadInput, match=r"every entry of p must be a finite number in \(0, 1\), got .*0.0"):
        domain.reals("p", [0.0, 0.5], 0.0, 1.0, open_low=True, open_high=True)
    with pytest.raises(BadInput):
        domain.reals("p", [0.5, 1.0], 0.0, 1.0, open_low=True, open_high=True)


def test_plain_and_choice():
    assert type(domain.plain(np.array(1.5))) is float
    assert domain.plain(np.array([1.5])).shape == (1,)
    assert domain.choice("law", "normal", ("normal", "uniform")) == "normal"
    with pytest.raises(
        UnknownName, match=r"There is no law named 'norma'. Known: normal, uniform; did you mean 'normal'"
    ):
        domain.choice("law", "norma", ("normal", "uniform"))
