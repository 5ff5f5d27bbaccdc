"""`write_report`: one self-contained page from the store of a study."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prunus.errors import BadInput
from prunus.report import svg, words
from prunus.report.again import grids
from prunus.report.facts import Panel, own_module, panels, payload, plain_name
from prunus.report.metrics import percent
from prunus.report.table import columns, dense_rows, rows, size
from prunus.storage import write
from prunus.study.groups import SeedGroup
from prunus.study.store import COLUMNS, Result, Store, as_text

HERE = Path(__file__).parent


def write_report(store: Store, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write the page of a study and return its path. The page needs nothing but itself.

    Args:
        store: the results of a study.
        path: the HTML file to write; it replaces a file of that name.
        title: heading of the page; without one it names the network and the data.

    Returns:
        The path of the page.

    Example:
        >>> with prunus.study.Store("runs", create=True) as store:
        ...     store.add_reproduction("table-1", "Table 1", "A paper, 2020", [{"what": "accuracy", "ours": 0.9}])
        ...     page = prunus.report.write_report(store, "page.html")
        >>> page.name
        'page.html'
    """
    return write(path, render(store, title))


def render(store: Store, title: str = "") -> str:
    """The page as text.

    Args:
        store: the results of a study.
        title: heading of the page; without one it names the network and the data.

    Returns:
        HTML that needs no other file.

    Raises:
        BadInput: The study has no finished cell and no table of a paper.

    Example:
        >>> with prunus.study.Store("runs", create=True) as store:
        ...     store.add_reproduction("table-1", "Table 1", "A paper, 2020", [{"what": "accuracy", "ours": 0.9}])
        ...     "My study" in prunus.report.render(store, title="My study")
        True
    """
    results = store.results()
    found = panels(results, store.bases())
    papers = [_paper(entry) for entry in store.reproductions()]
    if not found and not papers:
        raise BadInput(f"The study {store.path} has no finished cell yet: run prunus study first.")
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    environment.filters["unbroken"] = _unbroken
    environment.filters["breakable"] = svg.breakable
    shown = [_panel(panel) for panel in found]
    failed = [result for result in results if result.status == "failed"]
    return environment.get_template("page.html").render(
        title=title or _title(found),
        panels=shown,
        cells=len(results),
        failed=[{"what": _what(result), "error": result.error} for result in failed],
        notes=_notes(results),
        data=_script_safe({"panels": [payload(panel) for panel in found]}),
        style=(HERE / "style.css").read_text("utf8"),
        script=(HERE / "page.js").read_text("utf8"),
        plotly=(HERE / "plotly-basic.min.js").read_text("utf8"),
        commands=grids(results),
        modules=_modules(results),
        versions=next((result.record["versions"] for result in results if result.record.get("versions")), {}),
        settings=_certified(results),
        timed=_timed(results),
        papers=papers,
        day=datetime.date.today().isoformat(),
        csv=_csv(results),
    )


def _certified(results: Sequence[Result]) -> Mapping[str, Any]:
    """The settings that the page's last lines name: those of a cell with a certificate, where there is one."""
    ordered = sorted(results, key=lambda result: result.record.get("bound") is None)
    return ordered[0].config["settings"] if ordered else {}


def _modules(results: Sequence[Result]) -> list[str]:
    """Modules of the user that models, data sets, scores or metrics are from."""
    named = [result.config.get(axis, "") for result in results for axis in ("model", "data", "score")]
    named += [result.config["settings"].get("metric", "") for result in results]
    return sorted({own_module(str(name)) for name in named} - {""})


def _timed(results: Sequence[Result]) -> str:
    """What one run of the timed networks was: a batch of 1 and of 32, or inputs of 1 × 512."""
    shapes = next((result.record["timed"] for result in results if result.record.get("timed")), None)
    if shapes:
        return "inputs of " + " and ".join(" × ".join(map(str, shape)) for shape in shapes)
    settings = results[0].config["settings"] if results else {}
    second = settings.get("second_batch")
    return f"a batch of {settings.get('batch', 1)}" + (f" and of {second}" if second else "")


def _unbroken(text: str) -> str:
    """A name such as CIFAR-10 stays on one line."""
    return re.sub(r"(?<=\w)-(?=\d)", "\u2011", text)


def _title(found: Sequence[Panel]) -> str:
    if not found:
        return "The papers, side by side"
    names = list(dict.fromkeys(plain_name(panel.network) for panel in found))
    return f"{names[0]}, pruned" if len(names) == 1 else f"{len(names)} networks, pruned"


def _panel(panel: Panel) -> dict[str, Any]:
    base = panel.bases[0] if panel.bases else {}
    chosen = words.best(panel)
    return {
        "name": panel.name,
        "headline": words.headline(panel),
        "remarks": words.remarks(panel),
        "meanings": words.meanings(panel),
        "alternatives": words.describe(panel),
        "cards": _cards(panel),
        "chosen": panel.groups.index(chosen) if chosen is not None else 0,
        "choices": [f"{panel.title(group)}, {percent(group.sparsity, 0)} zeros" for group in panel.groups],
        "rows": rows(panel),
        "columns": columns(rows(panel)),
        "dense": dense_rows(panel) if len(panel.rivals) > 1 else [],
        "histograms": svg.histograms(base.get("weights", [])),
        "peers": _peers(panel),
        "batches": _batches(panel),
        "metric": panel.metric.name,
        "kernels": panel.kernels,
        "has_examples": any(group.results[0].record.get("examples") for group in panel.groups),
        "has_kernel": any(group.results[0].record.get("kernel") for group in panel.groups),
    }


