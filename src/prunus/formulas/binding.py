"""Bind a function to the ledger id of the result it computes, so that the index and "find references" both find it.

    @claim("P-15d")
    def theorem1_prime_difference(rows, columns, ...): ...

`@printed("P-15d")` marks the published formula where it differs from the corrected one. A bound function never fails
with a raw arithmetic error: where its arguments are admissible but a float cannot hold the result, it says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from prunus.errors import BadInput, PrunusError

Function = TypeVar("Function", bound=Callable[..., Any])

_corrected: dict[str, Callable[..., Any]] = {}
_printed: dict[str, Callable[..., Any]] = {}


def claim(id: str) -> Callable[[Function], Function]:
    """Bind the decorated function to this id as the form that holds."""
    return _register(_corrected, id)


def printed(id: str) -> Callable[[Function], Function]:
    """Bind the decorated function to this id as the published form."""
    return _register(_printed, id)


def corrected_form(id: str) -> Callable[..., Any]:
    """The function bound to this id; its module must have been imported."""
    return _corrected[id]


def printed_form(id: str) -> Callable[..., Any] | None:
    """The published form bound to this id, or None where it does not differ."""
    return _printed.get(id)


def _register(table: dict[str, Callable[..., Any]], id: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        known = table.get(id, function)
        if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"{id} is bound twice: to {known.__qualname__} and to {function.__qualname__}.")

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = function(*args, **kwargs)
                if any(isinstance(value, float) and math.isnan(value) for value in _values(result)):
                    raise ArithmeticError("not a number")
                return result
            except PrunusError:
                raise
            except (ArithmeticError, ValueError, MemoryError) as error:
                reason = str(error.args[-1]).lower() if error.args else "overflow"
                raise BadInput(
                    f"{id} has no value that a float can hold for these arguments ({reason}): take less extreme ones."
                ) from error

        table[id] = guarded  # a module that is loaded again binds its new function
        return cast(Function, guarded)

    return register


def _values(result: Any) -> Iterable[Any]:
    return result.values() if isinstance(result, Mapping) else (result,)
