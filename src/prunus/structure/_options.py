"""What `shrink` refuses before anything is done."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from prunus.adapters import Batch, batches, check_finite
from prunus.errors import BadInput, UnknownName
from prunus.layers import as_globs
from prunus.settings.structure import Options
from prunus.structure._recover import first_rows, joined, tokens_each
from prunus.structure.allocations import ALLOCATIONS
from prunus.structure.scores import SCORES

TOKENS = 12_288
"""Of texts, that are looked at: layers keep what they give for each of them until they are solved."""
MEASURES = ("parameters", "multiply-adds", "time")


def options_from(given: Mapping[str, Any]) -> Options:
    """Options from arguments by name, checked."""
    names = [each.name for each in fields(Options)]
    for name in given:
        if name not in names:
            raise UnknownName("option of shrink", name, names)
    globs = {name: as_globs(given[name], name) for name in ("exclude", "embeddings") if name in given}
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
    left = TOKENS
    for batch in batches(data, size=min(options.samples, 128), shuffle=True, seed=options.seed):
        found.append(check_finite(first_rows(batch, batch.size, left)))
        left -= found[-1].size * tokens_each(batch)
        if left <= 0 or sum(each.size for each in found) >= options.samples:
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
