"""Exact counts, the Chernoff rate near zero, ratios of Gamma functions, moments."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from prunus.errors import BadInput
from prunus.papers.closeness import _numbers as numbers
from prunus.theory import closeness


@pytest.mark.parametrize(
    "x, low, high",
    [
        (2.0, 2, 2),
        (2.0 - 1e-13, 2, 2),
        (2.0 + 1e-13, 2, 2),
        (2.0 - 1e-11, 1, 2),
        (2.0 + 1e-11, 2, 3),
        (2.5, 2, 3),
        (0.0, 0, 0),
        (1e-13, 0, 1),
        (524287.9999999999, 524288, 524288),
        (1e15 + 0.5, 10**15, 10**15),
    ],
)
def test_near_whole_numbers_count_as_whole(x: float, low: int, high: int) -> None:
    assert numbers.floor_near(x) == low
    assert numbers.ceil_near(x) == high


@pytest.mark.parametrize("x", [-0.99, -0.5, -0.02, -0.0199, -1e-3, -1e-9, 1e-12, 1e-6, 0.0199, 0.02, 0.021, 0.5, 7.0])
def test_rate_keeps_its_digits(x: float) -> None:
    if abs(x) < 0.1:  # the series in rational arithmetic
        exact = Fraction(x)
        series = sum((-exact) ** k / (k * (k - 1)) for k in range(2, 30))
        expected = float(series)
    else:
        expected = (1 + x) * math.log1p(x) - x
    assert numbers.rate(x) == pytest.approx(expected, rel=1e-13)


def test_rate_at_its_ends() -> None:
    assert numbers.rate(-1.0) == 1.0
    assert numbers.rate(0.0) == 0.0
    assert numbers.rate(2.0) == pytest.approx(3 * math.log(3) - 2, rel=1e-15)


@pytest.mark.parametrize("z", [0.5, 1.0, 15.9, 16.0, 16.1, 100.0])
def test_stirling_completes_the_factorial(z: float) -> None:
    head = (z + 0.5) * math.log(z) - z + 0.5 * math.log(2 * math.pi)
    assert head + numbers.stirling(z) == pytest.approx(math.lgamma(z + 1), rel=1e-14, abs=1e-14)
    assert 1 / (12 * z + 1) < numbers.stirling(z) < 1 / (12 * z)


@pytest.mark.parametrize("z", [1, 3, 15, 16, 17, 40, 1000, 10**9])
@pytest.mark.parametrize("shift", [1, 2, 4, 7])
def test_gamma_ratio_is_a_rising_product(z: int, shift: int) -> None:
    product = math.log(math.prod(range(z, z + shift)))
    assert numbers.log_gamma_ratio(z, shift) == pytest.approx(product, rel=1e-13, abs=1e-14)
    assert numbers.log_gamma_ratio(z + shift, -shift) == pytest.approx(-product, rel=1e-13, abs=1e-14)


def test_gamma_ratio_of_a_half_step() -> None:
    # Wendel: sqrt(z - 1/4) < Gamma(z + 1/2)/Gamma(z) < sqrt(z)
    for z in (2.0, 20.0, 1e6, 1e9):
        ratio = math.exp(numbers.log_gamma_ratio(z, 0.5))
        assert ratio == pytest.approx(math.sqrt(z) * (1 - 1 / (8 * z) + 1 / (128 * z * z)), rel=6e-3 / z**3 + 1e-13)


def test_lists_of_whole_numbers() -> None:
    assert numbers.wholes("a", [1, 2.0], 1).tolist() == [1.0, 2.0]
    with pytest.raises(BadInput, match=r"^a must hold whole numbers of at least 0, got 1\.5\.$"):
        numbers.wholes("a", [1, 1.5], 0)


def test_fourth_moment_respects_jensen() -> None:
    assert numbers.fourth_moment(2.0, 4.0) == (2.0, 4.0)
    assert numbers.fourth_moment(1.0, 1.0 - 1e-10) == (1.0, 1.0 - 1e-10)
    with pytest.raises(BadInput, match=r"fourth .* at least second\^2 = 4"):
        numbers.fourth_moment(2.0, 3.99)
    with pytest.raises(BadInput, match="second"):
        numbers.fourth_moment(0.0, 1.0)


def test_theory_functions_take_arrays() -> None:
    widths = np.array([256, 1024, 4096])
    pruned = closeness.theorem1_prime_pruned(widths, 3, 0.1, 0.05)
    assert pruned["pruned"].tolist() == [1415, 34420, 682182]  # type: ignore[attr-defined]
    assert pruned["pruned"].dtype.kind == "i"  # type: ignore[attr-defined]
    shape = closeness.max_load_failure(widths[:, None], np.array([5000, 50000])).shape  # type: ignore[attr-defined, arg-type]
    assert shape == (3, 2)
    moments = closeness.magnitude_order_moment(100, np.arange(1, 101), 2)
    assert moments.mean() == pytest.approx(1.0)  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="r must be"):
        closeness.magnitude_order_moment(100, np.array([1, 101]))  # type: ignore[arg-type]
