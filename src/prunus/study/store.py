"""Where a study is kept: one SQLite file, one row for each cell, readable by anything that reads SQLite.

Tables: `meta` (version of the format), `bases` (a dense network: key, config, record), `cells` (key, base, status,
config, record, error, seconds), `reproductions` (tables of the papers), `digests` (one for each row of these three).
Configs and records are JSON; the view `results` shows them as plain columns. Only the process that runs the study
writes; each cell is one transaction in the write-ahead log, so a kill loses at most the cells that were running.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prunus.errors import BadFile, BadInput, MissingExtra, PrunusError, UnknownName
from prunus.storage import write
from prunus.study.digests import rows, seal, seal_all
from prunus.study.grid import AXES, Cell

VERSION = 2
NAME = "study.sqlite"
CONFIG = AXES
MEASURED = (
    "realised_sparsity",
    "accuracy_dense",
    "accuracy_pruned",
    "accuracy",
    "quality_dense",
    "quality",
    "quality_int8",
    "quality_integers",
    "loss",
    "bound",
    "attained",
    "ball_bound",
    "ball_attained",
    "held_out_bound",
    "held_out_probability",
    "agreement",
    "agreement_integers",
    "labels_proved",
    "energy_removed",
    "energy_predicted",
    "mac_dense",
    "mac_kept",
    "time_dense_us",
    "time_us",
    "speedup",
    "speedup_second",
    "speedup_integers",
    "speedup_integers_second",
    "faster_than_dense",
    "faster_than_dense_second",
    "faster_than_int8",
    "faster_than_int8_second",
    "bytes_dense",
    "bytes",
    "bytes_integers",
    "bytes_memory",
    "making_seconds",
    "kernel_condition_dense",
    "kernel_condition",
    "kernel_effective_rank",
    "kernel_cosine",
)
COLUMNS = ("key", "status", *CONFIG, *MEASURED, "seconds", "error")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS bases (key TEXT PRIMARY KEY, config TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cells (
  key TEXT PRIMARY KEY, base TEXT NOT NULL, status TEXT NOT NULL, config TEXT NOT NULL,
  record TEXT NOT NULL, error TEXT, seconds REAL NOT NULL, finished TEXT NOT NULL DEFAULT (datetime('now'))
);
CREATE TABLE IF NOT EXISTS reproductions (id TEXT PRIMARY KEY, title TEXT NOT NULL, source TEXT NOT NULL,
  rows TEXT NOT NULL, finished TEXT NOT NULL DEFAULT (datetime('now'))
);
"""


@dataclass(frozen=True)
class Result:
    """One finished cell as it lies in the store; `status` is "done" or "failed".

    Example:
        >>> cell = prunus.study.Grid(model=("fc:64-32-10",)).cells()[0]
        >>> with prunus.study.Store("one", create=True) as store:
        ...     store.add(cell, {"accuracy": 0.9}, seconds=2.0)
        ...     result = store.results()[0]
        >>> result.status, result.row["accuracy"]
        ('done', 0.9)
    """

    key: str
    base: str
    status: str
    config: Mapping[str, Any]
    record: Mapping[str, Any]
    error: str | None
    seconds: float

    @property
    def row(self) -> dict[str, Any]:
        """Everything that is one number or one word, by column."""
        flat = {"key": self.key, "status": self.status, "seconds": self.seconds, "error": self.error}
        flat |= {name: self.config.get(name, "prune") for name in CONFIG}
        flat |= {name: self.record.get(name) for name in MEASURED}
        return {name: flat[name] for name in COLUMNS}


