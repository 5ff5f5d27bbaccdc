"""A live line while a run goes on: epoch, loss, accuracy, time left. Prints nothing where the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prunus.training.loop import Run


class Silent:
    """Shows nothing."""

    def update(self, run: Run) -> None:
        """Called after every step."""


class Line:
    """A rich progress bar over the steps of the run."""

    def __init__(self, bar: Any, run: Run) -> None:
        self.bar = bar
        self.task = bar.add_task("training", total=run.total, completed=run.step, said="")

    def update(self, run: Run) -> None:
        loss = run.tally.loss / max(run.tally.count, 1.0)
        said = f"epoch {run.step // run.per_epoch + 1}/{-(-run.total // run.per_epoch)}  loss {loss:.4f}"
        if run.tally.counted and run.tally.count:
            said += f"  accuracy {run.tally.right / run.tally.count:.3f}"
        if run.history and run.history[-1].test_accuracy is not None:
            said += f"  test {run.history[-1].test_accuracy:.3f}"
        self.bar.update(self.task, completed=run.step, said=said)


@contextmanager
def display(run: Run) -> Iterator[Silent | Line]:
    """The display to use: `config.progress` decides, else whether standard error is a terminal."""
    wanted = run.config.progress if run.config.progress is not None else sys.stderr.isatty()
    if not wanted or run.rank:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield Line(bar, run)
