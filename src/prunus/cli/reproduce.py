"""`prunus reproduce`: the papers' tables and figures again, published numbers beside ours."""

from __future__ import annotations

import json as jsonlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import DataDir, Json, Seed


def reproduce(
    *names: Annotated[str, Parameter(help="Which reproductions to run; see --list. Several may be named.")],
    list: Annotated[
        bool, Parameter(negative="", help="List what can be run, what it needs and how many minutes it takes.")
    ] = False,
    data_dir: DataDir = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="Also write the rows to this JSON file.")] = None,
    study: Annotated[Path | None, Parameter(help="Also keep the rows in this study; its page shows them.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run the papers' tables and figures again, beside the published numbers.

    Example: `prunus reproduce --list`, then `prunus reproduce energy-by-bank`
    """
    from prunus.cli.output import print_json
    from prunus.errors import UnknownName
    from prunus.papers.reproducing import collect

    known = collect()
    if list or not names:
        rows = [
            {"id": r.id, "title": r.title, "source": r.source, "minutes": r.minutes, "needs": ", ".join(r.needs)}
            | {"status": r.out_of_reach or "runs here"}
            for r in known.values()
        ]
        if json:
            print_json(rows)
        else:
            _print_list(rows)
        return
    for name in names:
        if name not in known:
            raise UnknownName("reproduction", name, known)
    results = {name: run_one(known[name], data_dir, seed, quiet=json) for name in names}
    if output is not None:
        from prunus.storage import write_json

        write_json(output, results)
    if study is not None:
        from prunus.study import Store

        with Store(study, create=True) as store:
            for name, rows in results.items():
                store.add_reproduction(name, known[name].title, known[name].source, rows)
    if json:
        print_json(results)


def _print_list(rows: Sequence[Mapping[str, Any]]) -> None:
    """Two or three lines for each: what to type, what it takes, what it is; those out of reach come last."""
    from rich.padding import Padding
    from rich.text import Text

    from prunus.cli.output import console
    from prunus.study.runner import words

    out = console()
    reachable = [row for row in rows if row["status"] == "runs here"]
    for row in reachable:
        takes = f"about {words(60 * row['minutes'])}" + (f", needs {row['needs']}" if row["needs"] else "")
        out.print(Text.assemble((row["id"], "bold"), ("  " + takes, "dim")))
        out.print(Padding(Text(row["title"]), (0, 0, 0, 4)))
    beyond = [row for row in rows if row["status"] != "runs here"]
    if beyond:
        out.print(Text("\nOut of reach here", style="bold"))
    for row in beyond:
        out.print(Text(row["id"], style="bold"))
        out.print(Padding(Text(f"{row['title']}: {row['status']}"), (0, 0, 0, 4)))
    total = sum(row["minutes"] for row in reachable)
    out.print(f"\n{len(reachable)} run here, in about {words(60 * total)} together. Sources: --list --json.")


def _stacked(name: str) -> str:
    """The name of a column over several lines, so that wide tables fit."""
    return "\n".join(textwrap.wrap(name, 10, break_long_words=False))


def _parts(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[Sequence[str]]:
    """The columns in parts that fit the width; the first column stands before each."""
    from prunus.cli.output import show

    def wide(name: str) -> int:
        lines = [*_stacked(name).splitlines(), *(show(row.get(name)) for row in rows)]
        return 2 + max(len(line) for line in lines)

    part: Sequence[str] = columns[:1]
    for name in columns[1:]:
        if len(part) > 1 and sum(map(wide, (*part, name))) > width:
            yield part
            part = columns[:1]
        part = [*part, name]
    yield part


def run_one(entry: Any, folder: Path | None, seed: int, quiet: bool, runs: Path | None = None) -> list[dict[str, Any]]:
    """Run one reproduction and print its table as it stands beside the paper's; `runs` is for checkpoints."""
    import inspect

    from prunus.cli.output import console, print_table
    from prunus.errors import BadInput

    if entry.out_of_reach:
        raise BadInput(f"{entry.id} cannot be run here: {entry.out_of_reach}")
    accepted = inspect.signature(entry.run).parameters
    options = {"seed": seed, "folder": folder, "quiet": quiet, "runs": runs}
    rows = [dict(row) for row in entry.run(**{key: value for key, value in options.items() if key in accepted})]
    if not quiet:
        columns = [*dict.fromkeys(key for row in rows for key in row)]
        out = console()
        out.print(entry.title, style="bold")
        out.print(entry.source)
        for part in _parts(columns, rows, out.width):
            text = [number for number, key in enumerate(part) if any(isinstance(row.get(key), str) for row in rows)]
            print_table([_stacked(key) for key in part], [[row.get(key) for key in part] for row in rows], left=text)
    result: list[dict[str, Any]] = jsonlib.loads(jsonlib.dumps(rows, default=float))
    return result
