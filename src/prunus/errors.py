"""The errors users see: full sentences that say what was wrong, where, and what to do.

Every error Prunus raises on purpose derives from `PrunusError`. `BadInput` is the caller's to mend (the command line
exits with status 2); the others are failures of a run (status 1). `BadInput` is a `ValueError` too, so code that does
not know Prunus can still catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BadFile", "BadInput", "MissingExtra", "PrunusError", "RunFailed", "UnknownName", "first_line"]


class PrunusError(Exception):
    """Base of all errors raised on purpose.

    Example:
        >>> import prunus
        >>> try:
        ...     prunus.models.make("resnet21")
        ... except prunus.PrunusError as error:
        ...     print(str(error)[:34])
        There is no model named 'resnet21'
    """


class PrunusWarning(UserWarning):
    """Something was left out or done in another way than one might expect; the message says what."""


class BadInput(PrunusError, ValueError):
    """An argument, name, file or model that cannot be used as given. Also a `ValueError`.

    Example:
        >>> import torch, prunus
        >>> try:
        ...     prunus.prune(torch.nn.Linear(4, 4), 1.5)
        ... except prunus.BadInput as error:
        ...     print(error)
        The sparsity is 1.5; it is the fraction of zeros and must lie in [0, 1).
    """


class UnknownName(BadInput, KeyError):
    """A name that is not registered; the message lists those that are, and the closest.

    Args:
        kind: What is named, as in "score".
        name: What the user wrote.
        valid: The names that exist.

    Example:
        >>> from prunus.errors import UnknownName
        >>> print(UnknownName("score", "magnitud", ["magnitude", "random"]))
        There is no score named 'magnitud'. Known: magnitude, random; did you mean 'magnitude'?
    """

    def __init__(self, kind: str, name: object, valid: Iterable[str], of: int = 0) -> None:
        """`of`: how many there are where `valid` holds only the nearest of them."""
        names = list(valid)
        if of > len(names):
            near = ", ".join(names)
            super().__init__(f"There is no {kind} named {name!r}; the nearest of the {of} are {near}.")
            return
        names.sort()
        close = difflib.get_close_matches(str(name), names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"There is no {kind} named {name!r}. Known: {', '.join(names)}{hint}")

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])


class BadFile(BadInput):
    """A file that is missing, damaged, of another kind, or inconsistent with itself.

    Example:
        >>> import prunus
        >>> try:
        ...     prunus.Masks.load("nowhere.safetensors")
        ... except prunus.BadFile as error:
        ...     print("nowhere.safetensors" in str(error))
        True
    """


class MissingExtra(PrunusError, ImportError):
    """An optional dependency is not installed.

    Args:
        package: The missing package.
        extra: The extra of prunus that brings it.
        purpose: What needs it.

    Example:
        >>> from prunus.errors import MissingExtra
        >>> print(MissingExtra("ray", "cluster", "The cluster engine"))
        The cluster engine needs the package ray: install it with pip install 'prunus[cluster]'.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: install it with pip install 'prunus[{extra}]'.")


class RunFailed(PrunusError, RuntimeError):
    """A run that started well and could not finish.

    Example:
        >>> from prunus.errors import PrunusError, RunFailed
        >>> issubclass(RunFailed, PrunusError)
        True
    """


def first_line(error: BaseException) -> str:
    """The first line with words in another library's error, to quote it in one of ours.

    Args:
        error: Any exception.

    Returns:
        The line, or the name of the exception's type if it has no message.

    Example:
        >>> from prunus.errors import first_line
        >>> first_line(ValueError("\\n  no such key\\nmore"))
        'no such key'
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
