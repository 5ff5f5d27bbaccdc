"""What a study runs: a grid of cells, each with a key that depends on everything that decides its result.

grid = Grid(model=("fc:64-300-100-10",), data=("digits",), pattern=("unstructured", "balanced:16"),
            sparsity=(0.5, 0.9), seed=(0, 1, 2), settings=Settings(length="10ep"))
grid.cells()                       # one for each combination that exists
Grid.read("study.toml")            # the same from a file
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from prunus.contract import check_sparsity
from prunus.errors import BadFile, BadInput, UnknownName
from prunus.settings.study import Settings
from prunus.storage import digest_of, digest_of_file

AXES = ("model", "width", "data", "method", "score", "pattern", "sparsity", "seed")
_KEY = 16
"""Hexadecimal digits of a key."""
_LATER = {"method": "prune"}
"""Axes that came after the first stores, with the value that those stores meant: it does not change a key."""
_LATER_SETTINGS = (
    *("samples", "distil", "gradual", "labels", "metric", "second_batch", "integers", "peers", "examples"),
    "optimizer",
)
"""The same for settings; their default values do not change a key."""
_SPREAD = ("prune", "gradual", "imp")
"""Methods that spread their zeros by the setting `allocation` and cannot measure damage."""
_ASIDE = ("data_dir", "keep")
"""Settings that say where things lie, and decide no result."""


@dataclass(frozen=True)
class Cell:
    """One pruning of one network: what is asked for, and nothing that was measured.

    Example:
        >>> cell = prunus.study.Cell("fc:64-32-10", 1.0, "digits", "magnitude", "unstructured", 0.9, seed=0)
        >>> cell.title
        'fc:64-32-10 digits magnitude unstructured 0.9 seed 0'
        >>> prunus.study.Cell.from_dict(cell.to_dict()).key == cell.key
        True
    """

    model: str
    width: float
    data: str
    score: str
    pattern: str
    sparsity: float
    seed: int
    settings: Settings = field(default_factory=Settings)
    method: str = "prune"

    @property
    def key(self) -> str:
        """Hash of everything that decides the result."""
        record, plain = self.to_dict(), dataclasses.asdict(Settings())
        for name, value in _LATER.items():
            if record[name] == value:
                del record[name]
        for name in _LATER_SETTINGS:
            if record["settings"][name] == plain[name]:
                del record["settings"][name]
        return _hash(record | {"weights_hash": content_hash(self.settings.weights)})

    @property
    def base(self) -> str:
        """Key of the dense network the cell starts from; cells that differ only in the pruning share it."""
        wanted = ("weights", "length", "lr", "batch_size", "augment", "kernel")
        settings = {name: getattr(self.settings, name) for name in wanted}
        if self.settings.weights:
            settings |= {"length": "", "lr": 0, "batch_size": 0, "augment": ""}
        if self.settings.metric != "accuracy":
            settings["metric"] = self.settings.metric
        if self.settings.peers:  # measured with the dense network
            settings |= {name: getattr(self.settings, name) for name in ("peers", "batch", "second_batch")}
        seed = 0 if self.settings.weights or self.model.startswith("hf:") else self.seed  # nothing is drawn
        network = {"model": self.model, "width": self.width, "data": self.data, "seed": seed}
        return _hash(network | settings | {"weights_hash": content_hash(self.settings.weights)})

    @property
    def title(self) -> str:
        """The cell in one line, for people."""
        how = self.score if self.method == "prune" else self.method
        return f"{self.network} {self.data} {how} {self.pattern} {self.sparsity:g} seed {self.seed}"

    @property
    def network(self) -> str:
        """The model's name with its width."""
        return self.model if self.width == 1 else f"{self.model} width {self.width:g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, without what does not decide the result."""
        record = dataclasses.asdict(self)
        for name in _ASIDE:
            del record["settings"][name]
        record["settings"]["exclude"] = list(self.settings.exclude)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], data_dir: str = "") -> Cell:
        """The inverse of `to_dict`; where the data lies is given anew.

        Args:
            record: what `to_dict` gave.
            data_dir: folder of the public data sets; `PRUNUS_DATA` is used if it is empty.

        Returns:
            The cell.
        """
        settings = dict(record["settings"])
        settings["exclude"] = tuple(settings["exclude"])
        axes = {name: record.get(name, _LATER.get(name)) for name in AXES}
        return cls(**axes, settings=Settings(**settings, data_dir=data_dir))