class Store:
    """The results of a study. `path` is the file, or a folder that holds (or will hold) `study.sqlite`.

    Example:
        >>> cell = prunus.study.Grid(model=("fc:64-32-10",)).cells()[0]
        >>> with prunus.study.Store("runs", create=True) as store:
        ...     store.add(cell, {"accuracy": 0.9})
        ...     print(store.rows(("model", "sparsity", "accuracy")))
        [{'model': 'fc:64-32-10', 'sparsity': 0.5, 'accuracy': 0.9}]
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        given = Path(path)
        self.path = given if given.suffix in (".sqlite", ".db") else given / NAME
        if not create and not self.path.is_file():
            raise BadFile(f"There is no study at {self.path}: run prunus study first, or name its folder.")
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._readable():
                self._db = self._connect(create)
                self._prepare(create)
        except OSError as error:
            raise BadInput(
                f"The study {self.path} cannot be written: {error.strerror or error}; choose another folder."
            ) from None
        except sqlite3.DatabaseError as error:
            raise _refusal(self.path, error) from None

    def _connect(self, create: bool) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=30)
        database.row_factory = sqlite3.Row
        try:
            database.execute("SELECT name FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            log = Path(f"{self.path}-wal")
            if create or (log.is_file() and log.stat().st_size):
                raise
            # A study on a read-only mount that was not closed well: nothing changes there, so no lock is needed.
            database.close()
            database = sqlite3.connect(f"{self.path.resolve().as_uri()}?immutable=1", uri=True)
            database.row_factory = sqlite3.Row
        return database

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Whatever a damaged file makes the readers raise, in one sentence."""
        try:
            yield
        except PrunusError:
            raise
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _refusal(self.path, error) from None

    def _prepare(self, create: bool) -> None:
        tables = {row[0] for row in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"meta", "cells"} <= tables:
            raise BadFile(f"{self.path} is a database of something else: name another folder for the study.")
        version = 0
        if tables:
            found = self._db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            version = int(found[0]) if found else 0
            if version > VERSION:
                raise BadFile(
                    f"The study {self.path} was written by a newer version of Prunus (format {version}, this one reads "
                    f"up to {VERSION}): update Prunus, or start a new study in another folder."
                )
        if create:
            self._db.execute("PRAGMA journal_mode = WAL")
            with self._db:
                self._db.executescript(_SCHEMA)
                if version < VERSION:  # a new study, or one of the first format, which had no digests
                    self._db.execute("BEGIN")
                    seal_all(self._db)
                    self._db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (str(VERSION),))
                self._db.execute("DROP VIEW IF EXISTS results")
                self._db.execute(_view())

    # ---------------------------------------------------------------------------------------------------------- writing

    def add(
        self,
        cell: Cell,
        record: Mapping[str, Any] | None = None,
        *,
        error: str | None = None,
        seconds: float = 0.0,
        names: tuple[str, str] | None = None,
    ) -> None:
        """Keep what a cell gave; replaces an earlier failure of the same cell. `names`: its key and its base's.

        Args:
            cell: what was asked for.
            record: what was measured.
            error: one line, if it failed.
            seconds: how long it took.
            names: key of the cell and of its dense network, where they are known already.
        """
        row = (*(names or (cell.key, cell.base)), "failed" if error else "done", json.dumps(cell.to_dict()))
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO cells (key, base, status, config, record, error, seconds) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, json.dumps(plain(record or {})), error, seconds),
            )
            seal(self._db, "cells", row[0])

    def add_base(self, cell: Cell, record: Mapping[str, Any], key: str | None = None) -> None:
        """Keep what is known about the dense network this cell starts from.

        Args:
            cell: any cell that starts from the network.
            record: what was measured.
            key: of the dense network, where it is known already.
        """
        with self._db:
            values = (key or cell.base, json.dumps(cell.to_dict()), json.dumps(plain(record)))
            self._db.execute("INSERT OR REPLACE INTO bases VALUES (?, ?, ?)", values)
            seal(self._db, "bases", values[0])

    def add_reproduction(self, id: str, title: str, source: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep a table of a paper, published numbers beside ours; a later run takes its place.

        Args:
            id: as in `prunus reproduce --list`.
            title: what it shows.
            source: paper and table.
            rows: the table.
        """
        with self._db:
            values = (id, title, source, json.dumps(plain(list(rows))))
            self._db.execute(
                "INSERT OR REPLACE INTO reproductions (id, title, source, rows) VALUES (?, ?, ?, ?)", values
            )
            seal(self._db, "reproductions", id)

    # ---------------------------------------------------------------------------------------------------------- reading

    def reproductions(self) -> list[dict[str, Any]]:
        """The kept tables of the papers: id, title, source, rows."""
        with self._readable():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'reproductions'").fetchone():
                return []
            found = rows(self._db, "reproductions", "ORDER BY id")
            return [dict(row) | {"rows": json.loads(row["rows"])} for row in found]

    def done(self) -> set[str]:
        """Keys of the cells that have finished well; failed ones run again."""
        with self._readable():
            return {row["key"] for row in rows(self._db, "cells") if row["status"] == "done"}

    def results(self, keys: Iterable[str] | None = None) -> list[Result]:
        """Finished cells in the order of their configuration, whatever the order they ran in.

        Args:
            keys: which cells; None takes all.

        Returns:
            The cells, failed ones too.
        """
        wanted = None if keys is None else set(keys)
        with self._readable():
            found = [_result(row) for row in rows(self._db, "cells")]
        chosen = [result for result in found if wanted is None or result.key in wanted]
        return sorted(chosen, key=lambda result: tuple(_rank(result.config.get(name, "prune")) for name in CONFIG))

    def bases(self) -> dict[str, dict[str, Any]]:
        """Records of the dense networks by key."""
        with self._readable():
            return {row["key"]: _table(row["record"]) for row in rows(self._db, "bases")}

    def seconds(self) -> list[float]:
        """How long the finished cells took."""
        with self._readable():
            return [float(row["seconds"]) for row in rows(self._db, "cells") if row["status"] == "done"]

    def rows(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """One flat row for each cell.

        Args:
            columns: which columns; None takes all.

        Returns:
            The rows, in the order of `results`.
        """
        chosen = check_columns(columns)
        return [{name: result.row[name] for name in chosen} for result in self.results()]

    # ---------------------------------------------------------------------------------------------------------- export

    def export(self, path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Path:
        """Write the rows as .csv or .parquet, by the ending of the name.

        Args:
            path: the file to write.
            columns: which columns; None takes all.

        Returns:
            The path.
        """
        target = check_export(path)
        rows = self.rows(columns)
        if target.suffix == ".csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, check_columns(columns), lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: as_text(value) for name, value in row.items()} for row in rows)
            return write(target, text.getvalue())
        return _write_parquet(target, rows)

    def settle(self) -> None:
        """Leave one file that can be read from a read-only mount; what a reader holds open is left as it is."""
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA busy_timeout = 200")
            self._db.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(value: Any) -> Any:
    """The same as JSON can hold it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, or all; a name that does not exist is refused."""
    for name in columns or ():
        if name not in COLUMNS:
            raise UnknownName("column of a study", name, COLUMNS)
    return tuple(columns) if columns else COLUMNS


def check_export(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that could not be written after a long run."""
    target = Path(path)
    if target.suffix not in (".csv", ".parquet"):
        raise BadInput(f"{target} is neither .csv nor .parquet: the ending says which format to write.")
    if target.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "parquet", f"Writing {target.name}")
    if target.is_dir():
        raise BadInput(f"{target} is a folder: name a file in it.")
    if not target.resolve().parent.is_dir():
        raise BadInput(f"{target} cannot be written: there is no folder {target.parent}; make it, or choose another.")
    return target


