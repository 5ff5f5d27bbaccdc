from __future__ import annotations

import csv
import math
import os
import sqlite3
from pathlib import Path

import pytest

from prunus.errors import BadFile, BadInput, MissingExtra, UnknownName
from prunus.study import COLUMNS, Store
from prunus.study.groups import grouped, pareto
from support.studies import tiny


def filled(folder: Path) -> Store:
    store = Store(folder, create=True)
    for cell in tiny(pattern=("unstructured", "balanced:16"), seed=(0, 1)):
        fast = 2.0 if cell.pattern == "balanced:16" else 1.0
        store.add(cell, {"accuracy": 0.9 + 0.01 * cell.seed, "bound": math.inf, "speedup": fast}, seconds=1.5)
    return store


def test_one_row_for_each_cell_and_failures_run_again(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        cell = tiny(pattern=("2:4",))[0]
        store.add(cell, error="It did not work.")
        rows = store.rows()
        assert len(rows) == 5
        assert list(rows[0]) == list(COLUMNS)
        assert len(store.done()) == 4
        assert [row["error"] for row in rows if row["status"] == "failed"] == ["It did not work."]
        store.add(cell, {"accuracy": 0.5})
        assert len(store.rows()) == len(store.done()) == 5
    with Store(tmp_path) as again:
        assert again.rows(["accuracy"]) == [{"accuracy": row["accuracy"]} for row in again.rows()]
        assert all(row["bound"] is None for row in again.rows()), "numbers that JSON cannot hold become null"


def test_the_view_reads_like_a_table(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with sqlite3.connect(tmp_path / "study.sqlite") as db:
        found = db.execute("SELECT pattern, avg(accuracy) FROM results GROUP BY pattern ORDER BY pattern").fetchall()
    assert [name for name, _ in found] == ["balanced:16", "unstructured"]
    assert found[0][1] == pytest.approx(0.905)


def test_export(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        file = store.export(tmp_path / "rows.csv", ["pattern", "seed", "accuracy"])
        with file.open() as lines:
            rows = list(csv.DictReader(lines))
        assert [row["pattern"] for row in rows] == ["balanced:16"] * 2 + ["unstructured"] * 2
        assert float(rows[1]["accuracy"]) == 0.91
        with pytest.raises(UnknownName, match="accuracy"):
            store.export(tmp_path / "rows.csv", ["acuracy"])
        with pytest.raises(BadInput, match=r"neither \.csv nor \.parquet"):
            store.export(tmp_path / "rows.xlsx")


def test_parquet_holds_the_same_rows_or_names_the_extra(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        try:
            from pyarrow import parquet
        except ImportError:
            with pytest.raises(MissingExtra, match="pyarrow"):
                store.export(tmp_path / "rows.parquet")
            return
        store.export(tmp_path / "rows.parquet")
        table = parquet.read_table(tmp_path / "rows.parquet")
        assert table.to_pylist() == store.rows()
        assert table.column_names == list(COLUMNS)
        kinds = {name: str(table.schema.field(name).type) for name in ("pattern", "sparsity", "seed", "accuracy")}
        assert kinds == {"pattern": "string", "sparsity": "double", "seed": "int64", "accuracy": "double"}
        store.export(tmp_path / "rows.parquet", ["seed", "accuracy"])
        assert parquet.read_table(tmp_path / "rows.parquet").column_names == ["seed", "accuracy"]
        assert not list(tmp_path.glob("*.tmp"))


def test_groups_and_the_front(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        groups = grouped(store.results())
    assert [(group.pattern, len(group.results)) for group in groups] == [("balanced:16", 2), ("unstructured", 2)]
    mean = groups[0].means["accuracy"]
    assert (mean.value, mean.deviation) == (pytest.approx(0.905), pytest.approx(0.01 / math.sqrt(2)))
    assert "bound" not in groups[0].means
    assert [group.pattern for group in pareto(groups)] == ["balanced:16"], "as accurate and faster beats slower"


def test_a_store_of_the_future_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with sqlite3.connect(tmp_path / "study.sqlite") as db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    with pytest.raises(BadFile, match="newer version"):
        Store(tmp_path)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no study"):
        Store(tmp_path)
    (tmp_path / "study.sqlite").write_bytes(b"not a database, but long enough to look at" * 40)
    with pytest.raises(BadFile, match="no study of Prunus"):
        Store(tmp_path, create=True)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(BadFile, match="something else"):
        Store(other)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        Store(tmp_path / "file" / "inside", create=True)
    if os.geteuid() != 0:  # root writes everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(BadInput, match="cannot be written"):
            Store(tmp_path / "new", create=True)


def test_a_write_that_was_cut_off_loses_only_itself(tmp_path: Path) -> None:
    store = filled(tmp_path)
    log = tmp_path / "study.sqlite-wal"
    body = log.read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "study.sqlite").write_bytes((tmp_path / "study.sqlite").read_bytes())
    (copy / "study.sqlite-wal").write_bytes(body[: len(body) - 100])
    store.close()
    with Store(copy) as torn:
        assert len(torn.rows()) == 3