@dataclass(frozen=True)
class Grid:
    """The product of its axes, without combinations that do not exist; `left_out` says which those are.

    A pattern N:M has one sparsity of its own, and some methods have a score or a pattern of their own: each of these
    adds one cell for each other choice.

    Example:
        >>> patterns = ("unstructured", "2:4")
        >>> grid = prunus.study.Grid(model=("fc:64-32-10",), pattern=patterns, sparsity=(0.5, 0.9), seed=(0,))
        >>> [(cell.pattern, cell.sparsity) for cell in grid.cells()]
        [('unstructured', 0.5), ('unstructured', 0.9), ('2:4', 0.5)]
    """

    model: tuple[str, ...]
    data: tuple[str, ...] = ("digits",)
    width: tuple[float, ...] = (1.0,)
    method: tuple[str, ...] = ("prune",)
    score: tuple[str, ...] = ("magnitude",)
    pattern: tuple[str, ...] = ("unstructured",)
    sparsity: tuple[float, ...] = (0.5, 0.8, 0.9)
    seed: tuple[int, ...] = (0, 1, 2)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        from prunus.pruning import allocations, patterns, scores
        from prunus.study import methods

        for axis in AXES:
            values = getattr(self, axis)
            if not values:
                raise BadInput(f"The grid is empty: give at least one value for {axis}.")
            object.__setattr__(self, axis, tuple(dict.fromkeys(values)))
        for value in self.sparsity:
            check_sparsity(value, " of the grid")
        for name in self.score:
            scores.parse(name)
        for name in self.pattern:
            patterns.parse(name)
        for name in self.method:
            methods.parse(name)
        known = (*allocations.names(), "damage")
        if self.settings.allocation not in known:
            raise UnknownName("allocation", self.settings.allocation, known)
        if not self.cells():
            raise BadInput(f"The grid has no cell that can run: {' '.join(self.left_out())}")

    def cells(self) -> list[Cell]:
        """Every cell once, those that share a dense network next to each other."""
        from prunus.study import methods

        found: dict[Cell, None] = {}
        axes = (self.model, self.width, self.data, self.seed, self.method, self.score, self.pattern)
        for model, width, data, seed, method, score, pattern in product(*axes):
            if methods.misfit(method, pattern):
                continue
            chosen, settings = methods.score_of(method, score), self._settings(method)
            for sparsity in _sparsities(pattern, self.sparsity):
                cell = Cell(model, float(width), data, chosen, pattern, sparsity, int(seed), settings, method)
                found[cell] = None
        return list(found)

    def _settings(self, method: str) -> Settings:
        """The settings of a method's cells: where it cannot measure damage, they say what it takes instead."""
        from prunus.study import methods

        if self.settings.allocation == "damage" and methods.parse(method)[0] in _SPREAD:
            return dataclasses.replace(self.settings, allocation="uniform")
        return self.settings

    def left_out(self) -> list[str]:
        """What the grid does not run, or runs in another way, of what was asked for; one sentence each.

        Example:
            >>> Grid(model=("fc:64-32-10",), pattern=("2:4",), sparsity=(0.5, 0.9)).left_out()
            ['2:4 has the sparsity 0.5 only: 0.9 is left out for it.']
        """
        from prunus.pruning.patterns import fixed_sparsity
        from prunus.study import methods

        found = []
        for pattern in self.pattern:
            fixed = fixed_sparsity(pattern)
            others = [] if fixed is None else [f"{value:g}" for value in self.sparsity if abs(value - fixed) > 1e-9]
            if others:
                verb = "is" if len(others) == 1 else "are"
                found.append(f"{pattern} has the sparsity {fixed:g} only: {', '.join(others)} {verb} left out for it.")
        found += [
            reason
            for method, pattern in product(self.method, self.pattern)
            if (reason := methods.misfit(method, pattern))
        ]
        plain = [method for method in self.method if self._settings(method) != self.settings]
        if plain:
            found.append(f"Only reconstruct measures damage: the allocation is uniform for {', '.join(plain)}.")
        return found

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Grid:
        """A grid from a TOML file: the axes at the top (one value or a list), the rest under [settings].

        Args:
            path: the file.

        Returns:
            The grid.

        Raises:
            BadFile: if the file cannot be read or is not TOML.
        """
        try:
            content = tomllib.loads(Path(path).read_text("utf8"))
        except OSError as error:
            raise BadFile(f"The study {path} cannot be read: {error.strerror or error}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadFile(f"The study {path} is not TOML: {error}.") from None
        return cls.from_mapping(content, str(path))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], where: str = "the study") -> Grid:
        """A grid from axes and settings by name; every value is checked against the type of its field.

        Args:
            content: values by the names of axes, and "settings" with a table of its own.
            where: what an error calls the place these come from.

        Returns:
            The grid.

        Raises:
            BadInput: if a name or a value is wrong, or no model is named.
        """
        given = dict(content)
        settings = given.pop("settings", {})
        if not isinstance(settings, Mapping):
            raise BadInput(f"In {where}, settings must be a table of names and values.")
        if "model" not in given:
            raise BadInput(f"In {where} the axis model is missing: name at least one network.")
        axes = {name: _values(cls, name, value, where) for name, value in given.items()}
        fields = {name: _value(Settings, name, value, where) for name, value in settings.items()}
        return cls(**axes, settings=Settings(**fields))


def _sparsities(pattern: str, asked: Iterable[float]) -> list[float]:
    from prunus.pruning.patterns import fixed_sparsity

    fixed = fixed_sparsity(pattern)
    return [float(value) for value in asked] if fixed is None else [fixed]


def _values(owner: type, name: str, value: Any, where: str) -> tuple[Any, ...]:
    if name not in AXES:
        raise UnknownName(f"axis in {where}", name, (*AXES, "settings"))
    kind = typing.get_args(typing.get_type_hints(owner)[name])[0]
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_checked(item, kind, name, where) for item in items)


def _value(owner: type, name: str, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(owner)
    if name not in hints:
        raise UnknownName(f"setting in {where}", name, hints)
    if typing.get_origin(hints[name]) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_checked(item, str, name, where) for item in items)
    return _checked(value, hints[name], name, where)


def _checked(value: Any, kind: type, name: str, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        words = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
        raise BadInput(f"In {where}, {name} must be {words.get(kind, kind)}, not {value!r}.")
    return value


def _hash(record: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(record, sort_keys=True))[:_KEY]


_CONTENTS: dict[tuple[str, int, int], str] = {}


def content_hash(path: str) -> str:
    """Hash of a weights file's bytes: a file that was trained again is another network."""
    if not path:
        return ""
    try:
        state = os.stat(path)
        known = (os.path.realpath(path), state.st_mtime_ns, state.st_size)
        if known not in _CONTENTS:
            _CONTENTS[known] = digest_of_file(path)
    except OSError as error:
        raise BadFile(f"The weights file {path} cannot be read: {error.strerror or error}.") from None
    return _CONTENTS[known]