def as_text(value: Any) -> Any:
    """A cell of a CSV file that spreadsheets show as it is: texts that they would take for a formula get a quote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _write_parquet(target: Path, rows: list[dict[str, Any]]) -> Path:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", f"Writing {target.name}") from None
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return write(target, sink.getvalue())


def _refusal(path: Path, error: Exception) -> BadInput:
    """One sentence for an error of SQLite."""
    text = " ".join((f"{error} is missing" if isinstance(error, KeyError) else str(error)).split())[:200]
    if "readonly" in text or "unable to open" in text:
        return BadInput(f"The study {path} cannot be written: {text}; choose another folder.")
    if "locked" in text:
        return BadInput(f"The study {path} is in use by another process: wait for it, or stop it.")
    return BadFile(f"{path} is no study of Prunus or is damaged ({text}): name another folder.")


def _rank(value: Any) -> tuple[str, Any]:
    return ("number", value) if isinstance(value, (int, float)) else ("text", value)


def _result(row: sqlite3.Row) -> Result:
    config, record = _table(row["config"]), _table(row["record"])
    if any(not isinstance(config[name], (str, int, float)) for name in CONFIG):
        raise ValueError(f"the configuration of the cell {row['key']!r} is no list of names and numbers")
    return Result(row["key"], row["base"], row["status"], config, record, row["error"], float(row["seconds"]))


def _table(text: Any) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("a record is no table")
    return found


def _view() -> str:
    config = ", ".join(f"json_extract(config, '$.{name}') AS {name}" for name in CONFIG)
    measured = ", ".join(f"json_extract(record, '$.{name}') AS {name}" for name in MEASURED)
    return f"CREATE VIEW results AS SELECT key, status, {config}, {measured}, seconds, error FROM cells"
