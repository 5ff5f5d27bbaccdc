"""Lists and arrays of arguments."""

from __future__ import annotations

import numpy as np
import pytest

from prunus.errors import BadInput
from prunus.formulas import numbers


def test_lists_say_what_they_want() -> None:
    assert numbers.reals("a", [1, 2.5], 1.0).tolist() == [1.0, 2.5]
    assert numbers.per_layer("a", 2, 3).tolist() == [2.0, 2.0, 2.0]
    assert numbers.per_layer("a", [1, 2], 2).tolist() == [1.0, 2.0]
    assert numbers.per_layer("a", [], 0).size == 0
    assert numbers.per_layer("a", np.array([0.0, 1.0]), 2).tolist() == [0.0, 1.0]
    with pytest.raises(BadInput, match=r"^a must hold numbers of at least 1, got 0\.$"):
        numbers.reals("a", [0, 2], 1.0)
    with pytest.raises(BadInput, match=r"^a must hold numbers above 0, got 0\.$"):
        numbers.reals("a", [1.0, 0.0], 0.0, open_low=True)
    with pytest.raises(BadInput, match=r"^a must hold 1 number, got 2\.$"):
        numbers.reals("a", [1, 2], length=1)
    with pytest.raises(BadInput, match=r"^a must hold 3 numbers, got 2\.$"):
        numbers.per_layer("a", [1, 2], 3)
    with pytest.raises(BadInput, match="above 0"):
        numbers.per_layer("a", 0.0, 2, open_low=True)
    with pytest.raises(BadInput, match="at least 0"):
        numbers.per_layer("a", -0.1, 2)


def test_arrays_broadcast_and_numbers_stay_numbers() -> None:
    calls = []

    @numbers.elementwise
    def area(side: float, other: float = 2.0) -> float:
        """A rectangle."""
        calls.append((side, other))
        return side * other

    assert area(3.0) == 6.0
    assert isinstance(area(3), int | float)
    assert area(np.array(4.0)) == 8.0  # no dimension: a number
    grid = area(np.array([[1.0], [2.0]]), other=np.array([1.0, 10.0, 100.0]))
    assert isinstance(grid, np.ndarray)
    assert grid.tolist() == [[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]
    assert area(np.array([])).shape == (0,)  # type: ignore[attr-defined, arg-type]
    assert area.__doc__ == "A rectangle."
    assert len(calls) == 3 + 6


def test_a_number_for_each_of_a_million_layers_at_most() -> None:
    assert len(numbers.per_layer("norms", 2.0, 10**6)) == 10**6
    with pytest.raises(BadInput, match="layers"):
        numbers.per_layer("norms", 2.0, 10**6 + 1)
