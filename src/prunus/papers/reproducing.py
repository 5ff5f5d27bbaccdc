"""Published tables and figures that can be run again: registered in each paper's files `reproductions*.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prunus.errors import BadInput
from prunus.papers import import_files


@dataclass(frozen=True)
class Reproduction:
    """A published result that can be run again: `run(**options)` gives rows with the published numbers beside ours."""

    id: str
    title: str
    source: str
    run: Callable[..., Iterable[Mapping[str, Any]]]
    minutes: float = 1.0
    needs: tuple[str, ...] = ()
    out_of_reach: str = ""
    tags: tuple[str, ...] = field(default=())


reproductions: dict[str, Reproduction] = {}
"""The reproductions registered so far, by id; `collect` imports all of them."""


def reproduction(
    id: str, title: str, source: str, **details: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the reproduction of a published result; refuses a second one under the same id."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        if id in reproductions:
            raise BadInput(f"A reproduction named {id!r} exists already; choose another name.")
        reproductions[id] = Reproduction(id, title, source, run, **details)
        return run

    return register


def collect() -> dict[str, Reproduction]:
    """Every reproduction of every paper, by id."""
    import_files("reproductions")
    return dict(sorted(reproductions.items()))
