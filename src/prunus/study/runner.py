"""Run the cells of a study that are not in the store yet, and keep each as it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prunus.errors import BadFile, BadInput
from prunus.storage import locked, read_tensors
from prunus.study.engines import Engine, Job, LocalEngine, Outcome
from prunus.study.grid import Cell, content_hash
from prunus.study.store import Store

MANY_CELLS = 400
LONG_SECONDS = 2 * 3600.0
PROBE_SECONDS = 5.0
"""Seconds that an estimate spends on building networks; the rest are taken to be alike."""


@dataclass
class Progress:
    """Where a study stands; handed to the display after every change.

    Example:
        >>> progress = prunus.study.Progress(total=10, cached=2, done=3, failed=1)
        >>> progress.left
        4
    """

    total: int
    cached: int = 0
    done: int = 0
    failed: int = 0
    workers: int = 1
    started: float = field(default_factory=time.monotonic)
    running: list[Job] = field(default_factory=list)
    latest: list[Outcome] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.done + self.cached} of {self.total} cells done"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.cached} were there already"] if self.cached else []
        return f"{', '.join(parts)}, {words(self.elapsed)}"

    __repr__ = __str__

    @property
    def left(self) -> int:
        """Cells that have not ended yet."""
        return self.total - self.cached - self.done - self.failed

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def time_left(self) -> float | None:
        """Seconds until the end, from the pace since the start; None before the first cell has ended."""
        ended = self.done + self.failed
        return self.elapsed / ended * self.left if ended else None


def run_study(
    cells: Sequence[Cell],
    folder: Path,
    *,
    engine: Engine | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run what is missing of these cells; results go to `folder`/study.sqlite as they arrive.

    An interrupt stops the workers and leaves everything that has ended in the store. A second process that runs a
    study in the same folder is refused.

    Args:
        cells: what is wanted, usually `Grid(...).cells()`; those that the folder holds already do not run again.
        folder: where the results and the dense networks go; it is made where it does not exist.
        engine: where the cells run; None takes one process for each core of this machine. It is closed at the end.
        show: called with the progress after every change.

    Returns:
        The progress at the end: how many cells are done, were there already, or failed.

    Raises:
        BadInput: There is no cell, the folder cannot be written, or another process runs a study in it.

    Example:
        >>> from pathlib import Path
        >>> little = prunus.study.Settings(length="1ep", certify=0, labels=0, held_out=0, kernel=0, compress=False)
        >>> cells = prunus.study.Grid(model=("fc:64-8-10",), sparsity=(0.5,), seed=(0,), settings=little).cells()
        >>> prunus.study.run_study(cells, Path("runs"), engine=prunus.study.LocalEngine(workers=1))
        1 of 1 cells done, ...
    """
    if not cells:
        raise BadInput("The study is empty: give at least one model, pattern, sparsity and seed.")
    chosen = engine or LocalEngine()
    with contextlib.closing(chosen), locked(folder, "study"), Store(folder, create=True) as store:
        try:
            return _Run(list(cells), store, chosen, show or (lambda _: None)).go()
        finally:
            store.settle()


class _Run:
    def __init__(self, cells: list[Cell], store: Store, engine: Engine, show: Callable[[Progress], None]) -> None:
        self.store, self.engine, self.show = store, engine, show
        # Named once: the file of given weights, which is a part of the names, may change while the study runs.
        self.keys = {cell: cell.key for cell in cells}
        self.base_of = {cell: cell.base for cell in cells}
        finished = store.done()
        self.pending = [cell for cell in cells if self.keys[cell] not in finished]
        self.progress = Progress(len(cells), cached=len(cells) - len(self.pending), workers=engine.slots)
        self.bases = store.bases()
        self.folder = store.path.parent / "bases"
        self.waiting: dict[str, list[Cell]] = {}
        self.whole: set[str] = set()
        self.given = {path: content_hash(path) for path in {cell.settings.weights for cell in cells}}

    def go(self) -> Progress:
        for outcomes in self._outcomes():
            for outcome in outcomes:
                self._keep(outcome)
            self.progress.running = self.engine.running()
            self.show(self.progress)
        return self.progress

    def _outcomes(self) -> Iterator[list[Outcome]]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be written: {error.strerror}; choose another folder.") from None
        for cell in self.pending:
            self._schedule(cell)
        yield []
        while self.progress.left:
            yield self.engine.wait(0.25)

    def _schedule(self, cell: Cell) -> None:
        """Cells whose dense network is there can run; the others wait for it, and the first asks for it."""
        key = self.base_of[cell]
        file = self.folder / f"{key}.safetensors"
        if self._has(key, file):
            network = self.folder.parent / "networks" / f"{self.keys[cell]}.safetensors" if cell.settings.keep else None
            self.engine.submit(Job("cell", cell, file, self.bases[key], network=network))
        elif key in self.waiting:
            self.waiting[key].append(cell)
        else:
            self.waiting[key] = [cell]
            self.engine.submit(Job("base", cell, file, weights_hash=self.given[cell.settings.weights]))

    def _has(self, key: str, file: Path) -> bool:
        """Whether the dense network is there and whole; a damaged one is made again."""
        if key not in self.whole and key in self.bases:
            try:
                read_tensors(file, "weights")
            except BadFile:
                return False
            self.whole.add(key)
        return key in self.whole

    def _keep(self, outcome: Outcome) -> None:
        cell = outcome.job.cell
        if outcome.job.kind == "base":
            base = self.base_of[cell]
            waiting = self.waiting.pop(base)
            if outcome.record is None:
                for other in waiting:
                    self._count(other, Outcome(outcome.job, None, outcome.error, 0.0))
                return
            self.store.add_base(cell, outcome.record, base)
            self.bases[base] = dict(outcome.record)
            for other in waiting:
                self._schedule(other)
            return
        self._count(cell, outcome)

    def _count(self, cell: Cell, outcome: Outcome) -> None:
        names = (self.keys[cell], self.base_of[cell])
        self.store.add(cell, outcome.record, error=outcome.error, seconds=outcome.seconds, names=names)
        if outcome.error:
            self.progress.failed += 1
        else:
            self.progress.done += 1
            self.progress.seconds.append(outcome.seconds)
        self.progress.latest = [*self.progress.latest[-7:], outcome]


