"""The errors users see: full sentences that say what was wrong, where, and what to do.

Every error Prunus raises on purpose derives from `PrunusError`. `BadInput` is the caller's to mend (the command line
exits with status 2); the others are failures of a run (status 1). `BadInput` is a `ValueError` too, so code that does
not know Prunus can still catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PrunusError(Exception):
    """Base of all errors raised on purpose."""


class PrunusWarning(UserWarning):
    """Something was left out or done in another way than one might expect; the message says what."""


class BadInput(PrunusError, ValueError):
    """An argument, name, file or model that cannot be used as given."""


class UnknownName(BadInput, KeyError):
    """A name that is not registered; the message lists those that are."""

    def __init__(self, kind: str, name: object, valid: Iterable[str]) -> None:
        names = sorted(valid)
        close = difflib.get_close_matches(str(name), names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"There is no {kind} named {name!r}. Known: {', '.join(names)}{hint}")

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])


class BadFile(BadInput):
    """A file that is missing, damaged, foreign, or inconsistent with itself."""


class MissingExtra(PrunusError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: install it with pip install 'prunus[{extra}]'.")


class RunFailed(PrunusError, RuntimeError):
    """A run that started well and could not finish."""


def first_line(error: BaseException) -> str:
    """The first line that says something in an error of another library, for one sentence of our own."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
