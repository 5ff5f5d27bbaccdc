"""What commands print: tables for people on standard output, one JSON document for machines, progress on the side."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def console() -> Console:
    """Where people read. Wide enough for a table when the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def print_json(record: Any) -> None:
    """One JSON document on standard output; numbers that JSON cannot hold become null."""
    print(json.dumps(_plain(record), indent=1, default=str))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "", left: Sequence[int] = (0,)
) -> None:
    """A table; columns named in `left` are text, the others numbers aligned to the right."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        text = number in left  # which is folded where it does not fit: a name must stay whole to be copied
        table.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for row in rows:
        table.add_row(*(show(cell) for cell in row))
    console().print(table)


def show(value: Any) -> str:
    """A cell as people like to read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@contextlib.contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Any]:
    """A progress bar on standard error; yields a function to call with the number of steps done."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda steps=1, text=None: bar.update(task, advance=steps, **({"description": text} if text else {}))
