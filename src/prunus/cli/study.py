"""`prunus study`: many prunings of a network, kept as they end."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from prunus import cli
from prunus.cli import visible
from prunus.cli.options import Json, Seed, flags, flags_of
from prunus.settings.study import Settings

_Many = Parameter(consume_multiple=True, negative="")


@Parameter(name="*", group=Group("What is varied", sort_key=1))
@dataclasses.dataclass(frozen=True)
class Axes:
    """What is varied; values may be separated by commas or spaces."""

    data: Annotated[list[str] | None, _Many, Parameter(help="digits, mnist, cifar10, ... or package.module:name.")] = (
        None
    )
    width: Annotated[list[str] | None, _Many, Parameter(help="Width factors; 1 unless given.")] = None
    method: Annotated[
        list[str] | None,
        _Many,
        Parameter(
            help="prune, reconstruct, distil, reconstruct+distil, gradual, imp, iterand, edge-popup, gem-miner, "
            "multicoated, shrink."
        ),
    ] = None
    score: Annotated[list[str] | None, _Many, Parameter(help="magnitude, random, snip, grasp, synflow, wanda.")] = None
    pattern: Annotated[
        list[str] | None, _Many, Parameter(help="unstructured, balanced:B, N:M, kernels, channels, blocks:RxC.")
    ] = None
    sparsity: Annotated[list[str] | None, _Many, Parameter(help="Fractions of zeros; 0.5,0.8,0.9 unless given.")] = None
    seeds: Annotated[int | None, Parameter(help="How many seeds, counted from --seed; 3 unless given.")] = None


if TYPE_CHECKING:
    Choices = Any
else:
    _OWN = {"weights": Path, "data_dir": Path, "exclude": Annotated[list[str], Parameter(negative="")]}
    _Shared = Parameter(name="*", group=Group("What all cells share", sort_key=2))
    Choices = _Shared(flags_of("Choices", flags(Settings, _OWN)))


@Parameter(name="*", group=Group("Where and how they run", sort_key=3))
@dataclasses.dataclass(frozen=True)
class Running:
    """Where and how the cells run."""

    output: Annotated[Path, Parameter(alias="-o", help="Folder of the study; one that exists is continued.")] = Path(
        "runs/study"
    )
    engine: Annotated[str, Parameter(help="local (processes on this machine) or ray (a cluster).")] = "local"
    workers: Annotated[int | None, Parameter(help="Cells side by side; one for each core unless given.")] = None
    cell_minutes: Annotated[
        float | None, Parameter(help="Stop a cell, or the training of a dense network, after so long; it has failed.")
    ] = None
    yes: Annotated[bool, Parameter(negative="", help="Run a grid that is very large.")] = False
    retime: Annotated[
        bool, Parameter(negative="", help="Run nothing new; time the finished cells again, one after the other.")
    ] = False
    dry_run: Annotated[bool, Parameter(negative="", help="Say how many cells and how long, and stop.")] = False
    export: Annotated[Path | None, Parameter(help="Also write the rows to this .csv or .parquet file.")] = None
    columns: Annotated[list[str] | None, _Many, Parameter(help="Columns to print and export.")] = None


def study(
    *models: Annotated[str, Parameter(help="Zoo names or package.module:factory; several may be named.")],
    grid: Annotated[Path | None, Parameter(help="TOML file with the axes and [settings]; options override it.")] = None,
    axes: Axes | None = None,
    choices: Choices | None = None,
    running: Running | None = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Run many prunings of a network and keep the results.

    Each combination of network, data, method, score, pattern, sparsity and seed is a cell: it is trained or loaded,
    pruned, perhaps fine-tuned, certified, compressed and timed. Cells that are in the folder already are not run
    again, so a study that was stopped goes on where it was. Exit status 1 if a cell failed.

    Example: `prunus study fc:64-64-10 --data digits --length 2ep --pattern unstructured,balanced:16 --sparsity 0.9
    -o runs/digits`, then `prunus report runs/digits`
    """
    from prunus.study import Store, check_size, run_study
    from prunus.study.store import NAME, check_columns, check_export

    running = running or Running()
    columns = _split(running.columns)
    check_columns(columns)
    if running.export is not None:
        check_export(running.export)
    asked = _grid(models, grid, axes, choices, seed)
    cells = asked.cells()
    for sentence in asked.left_out():
        print(f"note: {visible(sentence)}", file=sys.stderr)
    engine = _engine(running.engine, running.workers, running.cell_minutes)
    exists = (running.output / NAME).is_file()
    with Store(running.output) if exists else contextlib.nullcontext() as old:
        seconds = check_size(cells, old, engine.slots, running.yes or running.dry_run)
        missing = len({cell.key for cell in cells} - (old.done() if old else set()))
    if running.dry_run:
        _plan(len(cells), missing, seconds, json)
        return 0
    if running.retime:
        _retime(cells, running.output, json)
        failed = 0
    else:
        try:
            with _display(_names(cells), quiet=json) as show:
                failed = run_study(cells, running.output, engine=engine, show=show).failed if missing else 0
        except KeyboardInterrupt:
            print("prunus: stopped. What has ended is kept: the same command goes on from there.", file=sys.stderr)
            return 130
    with Store(running.output) as store:
        results = store.results({cell.key for cell in cells})
        if running.export is not None:
            store.export(running.export, columns)
    _summary(results, running.output, columns, json)
    return 1 if failed else 0


