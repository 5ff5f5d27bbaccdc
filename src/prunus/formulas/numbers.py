"""Arguments that are lists or arrays: functions of numbers that take them, and their domains."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput
from prunus.formulas import domain

P = ParamSpec("P")

R = TypeVar("R")

_MOST_LAYERS = 10**6  # an array of them is made


def elementwise(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of numbers take numpy arrays too: they broadcast, and the results come back as arrays.

    Numbers in, numbers out as before. Where the function returns a mapping, its values become arrays.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not any(isinstance(value, np.ndarray) and value.ndim for value in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        grid = np.broadcast(*(np.asarray(value, dtype=object) for value in given.values()))
        results: list[Any] = [function(**dict(zip(given, values))) for values in grid]  # type: ignore[call-arg]
        if results and isinstance(results[0], dict):
            columns = {name: np.array([result[name] for result in results]) for name in results[0]}
            return {name: column.reshape(grid.shape) for name, column in columns.items()}  # type: ignore[return-value]
        return np.array(results).reshape(grid.shape)  # type: ignore[return-value]

    return wrapper


def reals(
    name: str, value: ArrayLike, low: float | None = None, *, open_low: bool = False, length: int | None = None
) -> NDArray[np.float64]:
    """A list of finite numbers, each at least `low` (above it when `open_low`), with the given length."""
    numbers = domain.array(name, value, 1)
    if low is not None and (numbers.min() < low or (open_low and numbers.min() == low)):
        bound = f"above {low:g}" if open_low else f"of at least {low:g}"
        raise BadInput(f"{name} must hold numbers {bound}, got {numbers.min():g}.")
    if length is not None and len(numbers) != length:
        raise BadInput(f"{name} must hold {length} number{'s' * (length != 1)}, got {len(numbers)}.")
    return numbers


def per_layer(name: str, value: Any, length: int, low: float = 0.0, *, open_low: bool = False) -> NDArray[np.float64]:
    """One number for every layer: a single number is repeated, a list must have the right length."""
    if np.ndim(value) == 0:
        number = domain.real(name, value, low, open_low=open_low)
        domain.whole("layers", length, 0, _MOST_LAYERS)
        return np.full(length, number)
    if length == 0 and np.size(value) == 0:
        return np.empty(0)
    return reals(name, value, low, open_low=open_low, length=length)
