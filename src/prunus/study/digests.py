"""A digest for each row of a study: a damaged file is refused, never read with other numbers than were written.

SQLite has no checksums of its own. The table `digests` holds one for each row of the three tables of results, so that a
changed, a lost and an added row are all seen. Studies of the first format have none; they get them when they go on.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from prunus.storage import digest_of

SCHEMA = """CREATE TABLE IF NOT EXISTS digests (
  kind TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (kind, key))"""
# What is read of each table, its key first.
FIELDS = {
    "cells": ("key", "base", "status", "config", "record", "error", "seconds"),
    "bases": ("key", "config", "record"),
    "reproductions": ("id", "title", "source", "rows"),
}


def seal(database: sqlite3.Connection, kind: str, key: str) -> None:
    """Keep the digest of one row; call it in the transaction that writes the row."""
    fields = FIELDS[kind]
    row = database.execute(f"SELECT {', '.join(fields)} FROM {kind} WHERE {fields[0]} = ?", (key,)).fetchone()
    database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (kind, key, _digest(row)))


def seal_all(database: sqlite3.Connection) -> None:
    """Make the digests of all rows anew."""
    database.execute(SCHEMA)
    database.execute("DELETE FROM digests")
    for kind, fields in FIELDS.items():
        for row in database.execute(f"SELECT {', '.join(fields)} FROM {kind}").fetchall():
            database.execute("INSERT INTO digests VALUES (?, ?, ?)", (kind, row[0], _digest(row)))


def rows(database: sqlite3.Connection, kind: str, order: str = "") -> list[sqlite3.Row]:
    """All rows of one table, as they were written.

    Raises:
        ValueError: A row is not what was written, or one was lost.
    """
    found = database.execute(f"SELECT {', '.join(FIELDS[kind])} FROM {kind} {order}").fetchall()
    if not _has_digests(database):
        return found
    kept = dict(database.execute("SELECT key, digest FROM digests WHERE kind = ?", (kind,)).fetchall())
    for row in found:
        if kept.pop(row[0], None) != _digest(row):
            raise ValueError(f"a row of {kind} is not what was written")
    if kept:
        raise ValueError(f"a row of {kind} is lost")
    return found


def _has_digests(database: sqlite3.Connection) -> bool:
    """Either sign is enough, so that damage to one of them does not switch the check off."""
    (version,) = database.execute("SELECT value FROM meta WHERE name = 'version'").fetchone() or (0,)
    return int(version) >= 2 or bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = 'digests'").fetchone())


def _digest(row: Any) -> str:
    return digest_of(json.dumps([repr(value) if isinstance(value, bytes) else value for value in row]))
