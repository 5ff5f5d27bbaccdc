"""The options of `shrink`, and what is refused before anything is done."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from prunus.adapters import Batch, batches, check_finite
from prunus.errors import BadInput, UnknownName
from prunus.structure._recover import joined
from prunus.structure.allocations import ALLOCATIONS
from prunus.structure.scores import SCORES

MEASURES = ("parameters", "multiply-adds", "time")


@dataclass(frozen=True, eq=False)
class Options:
    """How `shrink` chooses: its arguments, with their defaults.

    Attributes:
        score: "magnitude", "random", "taylor" or "reconstruction"; None takes "reconstruction" with data and
            "magnitude" without.
        measure: What the fraction is a fraction of: "multiply-adds", "parameters", or "time": seconds of one call with
            the example, measured on this machine.
        allocation: "uniform", "global" or "damage"; None takes "damage" with data, else "uniform".
        exclude: Names and globs of layers whose own outputs stay.
        embeddings: Names and globs of embeddings whose columns may leave.
        exact: False also narrows what layer norms see, which zeros cannot imitate.
        depth: Whole residual blocks leave first, those whose absence changes the outputs least; widths do the rest.
        multiple: Widths are multiples of this; None takes 1, and with "time" the multiple that is
            fastest on this machine.
        samples: Rows of data that are looked at.
        recover: Solve for the layers that stay, so that the outputs on the data stay.
        per_layer: What the configuration of a Hugging Face model cannot say may leave as well: alike layers that
            differ, heads of BERT.
        configured: Only what the configuration of a Hugging Face model can say leaves, however much of it must.
        loss: Loss of (outputs, labels) for "taylor".
        seed: Seed of every random choice.

    Example:
        >>> options = prunus.structure.Options(multiple=8)
        >>> options.measure, options.multiple
        ('multiply-adds', 8)
    """

    score: str | None = None
    measure: str = "multiply-adds"
    allocation: str | None = None
    exclude: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    exact: bool = True
    depth: bool = False
    multiple: int | None = None
    samples: int = 512
    recover: bool = True
    per_layer: bool = False
    configured: bool = False
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0


def options_from(given: Mapping[str, Any]) -> Options:
    """Options from arguments by name, checked."""
    names = [each.name for each in fields(Options)]
    for name in given:
        if name not in names:
            raise UnknownName("option of shrink", name, names)
    globs = {name: _globs(given[name]) for name in ("exclude", "embeddings") if name in given}
    options = Options(**{**given, **globs})
    if options.score is not None and options.score not in (*SCORES, "reconstruction"):
        raise UnknownName("score", options.score, [*SCORES, "reconstruction"])
    if options.allocation is not None and options.allocation not in ALLOCATIONS:
        raise UnknownName("allocation", options.allocation, ALLOCATIONS)
    if options.measure not in MEASURES:
        raise UnknownName("measure", options.measure, MEASURES)
    for name in ("multiple", "samples"):
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadInput(f"{name} is a whole number of at least 1, not {value!r}.")
    return options


def looked_at(data: Any, options: Options) -> list[Batch]:
    """The first rows of the data, as one batch where they fit together."""
    if data is None:
        for name, value in (("score", options.score), ("allocation", options.allocation)):
            if value in ("taylor", "reconstruction", "damage"):
                raise BadInput(f'The {name} {value!r} needs data: give data=, or take "magnitude" and "uniform".')
        return []
    found: list[Batch] = []
    for batch in batches(data, size=min(options.samples, 128), shuffle=True, seed=options.seed):
        found.append(check_finite(batch))
        if sum(each.size for each in found) >= options.samples:
            break
    if not found:
        raise BadInput("The data holds no samples; give some that are like those the model will meet.")
    return joined(found)


def shares_from(fraction: object, options: Options) -> float | Mapping[str, float]:
    """The fraction, or fractions by name, checked."""
    if isinstance(fraction, Mapping):
        if not fraction:
            raise BadInput("Fractions by name are empty: name at least one group of units, with the share that stays.")
        for name, share in fraction.items():
            shares_from(share, options)
            if not isinstance(name, str):
                raise BadInput(f"Fractions by name need names of layers, not {name!r}.")
        if options.depth or options.measure == "time":
            raise BadInput('Fractions by name are of units: depth=True and measure="time" need one number instead.')
        return fraction
    if isinstance(fraction, bool) or not isinstance(fraction, numbers.Real) or not 0 < float(fraction) < 1:
        raise BadInput(f"The fraction is what stays and must lie between 0 and 1, not {fraction!r}.")
    return float(fraction)


def _globs(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
