"""A study as the files that run it again: each is what `prunus study --grid` reads, and together they are its cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from prunus.pruning.patterns import fixed_sparsity
from prunus.settings.study import Settings
from prunus.study.grid import AXES
from prunus.study.methods import METHODS, misfit, parse, score_of
from prunus.study.store import Result

_SPLIT = ("method", "score", "seed", "pattern", "sparsity", "data", "width", "model")
"""What is taken apart first where cells are not all combinations of their values."""


def grids(results: Sequence[Result]) -> list[str]:
    """The cells as TOML files, as few as combine nothing that was not run; one at least for each set of settings."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(json.dumps(result.config["settings"], sort_keys=True), []).append(result)
    return [_file(part) for members in found.values() for part in _joined(_parts(members))]


def _parts(cells: list[Result]) -> list[list[Result]]:
    """The cells in groups that are all combinations of their values."""
    if _whole(cells):
        return [cells]
    for axis in _SPLIT:
        values = dict.fromkeys(_at(cell, axis) for cell in cells)
        if len(values) > 1:
            apart = [[cell for cell in cells if _at(cell, axis) == value] for value in values]
            return [part for group in apart for part in _parts(group)]
    return [cells]


def _joined(parts: list[list[Result]]) -> list[list[Result]]:
    """The same groups, with those put together that are all combinations of their values together too."""
    found: list[list[Result]] = []
    for part in parts:
        place = next((number for number, other in enumerate(found) if _whole(other + part)), None)
        if place is None:
            found.append(part)
        else:
            found[place] = found[place] + part
    return found


def _whole(cells: Sequence[Result]) -> bool:
    """Do the values of these cells, combined as a grid combines them, give these cells and no other?"""
    axes = _axes(cells)
    made = set()
    for model, width, data, method, score, pattern, seed in product(
        *(axes[name] for name in ("model", "width", "data", "method", "score", "pattern", "seed"))
    ):
        if misfit(method, pattern):
            continue
        fixed = fixed_sparsity(pattern)
        for sparsity in axes["sparsity"] if fixed is None else [fixed]:
            made.add((model, width, data, method, score_of(method, score), pattern, sparsity, seed))
    return made == {tuple(_at(cell, axis) for axis in AXES) for cell in cells}


def _axes(cells: Sequence[Result]) -> dict[str, list[Any]]:
    """The values of each axis, without scores that a method brings itself and sparsities that a pattern fixes."""
    axes = {axis: list(dict.fromkeys(_at(cell, axis) for cell in cells)) for axis in AXES}
    free = [_at(cell, "score") for cell in cells if not METHODS[parse(_at(cell, "method"))[0]].score]
    axes["score"] = list(dict.fromkeys(free)) or ["magnitude"]
    free = [_at(cell, "sparsity") for cell in cells if fixed_sparsity(_at(cell, "pattern")) is None]
    axes["sparsity"] = list(dict.fromkeys(free)) or axes["sparsity"]
    return axes


def _at(cell: Result, axis: str) -> Any:
    return cell.config.get(axis, "prune")  # records before there were methods


def _file(cells: Sequence[Result]) -> str:
    lines = [f"{axis} = {_toml(values)}" for axis, values in _axes(cells).items() if _told(axis, values)]
    given, usual = dict(cells[0].config["settings"]), Settings()
    given["weights"] = Path(given["weights"]).name  # the folder is private
    changed = {name: value for name, value in given.items() if value != _plain(getattr(usual, name))}
    if changed:
        lines += ["", "[settings]", *(f"{name} = {_toml(value)}" for name, value in changed.items())]
    return "\n".join(lines)


def _told(axis: str, values: list[Any]) -> bool:
    return (axis, values) not in (("width", [1.0]), ("score", ["magnitude"]), ("method", ["prune"]))


def _toml(value: Any) -> str:
    """A value as TOML writes it: JSON, but with characters beyond the first 65,536 as they are, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
