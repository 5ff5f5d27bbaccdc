"""What commands print: tables for people on standard output, one JSON document for machines, progress on the side.

Everything is printed as text: brackets are brackets, never markup, and bytes that would steer the terminal are shown.
Tables fit the width that `COLUMNS` or the terminal gives: names stay whole as long as they can, numbers are cut first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from prunus import cli
from prunus.cli import visible

_GAP = 2
_PIPE = 10_000
"""Width of a pipe: as wide as the widest line."""


class _Plain(Console):
    """A console that takes what it is given as plain text."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(visible(one) if isinstance(one, str) else one for one in objects), **options)


def console(file: IO[str] | None = None) -> Console:
    """A console for tables and sentences: standard output unless another file is given."""
    stream = file or sys.stdout
    options: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "quiet": cli.QUIET}
    return _Plain(file=file, width=_width(stream), **options)


def _width(stream: IO[str]) -> int | None:
    """`COLUMNS` where it is set; else the terminal's own width (None), or no limit in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return None if stream.isatty() else _PIPE


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
    """A table; columns named in `left` are text, the others numbers aligned to the right.

    Where it is too wide, the last columns of numbers are left out and named below it; then text is folded.
    """
    out = console()
    cells = [[visible(show(cell)) for cell in row] for row in rows]
    shown, widths = fit([visible(name) for name in columns], cells, left, out.width)
    table = Table(title=Text(visible(title)) if title else None, title_justify="left", box=None, pad_edge=False)
    table.padding = (0, _GAP, 0, 0)
    for number in shown:
        text = number in left
        header = Text(visible(columns[number]))
        table.add_column(header, justify="left" if text else "right", width=widths[number], overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[number]) for number in shown))
    out.print(table)
    hidden = [name for number, name in enumerate(columns) if number not in shown]
    if hidden:
        out.print(f"not shown at {out.width} columns: {', '.join(hidden)} (widen the terminal, or use --json)")


def fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], room: int
) -> tuple[list[int], dict[int, int]]:
    """Which columns are shown, and how wide each is, so that all fit `room`.

    Headers wrap between words first. Two columns of numbers stay as long as text can be folded to twelve letters.
    """
    content = [max([1, *(cell_len(row[number]) for row in rows)]) for number in range(len(columns))]
    widths = {number: max(content[number], cell_len(name)) for number, name in enumerate(columns)}
    shown = list(range(len(columns)))

    def excess() -> int:
        return sum(widths[number] for number in shown) + _GAP * (len(shown) - 1) - room

    def drop(keep: int) -> None:
        numbers = [number for number in shown if number not in left]
        while excess() > 0 and len(numbers) > keep:
            shown.remove(numbers.pop())

    def fold(least: int) -> None:
        texts = [number for number in shown if number in left] or shown
        while excess() > 0 and max(widths[number] for number in texts) > least:
            # The widest gives way, and of equals the last: the first column is the name.
            widths[max(texts, key=lambda number: (widths[number], number))] -= 1

    if excess() > 0:
        for number, name in enumerate(columns):
            widths[number] = max([content[number], *(cell_len(word) for word in name.split())])
    drop(2)
    fold(12)
    drop(0 if any(number in left for number in shown) else 1)
    fold(1)
    return shown, widths


def show(value: Any) -> str:
    """A cell, formatted for people."""
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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=quiet or cli.QUIET or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(visible(description), total=total)
        yield lambda steps=1, text=None: bar.update(task, advance=steps, **({"description": text} if text else {}))
