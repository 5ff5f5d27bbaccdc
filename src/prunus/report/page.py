"""`write_report`: one self-contained page from the store of a study."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prunus.errors import BadInput
from prunus.report import svg, words
from prunus.report.facts import Panel, panels, payload
from prunus.report.metrics import percent
from prunus.storage import write
from prunus.study.store import COLUMNS, Result, Store, as_text

HERE = Path(__file__).parent
TABLE = (
    ("method", "method", "how the weights to drop were chosen"),
    ("sparsity", "zeros", "fraction of zeros that was asked for"),
    ("quality", "quality", "on the test set; mean and standard deviation over seeds"),
    ("lost", "lost", "how much worse than the dense network"),
    ("integers", "in integers", "the same with integer products"),
    ("speedup", "than torch", "time of the dense network in torch over time of the packed one in its better kernels"),
    ("float32", "than float32", "times faster than the fastest dense float32 engine"),
    ("int8", "than int8", "times faster than the fastest dense int8 engine"),
    ("smaller", "smaller", "bytes of the dense file over bytes of the packed one"),
    ("memory", "in memory", "tensors of the network as it runs; layers that are faster dense stay dense"),
    ("agreement", "same answer", "held-out inputs that get the answer the dense network gives"),
    ("labels", "proved", "test points whose label is proved the same in their whole neighbourhood"),
    ("bound", "off by at most", "certified: largest change of the outputs near the test points"),
    ("attained", "attained", "the largest change a search found there"),
    ("held_out", "nearly all within", "change that at most a small share of inputs exceeds, with 95 % confidence"),
    ("energy", "energy lost", "share of the sum of squared weights that pruning removes"),
    ("condition", "condition", "tangent kernel: largest over smallest eigenvalue"),
    ("minutes", "minutes", "spent on making this network, on one core"),
)


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
    shown = [_panel(panel) for panel in found]
    failed = [result for result in results if result.status == "failed"]
    return environment.get_template("page.html").render(
        title=title or _title(found),
        panels=shown,
        columns=_columns(shown),
        cells=len(results),
        failed=[{"what": _what(result), "error": result.error} for result in failed],
        notes=_notes(results),
        data=_script_safe({"panels": [payload(panel) for panel in found]}),
        style=(HERE / "style.css").read_text("utf8"),
        script=(HERE / "page.js").read_text("utf8"),
        plotly=(HERE / "plotly-basic.min.js").read_text("utf8"),
        commands=_commands(results),
        versions=next((result.record["versions"] for result in results if result.record.get("versions")), {}),
        settings=_certified(results),
        papers=papers,
        day=datetime.date.today().isoformat(),
        csv=_csv(results),
    )


def _columns(shown: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The columns of the table that any row fills."""
    rows = [row for panel in shown for row in panel["rows"]]
    return [column for column in TABLE if any(row[column[0]][1] is not None for row in rows)]


def _certified(results: Sequence[Result]) -> Mapping[str, Any]:
    """The settings that the page's last lines name: those of a cell with a certificate, where there is one."""
    ordered = sorted(results, key=lambda result: result.record.get("bound") is None)
    return ordered[0].config["settings"] if ordered else {}


def _title(found: Sequence[Panel]) -> str:
    if not found:
        return "The papers, side by side"
    names = list(dict.fromkeys(panel.network for panel in found))
    return f"{names[0]}, pruned" if len(names) == 1 else f"{len(names)} networks, pruned"


def _panel(panel: Panel) -> dict[str, Any]:
    base = panel.bases[0] if panel.bases else {}
    chosen = words.best(panel)
    return {
        "name": panel.name,
        "headline": words.headline(panel),
        "remarks": words.remarks(panel),
        "alternatives": words.describe(panel),
        "cards": _cards(panel),
        "chosen": panel.groups.index(chosen) if chosen is not None else 0,
        "choices": [f"{group.label}, {percent(group.sparsity, 0)} zeros" for group in panel.groups],
        "rows": [_row(panel, number) for number in range(len(panel.groups))],
        "histograms": svg.histograms(base.get("weights", [])),
        "peers": _peers(panel),
        "metric": panel.metric.name,
        "has_examples": any(group.results[0].record.get("examples") for group in panel.groups),
        "has_kernel": any(group.results[0].record.get("kernel") for group in panel.groups),
    }