def _cards(panel: Panel) -> list[tuple[str, str, str]]:
    """The few numbers at the top: what, value, beside it."""
    group = words.best(panel)
    told = None if group is None else group.told
    if group is None or told is None:
        return []
    metric, cards = panel.metric, []
    agreement, proved, bound = group.agreement, group.mean("labels_proved"), group.mean("bound")
    if agreement is not None:
        beside = words.asked(group) if proved is None else f"proved for {percent(proved, 0)} of test points"
        if proved is None and group.agreement_low is not None:
            beside += f"; at least {words.at_least(group.agreement_low)}\u00a0% of all such, 95\u00a0% sure"
        alone = next((rival.agreement for rival in panel.rivals if rival.agreement is not None), None)
        beside += "" if alone is None else f"; int8 alone {percent(alone)}"
        cards.append(("same answer", percent(agreement), beside))
    int8, other = group.mean("faster_than_int8"), group.mean("quality_int8")
    if int8 is not None:
        cards.append(("speed against dense int8", _times(int8), _two(group, "faster_than_int8")))
    beside = f"dense {metric.show(panel.dense or 0)}" + ("" if other is None else f", int8 {metric.show(other)}")
    if told.deviation is not None:
        beside = f"± {metric.show(told.deviation)} over {told.count} seeds; {beside}"
    cards.append((metric.name + words.kernels_of(panel, group), metric.show(told.value), beside))
    if group.faster is not None:
        before, rival = group.mean("time_dense_us") or 0, group.mean("faster_than_dense")
        took = f"{_time(before / group.faster)}, dense in torch {_time(before)}"
        if rival is None:
            cards.append(("faster than dense", _times(group.faster), took))
        else:
            cards.append(("speed against dense float32", _times(rival), _two(group, "faster_than_dense") or took))
    (smaller, now), before = words.size_of(group), group.mean("bytes_dense") or 0
    if smaller is not None:
        cards.append(("smaller", f"{smaller:.1f} ×", f"{size(now)} instead of {size(before)}"))
    if agreement is None and bound is not None:
        attained = group.mean("attained")
        name = "off by at most (vacuous)" if group.vacuous else "off by at most"
        beside = f"a search finds {words.number(attained)}" if attained is not None else "2-norm of the outputs"
        cards.append((name, words.number(bound), beside))
    return cards


def _two(group: SeedGroup, column: str) -> str:
    """1.5 × at batch 32"""
    second, batch = group.mean(f"{column}_second"), group.results[0].config["settings"].get("second_batch")
    return "" if second is None else f"{_times(second)} at batch {batch}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 1.05 else f"{ratio:.2f} ×"


def _peers(panel: Panel) -> tuple[list[int], list[tuple[str, list[str], str]]]:
    """Dense engines beside torch: the batch sizes, and for each engine its speed at these and its error."""
    found = (panel.bases[0].get("peers") or []) if panel.bases else []
    batches = list(dict.fromkeys(row["batch"] for row in found))
    engines: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in found:
        engines.setdefault(row["name"], {})[row["batch"]] = row
    shown = []
    for name, cells in engines.items():
        faster = [f"{cells[batch]['faster']:.2f} ×" if batch in cells else "–" for batch in batches]
        name = name.replace("int8, ", "int8 dynamic, ")  # beside "int8 static"
        shown.append((name, faster, f"{100 * max(cell['error'] for cell in cells.values()):.1f} %"))
    return batches, shown


def _batches(panel: Panel) -> list[int]:
    settings = panel.groups[0].results[0].config["settings"]
    return [size for size in (settings.get("batch"), settings.get("second_batch")) if size]


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _paper(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A table of a paper as text; a difference of more than three standard errors is marked."""
    columns = list(dict.fromkeys(key for row in entry["rows"] for key in row))
    rows = []
    for row in entry["rows"]:
        cells = []
        for name in columns:
            value = row.get(name)
            far = name == "standard errors" and isinstance(value, (int, float)) and abs(value) > 3
            cells.append((_cell(value), isinstance(value, str), far))
        rows.append(cells)
    return {"id": entry["id"], "title": entry["title"], "source": entry["source"], "columns": columns, "rows": rows}


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _what(result: Result) -> str:
    config = result.config
    return f"{config['model']} {config['score']} {config['pattern']} {config['sparsity']:g} seed {config['seed']}"


def _notes(results: Sequence[Result]) -> list[str]:
    found: dict[str, int] = {}
    for result in results:
        for name, note in result.record.get("notes", {}).items():
            found[f"{name} {note}"] = found.get(f"{name} {note}", 0) + 1
    return [f"{note} ({count} cell{'s' if count > 1 else ''})" for note, count in found.items()]


def _csv(results: Sequence[Result]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_text(value) for name, value in result.row.items()} for result in results)
    return "data:text/csv;base64," + base64.b64encode(text.getvalue().encode()).decode()


def _script_safe(record: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
