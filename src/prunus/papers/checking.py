"""Independent checks of the claims: enumeration, a second formula, or Monte Carlo with a stated false-alarm rate.

A check is a function registered under the ids of the claims it supports. It raises `AssertionError` with a sentence
when the claim fails, and returns one short sentence that says what agreed with what. `prunus theory --check` and the
tests run the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prunus.papers import PAPERS, import_files

FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Check:
    """One independent check: which claims it supports, how it works, and the function that runs it."""

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
        name = f"{function.__module__.split('.')[-2]}.{function.__name__}"
        if name in _registry:
            raise ValueError(f"The check {name} is registered twice.")
        _registry[name] = Check(name, claims, method, function)
        return function

    return register


def all_checks(*papers: str) -> dict[str, Check]:
    """Every check of these papers, by name; of all papers where none is named. They stand in files `checks*.py`."""
    import_files("checks", papers)
    return {name: item for name, item in _registry.items() if name.split(".")[0] in (papers or PAPERS)}