def _cards(panel: Panel) -> list[tuple[str, str, str]]:
    """The few numbers at the top: what, value, beside it."""
    group = words.best(panel)
    if group is None or group.told is None:
        return []
    metric = panel.metric
    cards = [(metric.name, metric.spread(group.told), f"dense {metric.show(panel.dense or 0)}")]
    (smaller, now), bound = words.size_of(group), group.mean("bound")
    if group.faster is not None:
        before, how = group.mean("time_dense_us") or 0, ", integers" if group.integers else ""
        shown, than = words.speed_of(group)
        beside = f"{_time(before / group.faster)} instead of {_time(before)}{' in torch' if than else ''}{how}"
        cards.append(("than the fastest float32" if than else "faster", f"{shown:.1f} ×", beside))
    rival = group.mean("faster_than_int8")
    if rival is not None:
        other = group.mean("quality_int8")
        cards.append(("than dense int8", f"{rival:.1f} ×", "" if other is None else f"int8 has {metric.show(other)}"))
    if smaller is not None:
        before = group.mean("bytes_dense") or 0
        cards.append(("smaller", f"{smaller:.1f} ×", f"{_size(now)} instead of {_size(before)}"))
    agreement, proved = group.mean("agreement"), group.mean("labels_proved")
    if agreement is not None:
        beside = words.asked(group) if proved is None else f"proved for {percent(proved, 0)} near test points"
        cards.append(("same answer", percent(agreement), beside))
    elif bound is not None:
        attained = group.mean("attained")
        name = "off by at most (vacuous)" if group.vacuous else "off by at most"
        beside = f"a search finds {words.number(attained)}" if attained is not None else "2-norm of the outputs"
        cards.append((name, words.number(bound), beside))
    return cards


def _peers(panel: Panel) -> list[tuple[str, str, str, str]]:
    """Dense engines beside torch: which, batch, times faster, error of the outputs."""
    rows = (panel.bases[0].get("peers") or []) if panel.bases else []
    return [(row["name"], str(row["batch"]), f"{row['faster']:.2f} ×", f"{100 * row['error']:.1f} %") for row in rows]


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _minutes(seconds: float) -> str:
    return "< 0.1" if seconds < 6 else f"{seconds / 60:.1f}"


def _size(count: float) -> str:
    return f"{count / 1024:.0f} kB" if count < 2**20 else f"{count / 2**20:.1f} MB"


def _row(panel: Panel, number: int) -> dict[str, tuple[str, float | str | None]]:
    """One line of the table: for each column what is shown and what is sorted by."""
    group = panel.groups[number]
    metric, quality = panel.metric, group.means.get("quality")
    lost, integers, rival = metric.lost(group), group.mean("quality_integers"), group.mean("faster_than_int8")
    plain: dict[str, float | None] = {
        name: group.mean(column)
        for name, column in (
            ("bound", "bound"),
            ("attained", "attained"),
            ("held_out", "held_out_bound"),
            ("condition", "kernel_condition"),
        )
    }
    energy, smaller = group.mean("energy_removed"), words.size_of(group)[0]
    best = group.mean("faster_than_dense")
    memory, seconds = group.mean("bytes_memory"), group.mean("making_seconds")
    agreement, proved = group.mean("agreement"), group.mean("labels_proved")
    return {
        "method": (group.label, group.label),
        "sparsity": (percent(group.sparsity, 0), group.sparsity),
        "quality": ("–" if quality is None else metric.spread(quality), None if quality is None else quality.value),
        "lost": ("–" if lost is None else metric.show_lost(lost), lost),
        "integers": ("–" if integers is None else metric.show(integers), integers),
        "int8": ("–" if rival is None else f"{rival:.2f} ×", rival),
        "speedup": ("–" if group.faster is None else f"{group.faster:.2f} ×", group.faster),
        "float32": ("–" if best is None else f"{best:.2f} ×", best),
        "smaller": ("–" if smaller is None else f"{smaller:.2f} ×", smaller),
        "agreement": ("–" if agreement is None else percent(agreement), agreement),
        "memory": ("–" if memory is None else _size(memory), memory),
        "minutes": ("–" if seconds is None else _minutes(seconds), seconds),
        "labels": ("–" if proved is None else percent(proved, 0), proved),
        "energy": ("–" if energy is None else percent(energy), energy),
        **{name: ("–" if value is None else words.number(value), value) for name, value in plain.items()},
    }


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
    return [f"{note} ({count} cells)" for note, count in found.items()]


def _commands(results: Sequence[Result]) -> list[str]:
    """The study as TOML files, one for each set of settings: what `prunus study --grid` reads."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(json.dumps(result.config["settings"], sort_keys=True), []).append(result)
    return [_command(members) for members in found.values()]


def _command(results: Sequence[Result]) -> str:
    from prunus.pruning.patterns import fixed_sparsity
    from prunus.settings.study import Settings
    from prunus.study.grid import AXES

    lines = []
    free = [result for result in results if fixed_sparsity(result.config["pattern"]) is None]
    for axis in AXES:
        asked = free if free and axis == "sparsity" else results
        values = list(dict.fromkeys(result.config[axis] for result in asked))
        lines.append(f"{axis} = {_toml(values)}")
    given, usual = dict(results[0].config["settings"]), Settings()
    given["weights"] = Path(given["weights"]).name  # the folder is private
    changed = {name: value for name, value in given.items() if value != _plain(getattr(usual, name))}
    if changed:
        lines += ["", "[settings]", *(f"{name} = {_toml(value)}" for name, value in changed.items())]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value as TOML writes it: JSON, but with characters beyond the first 65,536 as they are, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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
