"""Independent checks of the claims: enumeration, a second formula, or Monte Carlo with a stated false-alarm rate.

A check is a function registered under the ids it speaks for. It raises `AssertionError` with a sentence when the claim
fails, and returns one short sentence that says what agreed with what. `prunus theory --check` and the tests run the
same functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

MODULES = ("order_statistics", "matrices", "closeness", "balanced", "swaps", "tangent", "tickets")
FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Check:
    """One independent check: which claims it speaks for, how it works, and the function that runs it."""

    name: str
    claims: tuple[str, ...]
    method: str
    run: Callable[[], str]


_registry: dict[str, Check] = {}


def check(*claims: str, method: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a check for the given ledger ids.

    `method` is "enumeration", "second formula", "Monte Carlo" or "property".
    """

    def register(function: Callable[[], str]) -> Callable[[], str]:
        name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
        if name in _registry:
            raise ValueError(f"The check {name} is registered twice.")
        _registry[name] = Check(name, claims, method, function)
        return function

    return register


def all_checks(*modules: str) -> dict[str, Check]:
    """Every check of these subjects, by name; of all subjects where none is named."""
    for module in modules or MODULES:
        importlib.import_module(f"prunus.theory.checks.{module}")
    return {name: item for name, item in _registry.items() if name.split(".")[0] in (modules or MODULES)}
