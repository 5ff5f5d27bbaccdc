"""One line that says which layer is being worked on and how long it will take. Prints nothing
where the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerProgress:
    """`update(said)` counts one more layer as done."""

    update: Callable[[str], None]


@contextmanager
def progress(total: int, wanted: bool | None) -> Iterator[LayerProgress]:
    """A live line over `total` layers if `wanted`, or if that is None and standard error is a terminal."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield LayerProgress(lambda said: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(20),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("layers", total=total, said="")
        yield LayerProgress(lambda said: bar.update(task, advance=1, said=said))