def estimate(cells: Sequence[Cell], store: Store | None, workers: int) -> float:
    """Seconds the cells that are missing will take: from cells of the store, else from one batch of each network.

    Args:
        cells: all cells of the study.
        store: results so far; None where there are none.
        workers: how many cells run side by side.

    Returns:
        The seconds.

    Example:
        >>> cells = prunus.study.Grid(model=("fc:64-8-10",), sparsity=(0.5, 0.9), seed=(0,)).cells()
        >>> with prunus.study.Store("first", create=True) as store:
        ...     store.add(cells[0], {"accuracy": 0.9}, seconds=6.0)
        ...     prunus.study.estimate(cells, store, workers=1)
        6.0
    """
    finished = store.done() if store else set()
    pending = [cell for cell in cells if cell.key not in finished]
    known = store.seconds() if store else []
    if known:
        return len(pending) * sum(known) / len(known) / workers
    # Cells of one network, data set and settings take the same time: one probe for all of them, whatever their seeds.
    alike: dict[Cell, list[str]] = {}
    for cell in pending:
        same = replace(cell, score="magnitude", pattern="unstructured", sparsity=0.5, seed=0)
        alike.setdefault(same, []).append(cell.base)
    total, probed, started = 0.0, 0, time.monotonic()
    for cell, bases in alike.items():
        if probed and time.monotonic() - started > PROBE_SECONDS:
            total *= len(pending) / probed  # the others are taken to be like those seen
            break
        batch, train, test = _probe(cell)
        epochs = 0 if cell.settings.weights else _epochs(cell.settings.length, train)
        total += len(set(bases)) * 3 * batch * train * epochs
        tuned = 3 * batch * train * _epochs(cell.settings.finetune, train)
        total += len(bases) * (tuned + 4 * batch * test + 2.0)
        probed += len(bases)
    return total / workers


def _probe(cell: Cell) -> tuple[float, float, float]:
    """Seconds of one forward batch, and how many batches the training and test sets have."""
    import torch

    from prunus.study.networks import build, call, first_inputs, load
    from prunus.training.metrics import require_fit
    from prunus.training.objective import check_fits

    model, train, test = build(cell).eval(), load(cell, "train"), load(cell, "test")
    require_fit(cell.settings.metric, model, test)
    inputs = first_inputs(test, cell.settings.batch_size)
    if isinstance(inputs, torch.Tensor):
        check_fits(model, inputs)
    with torch.no_grad():
        start = time.perf_counter()
        call(model, inputs)
    seconds = time.perf_counter() - start
    return seconds, len(train) / cell.settings.batch_size, len(test) / min(cell.settings.batch_size, len(test))


def _epochs(length: str, per_epoch: float) -> float:
    from prunus.contract import Duration

    duration = Duration.parse(length)
    return float(duration.amount) / (1 if duration.unit == "ep" else max(per_epoch, 1.0))


def check_size(cells: Sequence[Cell], store: Store | None, workers: int, agreed: bool) -> float:
    """The estimated seconds; refuses a study that is very large unless that was agreed to.

    Args:
        cells: all cells of the study.
        store: results so far; None where there are none.
        workers: how many cells run side by side.
        agreed: whether a very large study was agreed to.

    Returns:
        The seconds that the missing cells will take, as `estimate` says.

    Raises:
        BadInput: There are more than 400 cells or they would take more than two hours, and that was not agreed to.

    Example:
        >>> cells = prunus.study.Grid(model=("fc:64-8-10",), sparsity=(0.5, 0.9), seed=(0,)).cells()
        >>> with prunus.study.Store("second", create=True) as store:
        ...     store.add(cells[0], {"accuracy": 0.9}, seconds=6.0)
        ...     prunus.study.check_size(cells, store, workers=2, agreed=False)
        3.0
    """
    seconds = estimate(cells, store, workers) if cells else 0.0
    if not agreed and (len(cells) > MANY_CELLS or seconds > LONG_SECONDS):
        raise BadInput(
            f"This study has {len(cells):,} cells and would take about {words(seconds)} with {workers} "
            f"worker{'s' if workers > 1 else ''}: add --yes to run it, or make the grid smaller."
        )
    return seconds


def words(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
