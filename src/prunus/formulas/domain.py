"""Domains of the formulas' arguments: one sentence with the admissible range where a value lies outside.

`name` is the argument's name as the caller wrote it. Every function returns the value in the type the formula works
with (int, float, float64 array), so that numpy scalars and whole floats such as 1e6 are welcome too.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput, UnknownName

_LONGEST = 80


def shown(value: Any) -> str:
    """A value as messages quote it: its repr on one line, cut off where it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "more digits than can be written"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """A whole number in [low, high]; None leaves a side open."""
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number):
        raise BadInput(f"{name} must be a whole number{_range(low, high)}, got {shown(value)}.")
    result = int(number)
    if (low is not None and result < low) or (high is not None and result > high):
        raise BadInput(f"{name} must be a whole number{_range(low, high)}, got {shown(result)}.")
    return result


def real(
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """A finite real number between low and high; `open_low`, `open_high` exclude the end itself."""
    result = float(_number(name, value))
    below = low is not None and (result < low or (open_low and result == low))
    above = high is not None and (result > high or (open_high and result == high))
    if not math.isfinite(result) or below or above:
        limits = _range(low, high, open_low=open_low, open_high=open_high)
        raise BadInput(f"{name} must be a finite number{limits}, got {shown(value)}.")
    return result


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    return real(name, value, 0.0, open_low=True)


def probability(name: str, value: Any, *, open_low: bool = False, open_high: bool = False) -> float:
    """A number in [0, 1]; `open_low`, `open_high` exclude 0 and 1."""
    return real(name, value, 0.0, 1.0, open_low=open_low, open_high=open_high)


def array(name: str, value: ArrayLike, dimensions: int | None = None) -> NDArray[np.float64]:
    """A non-empty float64 array of finite numbers, with the given number of dimensions."""
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name} must be a regular array of numbers, with rows of equal length.") from None
    if dimensions is not None and result.ndim != dimensions:
        raise BadInput(f"{name} must have {dimensions} dimension{'s' * (dimensions > 1)}, got {result.ndim}.")
    if result.size == 0:
        raise BadInput(f"{name} must hold at least one number, got none.")
    if not np.isfinite(result).all():
        raise BadInput(f"{name} must hold finite numbers only, got NaN or infinity.")
    return result


def choice(kind: str, value: Any, known: Iterable[str]) -> str:
    """One of the known names; the error lists them."""
    names = tuple(known)
    if value not in names:
        raise UnknownName(kind, value, names)
    return str(value)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise BadInput(f"{name} must be a number, got {shown(value)}.")
    return value


def _range(low: float | None, high: float | None, *, open_low: bool = False, open_high: bool = False) -> str:
    if low is not None and high is not None:
        return f" in {'(' if open_low else '['}{low:.10g}, {high:.10g}{')' if open_high else ']'}"
    if low is not None:
        return f" {'above' if open_low else 'of at least'} {low:.10g}"
    if high is not None:
        return f" {'below' if open_high else 'of at most'} {high:.10g}"
    return ""


def reals(
    name: str,
    value: ArrayLike,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> NDArray[np.float64]:
    """Like `real` for a number or an array of any shape: every entry must lie between low and high."""
    if np.ndim(value) == 0:
        return np.asarray(real(name, value, low, high, open_low=open_low, open_high=open_high))
    result = array(name, value)
    for extreme in (result.min(), result.max()):
        real(f"every entry of {name}", extreme, low, high, open_low=open_low, open_high=open_high)
    return result


def plain(value: Any) -> Any:
    """A Python float for a zero-dimensional array, the array itself otherwise."""
    return float(value) if np.ndim(value) == 0 else value


def delta_in(delta: float) -> float:
    """A failure probability: above 0 and below 1."""
    return probability("delta", delta, open_low=True, open_high=True)
