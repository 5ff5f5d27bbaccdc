"""The index of claims: every computable result of the papers, by its ledger id.

A claim's record (title, source, status, erratum, arguments, returns, reference cases) stands in `claims.toml` in the
folder of its paper; its formula is the function decorated with `@claim(id)`. Where the published formula differs, the
function decorated with `@printed(id)` computes what the paper says, so that both can be compared.
"""

from __future__ import annotations

import importlib
import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from string import ascii_lowercase
from typing import Any

from prunus.errors import BadInput, UnknownName
from prunus.formulas.binding import corrected_form, printed_form
from prunus.papers import PAPERS


@dataclass(frozen=True)
class Case:
    """One reference value: arguments, expected returns, and the tolerance at which they must agree."""

    given: Mapping[str, Any]
    expect: Mapping[str, Any]
    tolerance: float = 1e-9
    absolute: float = 0.0
    printed: bool = False


@dataclass(frozen=True, eq=False)
class Claim:
    """One result of a paper, computable: `claim(**arguments)` gives the corrected form as a mapping of numbers."""

    id: str
    title: str
    source: str
    status: str
    erratum: str
    paper: str
    arguments: Mapping[str, str]
    returns: Mapping[str, str]
    printed_returns: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The corrected form: the function decorated with `@claim(id)`."""
        importlib.import_module(f"prunus.papers.{self.paper}")
        return corrected_form(self.id)

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @cached_property
    def printed_function(self) -> Callable[..., Any] | None:
        """The published form, or None where the published form is right."""
        importlib.import_module(f"prunus.papers.{self.paper}")
        return printed_form(self.id)

    def __call__(self, **arguments: Any) -> dict[str, Any]:
        return self._evaluate(self.function, self.returns, arguments)

    def printed(self, **arguments: Any) -> dict[str, Any] | None:
        """What the paper's formula gives for the same arguments; None where it does not differ."""
        if self.printed_function is None:
            return None
        return self._evaluate(self.printed_function, self.printed_returns, arguments)

    def _evaluate(
        self, function: Callable[..., Any], names: Mapping[str, str], arguments: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            signature = ", ".join(f"{name} ({meaning})" for name, meaning in self.arguments.items())
            raise BadInput(f"{self.id} cannot be evaluated: {error}. It takes {signature}.") from None
        result = function(**arguments)
        if isinstance(result, Mapping):
            return dict(result)
        (name,) = names
        return {name: result}


class Claims(Mapping[str, Claim]):
    """All claims, in the order of the ledger. An id without its letter finds the "a": "K-2" and "k-2" are "K-2a"."""

    @cached_property
    def _records(self) -> dict[str, Claim]:
        records: dict[str, Claim] = {}
        for paper in PAPERS:
            text = (resources.files("prunus.papers") / paper / "claims.toml").read_text("utf8")
            for entry in tomllib.loads(text)["claim"]:
                records[entry["id"]] = _read(entry, paper)
        return dict(sorted(records.items(), key=lambda item: _order(item[0])))

    def __getitem__(self, key: str) -> Claim:
        wanted = str(key).strip().capitalize()
        for candidate in (wanted, f"{wanted}a"):
            if candidate in self._records:
                return self._records[candidate]
        raise UnknownName("claim", key, self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} claims: {', '.join(list(self)[:4])}, ...>"


def _read(entry: dict[str, Any], paper: str) -> Claim:
    cases = tuple(Case(**case) for case in entry.pop("case", ()))
    return Claim(printed_returns=entry.pop("printed", {}), cases=cases, paper=paper, **entry)


def _order(identifier: str) -> tuple[str, int, str]:
    letter, place = identifier.split("-")
    return letter, int(place.rstrip(ascii_lowercase)), place


claims = Claims()