# ------------------------------------------------------------------------------------------------------- what is asked


def _split(values: list[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def _grid(models: tuple[str, ...], file: Path | None, axes: Axes | None, choices: Choices | None, seed: int) -> Any:
    """The grid of the file, with what the command line says in its place."""
    import tomllib

    from prunus.errors import BadFile, BadInput
    from prunus.study import Grid

    content: dict[str, Any] = {"settings": {}}
    if file is not None:
        Grid.read(file)  # says what is wrong with the file itself
        try:
            content |= tomllib.loads(file.read_text("utf8"))
        except OSError as error:
            raise BadFile(f"The study {file} cannot be read: {error.strerror or error}.") from None
    if models:
        content["model"] = list(models)
    elif "model" not in content:
        raise BadInput("A study needs a network: name one, as in prunus study fc:64-300-100-10, or give --grid.")
    if axes is not None:
        content |= _axes(axes)
    count = axes.seeds if axes else None
    if "seed" not in content or count is not None:
        content["seed"] = list(range(seed, seed + (3 if count is None else count)))
    given = {name: value for name, value in vars(choices or Choices()).items() if value is not None}
    given |= {name: str(given[name]) for name in ("weights", "data_dir") if name in given}
    content["settings"] = content["settings"] | given
    return Grid.from_mapping(content, "the command line")


def _axes(axes: Axes) -> dict[str, Any]:
    from prunus.errors import BadInput

    if axes.seeds is not None and axes.seeds < 1:
        raise BadInput(f"A study needs at least one seed, not {axes.seeds}.")
    for name in ("data", "width", "method", "score", "pattern", "sparsity"):
        if getattr(axes, name) is not None and not _split(getattr(axes, name)):
            raise BadInput(f"The grid is empty: give at least one value for --{name}.")
    found: dict[str, Any] = {name: _split(getattr(axes, name)) for name in ("data", "method", "score", "pattern")}
    for name in ("width", "sparsity"):
        try:
            found[name] = [float(text) for text in _split(getattr(axes, name))]
        except ValueError as error:
            raise BadInput(f"The values of --{name} must be numbers: {error}.") from None
    return {name: values for name, values in found.items() if values}


def _engine(name: str, workers: int | None, minutes: float | None) -> Any:
    from prunus.errors import BadInput, UnknownName
    from prunus.study import LocalEngine

    if name == "local":
        return LocalEngine(workers, minutes)
    if name == "ray" and minutes is not None:
        raise BadInput("A time limit for cells works with --engine local only: leave --cell-minutes out.")
    if name == "ray":
        from prunus.study.cluster import RayEngine

        return RayEngine(workers)
    raise UnknownName("engine", name, ("local", "ray"))


def _retime(cells: list[Any], folder: Path, quiet: bool) -> None:

    from prunus.study import Store
    from prunus.study.retiming import retime

    def show(cell: Any, speedup: float) -> None:
        if not quiet and not cli.QUIET:
            print(f"{cell.title}: {speedup:.2f} x faster", file=sys.stderr, flush=True)

    with Store(folder) as store:
        retime(cells, store, show)


# ------------------------------------------------------------------------------------------------------ what is printed


def _plan(cells: int, missing: int, seconds: float, json: bool) -> None:
    from prunus.cli.output import console, print_json
    from prunus.study.runner import words

    if json:
        print_json({"cells": cells, "missing": missing, "seconds": seconds})
    else:
        console().print(f"{cells} cells, {missing} not run yet: about {words(seconds)}.")


def _names(cells: list[Any]) -> dict[Any, str]:
    """Each cell by what differs between them: "reconstruct balanced:16 0.5"; a line has 80 columns."""
    parts = {c: (c.network, c.data, c.score if c.method == "prune" else c.method, f"seed {c.seed}") for c in cells}
    varied = [len({row[place] for row in parts.values()}) > 1 for place in range(4)]
    found = {}
    for cell, row in parts.items():
        network, data, way, seed = (part if differs else "" for part, differs in zip(row, varied))
        words = (network, data, way, cell.pattern, f"{cell.sparsity:g}", seed)
        found[cell] = " ".join(word for word in words if word)
    return found


@contextlib.contextmanager
def _display(names: dict[Any, str], quiet: bool) -> Iterator[Callable[[Any], None] | None]:
    """A live table on a terminal, a line for each cell elsewhere."""
    if quiet or cli.QUIET:
        yield None
        return
    from rich.live import Live

    from prunus.cli.output import console

    err = console(sys.stderr)
    if err.is_terminal:
        with Live(console=err, refresh_per_second=4, transient=True) as live:
            yield lambda progress: live.update(_live(progress, names))
        return
    shown = 0

    def lines(progress: Any) -> None:
        nonlocal shown
        ended = progress.done + progress.failed
        for outcome in progress.latest[len(progress.latest) - min(ended - shown, len(progress.latest)) :]:
            shown += 1
            place = f"[{progress.cached + shown}/{progress.total}]"
            err.print(f"{place} {names[outcome.job.cell]}: {_said(outcome)}", soft_wrap=True)
        shown = ended

    yield lines


def _said(outcome: Any) -> str:
    if outcome.error:
        return f"failed: {outcome.error}"
    record = outcome.record
    words = [f"{record['accuracy']:.2%}"] if record.get("accuracy") is not None else []
    words += [f"{record['quality']:.4g}"] if not words and record.get("quality") is not None else []
    words += [f"{record['speedup']:.2f} x faster"] if record.get("speedup") else []
    if record.get("bound") is not None and not record.get("vacuous"):
        words.append(f"off by at most {record['bound']:.3g}")
    return ", ".join([*words, f"{outcome.seconds:.1f} s"])


def _live(progress: Any, names: dict[Any, str]) -> Any:
    """The latest cells, those under way, and a bar with the time left."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from prunus.study.runner import words

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="study", title_justify="left")
    for column in ("cell", "result"):
        table.add_column(column, no_wrap=True)
    for outcome in progress.latest:
        said = visible(_said(outcome))
        table.add_row(Text(visible(names[outcome.job.cell])), Text(said, style="red" if outcome.error else ""))
    for job in progress.running:
        what = "training the dense network" if job.kind == "base" else "running"
        table.add_row(Text(visible(names[job.cell]), style="dim"), Text(what, style="dim italic"))
    ended = progress.cached + progress.done + progress.failed
    left = progress.time_left
    text = f"{ended} of {progress.total} cells"
    text += f", {progress.failed} failed" if progress.failed else ""
    text += f", about {words(left)} left" if left is not None else ", first cells under way"
    return Group(table, ProgressBar(total=progress.total, completed=ended, width=60), Text(text))


def _summary(results: list[Any], folder: Path, columns: list[str], json: bool) -> None:
    from prunus.cli.output import console, print_json, print_table
    from prunus.study.groups import grouped

    failed = [result for result in results if result.status == "failed"]
    if json:
        rows = [{name: row[name] for name in columns or row} for row in (result.row for result in results)]
        print_json({"folder": str(folder), "cells": len(results), "failed": len(failed), "rows": rows})
        return
    if columns:
        lines = [[result.row[name] for name in columns] for result in results]
        texts = [place for place in range(len(columns)) if any(isinstance(line[place], str) for line in lines)]
        print_table(columns, lines, left=texts)
    else:
        _print_groups([_line(group) for group in grouped(results)])
    out = console()
    for result in failed[:5]:
        out.print(f"failed: {result.config['pattern']} {result.config['sparsity']:g}: {result.error}")
    notes = {f"{name} {note}" for result in results for name, note in result.record.get("notes", {}).items()}
    for note in sorted(notes)[:5]:
        out.print(f"note: {note}")
    out.print(f"{len(results) - len(failed)} cells done, {len(failed)} failed: {folder}")
    out.print(f"see them on one page: prunus report {folder}")


def _print_groups(rows: list[dict[str, Any]]) -> None:
    """The table at the end; what all its lines share is said once, above it."""
    from prunus.cli.output import console, print_table

    alike = {name: rows[0][name] for name in _HEAD if rows and len({row[name] for row in rows}) == 1}
    if len(alike) == len(_HEAD):
        console().print(f"{alike['network']} on {alike['data']}, dense {alike['dense']}:")
    else:
        alike = {}
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    shown = [name for name in names if name not in alike]
    texts = [place for place, name in enumerate(shown) if name in ("network", "data", "method")]
    print_table(shown, [[row[name] for name in shown] for row in rows], left=texts)


_HEAD = ("network", "data", "dense")


def _line(group: Any) -> dict[str, Any]:
    """One line of the table at the end, by its columns."""
    quality, spread, form = group.told, "", ".2%" if group.metric == "accuracy" else ".4g"
    if quality is not None and quality.deviation is not None:
        spread = f" ± {quality.deviation:{form}}"
    dense, times = group.mean("quality_dense"), {"faster": group.faster, "smaller": group.smaller}
    shares = {"same answer": group.agreement, "proved": group.mean("labels_proved")}
    return {
        "network": group.network,
        "data": group.data,
        "method": group.title,
        "zeros": f"{group.sparsity:.4g}",
        group.metric: None if quality is None else f"{quality.value:{form}}{spread}",
        "dense": None if dense is None else f"{dense:{form}}",
        **{name: None if value is None else f"{value:.2f} x" for name, value in times.items()},
        **{name: None if value is None else f"{value:.1%}" for name, value in shares.items()},
        "off by at most": group.mean("bound"),
        "seeds": len(group.results),
    }
