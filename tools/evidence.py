"""Results of `make prove` and `make bench`, kept in docs/evidence as small JSON and a table."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence"

FLAGS = ("amx_int8", "avx512f", "avx512_vnni", "avx_vnni", "avx2", "fma")


def cpu() -> str:
    """The processor's name and the vector instructions that matter to the kernels."""
    name, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            if key.strip() == "flags":
                flags = " ".join(word for word in FLAGS if word in value.split())
    return f"{name}, {os.cpu_count()} cores, {flags}"


def record(
    name: str, rows: Sequence[Mapping[str, Any]], note: str = "", folder: Path = FOLDER, machine: str | None = None
) -> Path:
    """Write `rows` to <folder>/<name>.json and a Markdown table beside it; returns the JSON's path.

    `machine` is where they were measured, if not here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    day = datetime.date.today().isoformat()
    body = {"name": name, "date": day, "cpu": machine or cpu(), "note": note, "rows": [dict(row) for row in rows]}
    _write(folder / f"{name}.json", json.dumps(body, indent=1, default=float) + "\n")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"# {name}", "", note, "", f"{day}, {body['cpu']}", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    _write(folder / f"{name}.md", "\n".join(lines) + "\n")
    return folder / f"{name}.json"


def keep_parts(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    column: str,
    parts: Sequence[str],
    order: Sequence[str],
    folder: Path = FOLDER,
) -> list[Mapping[str, Any]]:
    """These rows and those that <name>.json has of other parts; `column` holds a row's part."""
    path = folder / f"{name}.json"
    known = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    kept = [*rows, *(row for row in known if row.get(column) in order and row[column] not in parts)]
    return sorted(kept, key=lambda row: order.index(row[column]))


def fill_guide(page: str) -> None:
    """Put the tables of the evidence into a page of the guide, each between its marks."""
    path = FOLDER.parent / "guide" / f"{page}.md"
    text = path.read_text("utf8")
    for name in re.findall(r"<!-- ([a-z0-9-]+) -->\n", text):
        file = FOLDER / f"{name}.md"
        if name != "end" and file.is_file():
            table = "\n".join(line for line in file.read_text("utf8").splitlines() if line.startswith("|"))
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)
    _write(path, text)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, "utf8")
    os.replace(temporary, path)
