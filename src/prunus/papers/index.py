"""The index of claims: the computable results of the papers, by its ledger id.

A claim's record (title, source, status, erratum, arguments, returns, reference cases) stands in `claims.toml` in the
folder of its paper, its formula in LaTeX in `formulas.toml`; the function decorated with `@claim(id)` computes it.
Where the published formula differs, the function decorated with `@printed(id)` computes what the paper says, so that
both can be compared; where the paper has no formula for the same value, `published` says what it has.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import numbers
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from importlib import resources
from string import ascii_lowercase
from typing import Any

import numpy as np

from prunus.errors import BadInput, UnknownName
from prunus.formulas.binding import corrected_form, printed_form
from prunus.formulas.domain import shown
from prunus.papers import LETTERS, PAPERS
from prunus.papers.statements import statements


@dataclass(frozen=True)
class Case:
    """One reference value: arguments, expected returns, and the tolerance at which they must agree.

    Example:
        >>> len(prunus.theory.claims["B-3"].cases) > 0
        True
    """

    given: Mapping[str, Any]
    expect: Mapping[str, Any]
    tolerance: float = 1e-9
    absolute: float = 0.0
    printed: bool = False


@dataclass(frozen=True, eq=False)
class Claim:
    """One result of a paper, computable: `claim(**arguments)` gives the corrected form as a mapping of numbers.

    Example:
        >>> claim = prunus.theory.claims["B-3"]
        >>> claim.id, claim.status in ("right", "sloppy", "misprint", "wrong", "added")
        ('B-3', True)
    """

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
    formula: str = ""
    published: str = ""

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
        """What the paper's formula gives for the same arguments; None where it does not differ.

        Args:
            arguments: by name, as the claim takes them.

        Returns:
            The values by name, or None.

        Raises:
            BadInput: if the published formula does not take one of the arguments.
        """
        if self.printed_function is None:
            return None
        unknown = [name for name in arguments if name not in inspect.signature(self.printed_function).parameters]
        if unknown and set(unknown) <= set(self.arguments):
            raise BadInput(f"The published formula of {self.id} has no argument {', '.join(map(repr, unknown))}.")
        return self._evaluate(self.printed_function, self.printed_returns, arguments)

    def _evaluate(
        self, function: Callable[..., Any], names: Mapping[str, str], arguments: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            signature = ", ".join(f"{name} ({meaning})" for name, meaning in self.arguments.items())
            raise BadInput(f"{self.id} cannot be evaluated: {error}; it takes {signature}.") from None
        for name, value in arguments.items():
            _check_kind(name, value, self.arguments.get(name, ""))
        result = function(**{name: _plain(value) for name, value in arguments.items()})
        if isinstance(result, Mapping):
            return dict(result)
        (name,) = names
        return {name: result}


class Claims(Mapping[str, Claim]):
    """All claims, in the order of the ledger. An id without its letter finds the "a": "K-2" and "k-2" are "K-2a".

    Example:
        >>> prunus.theory.claims["P-5"].id
        'P-5'
    """

    @cached_property
    def _records(self) -> dict[str, Claim]:
        records: dict[str, Claim] = {}
        for paper in PAPERS:
            folder = resources.files("prunus.papers") / paper
            formulas = tomllib.loads((folder / "formulas.toml").read_text("utf8"))
            for entry in tomllib.loads((folder / "claims.toml").read_text("utf8"))["claim"]:
                records[entry["id"]] = _read(entry, paper, formulas[entry["id"]])
        return dict(sorted(records.items(), key=lambda item: _order(item[0])))

    def __getitem__(self, key: str) -> Claim:
        wanted = str(key).strip().capitalize()
        for candidate in (wanted, f"{wanted}a"):
            if candidate in self._records:
                return self._records[candidate]
        near = difflib.get_close_matches(wanted, self._records, n=3, cutoff=0.0)
        raise UnknownName("claim", key, near, of=len(self._records))

    def search(self, *words: str) -> list[Claim]:
        """The claims whose id, title, source, paper, names or erratum hold all of these words, in any order.

        Args:
            *words: words or phrases, in any case: a paper ("closeness", "Chijiwa"), a place in it ("Theorem 3.5",
                "eq. (11)", "Lemma A.5"), a letter of the ledger ("K"), or any word of a record.

        Returns:
            The claims in the order of the ledger; an empty list where none holds them all.

        Example:
            >>> [claim.id for claim in claims.search("Lemma A.5")]
            ['I-10a', 'I-10b']
        """
        letters = {word.strip().upper() for word in words} & set(LETTERS)
        words = tuple(word for word in words if word.strip().upper() not in LETTERS)
        wanted = [re.compile(rf"(?<![\w.]){re.escape(word.strip().lower())}(?![\w])") for word in words if word.strip()]
        return [
            claim
            for claim in self.values()
            if letters <= {claim.id[0]} and all(pattern.search(_text(claim)) for pattern in wanted)
        ]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} claims: {', '.join(list(self)[:4])}, ...>"


def _text(claim: Claim) -> str:
    """Everything a search looks at, in small letters."""
    meanings = (*claim.arguments, *claim.returns, *claim.returns.values())
    names = (claim.source, *_places().get(claim.id, ()), claim.paper.replace("_", " "))
    parts = (claim.id, claim.title, *names, claim.erratum, claim.published, *meanings)
    return " | ".join((*parts, LETTERS[claim.id[0]])).lower()


@cache
def _places() -> dict[str, list[str]]:
    """The statements, tables and figures that a claim covers, by its id."""
    found: dict[str, list[str]] = {}
    for statement in (one for paper in PAPERS for one in statements(paper)):
        for identifier in statement.claims:
            found.setdefault(identifier, []).append(statement.name)
    return found


def _check_kind(name: str, value: Any, meaning: str) -> None:
    """Refuse a value of another kind than the record's description begins with; the formula checks its range."""
    kind = meaning.partition(":")[0]
    if value is None or not kind:
        return
    several = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if kind == "bool" and not isinstance(value, (bool, np.bool_)):
        raise BadInput(f"{name} must be true or false, got {shown(value)}.")
    if kind in ("int", "float") and (isinstance(value, (bool, str, list, tuple, dict)) or not _numeric(value)):
        raise BadInput(f"{name} must be a number, got {shown(value)}.")
    if kind == "str" and not isinstance(value, str):
        raise BadInput(f"{name} must be a word, got {shown(value)}.")
    if kind.startswith(("list", "nested")) and not several:
        raise BadInput(f"{name} must be a {kind}, as in [1, 2], got {shown(value)}.")
    if kind == "list of float" or kind == "list of int" or kind == "float or list of float":
        for item in value if several else (value,):
            if isinstance(item, (bool, str, list, tuple, dict)) or not _numeric(item):
                raise BadInput(f"{name} must hold numbers only, got {shown(item)}.")


def _plain(value: Any) -> Any:
    """A fraction as the int or float it stands for; anything else as it is."""
    if not isinstance(value, Fraction):
        return value
    try:
        return int(value) if value.denominator == 1 else float(value)
    except OverflowError:
        raise BadInput(f"{shown(value)} is a fraction that no float can hold.") from None


def _numeric(value: Any) -> bool:
    return isinstance(value, (numbers.Real, np.ndarray))


def _read(entry: dict[str, Any], paper: str, formula: str) -> Claim:
    cases = tuple(Case(**case) for case in entry.pop("case", ()))
    return Claim(printed_returns=entry.pop("printed", {}), cases=cases, paper=paper, formula=formula, **entry)


def _order(identifier: str) -> tuple[str, int, str]:
    letter, place = identifier.split("-")
    return letter, int(place.rstrip(ascii_lowercase)), place


claims = Claims()
