"""The README's table of four networks, from docs/evidence.

python -m tools.front                                   # puts it between its marks
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.evidence import FOLDER

from prunus.report.words import at_least

README = Path(__file__).resolve().parents[1] / "README.md"
WHERE = {"resnet20": "convolutions", "efficientnet": "pointwise convolutions and head"}
"""Which layers of a network are pruned; linear layers where it is not said."""
FRONT: dict[str, tuple[str, str, float, str]] = {
    "resnet20": ("ResNet-20, CIFAR-10", "reconstruct, balanced:16", 0.5, "accuracy"),
    "efficientnet": ("EfficientNet-Lite0, photographs", "reconstruct by damage, balanced:16", 0.5, "accuracy"),
    "minilm": ("MiniLM sentence encoder, STS-B", "reconstruct, balanced:16", 0.75, "Spearman"),
    "smollm2": ("SmolLM2-135M, WikiText-2", "reconstruct, balanced:16", 0.5, "perplexity"),
}
"""For each row of the README's table: the network, which cell of its study is shown, and what it is judged by."""
LLAMA = "llama.cpp, Q8_0"
"""The engine that writes text fastest in int8."""


def readme_table() -> list[str]:
    """The lines of the README's table, from docs/evidence."""
    lines = [
        "| network | what was done | before | after | int8 alone | faster than float32 | than int8 "
        "| than int8 with VNNI | smaller | what is known |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, method, sparsity, judged) in FRONT.items():
        where = WHERE.get(name, "linear layers")
        way = f"{100 * sparsity:.0f} % zeros in its {where}, {method.partition(', ')[2]}"
        if judged == "perplexity":
            row, before, after, alone, times = _language_model(method, sparsity)
        else:
            rows = [row for row in _evidence(f"showcase-{name}") if row["sparsity"] == sparsity]
            known = (method, method.replace(" by damage", ""))  # the second where the first was not measured yet
            found = [row for way in known for row in rows if row["method"] == way]
            if not found:
                lines.append(_quality_alone(name, title, judged))
                continue
            row = found[0]
            values = (row["quality_dense"], _told(row), row["quality_int8"])
            before, after, alone = (_shown(value, judged) for value in values)
            times = [_pair(_timed(name, row, False), f"faster_than_{rival}") for rival in ("dense", "int8")]
        vnni = _pair(_timed(name, row, True), "faster_than_int8")
        if judged == "perplexity":
            vnni = _reading_and_writing([vnni], sparsity, "bench-sparse-decoding-vnni", LLAMA)[0]
        size, known = (row["times smaller, integers"] or row["times smaller"], _known(row, judged))
        lines.append(
            f"| {title} | {way} | {judged} {before} | {after} | {alone} | {times[0]} | {times[1]} | {vnni} "
            f"| {size:.1f} x | {known} |"
        )
    return lines


def _language_model(method: str, sparsity: float) -> tuple[dict[str, Any], str, str, str, list[str]]:
    """Its cell, its perplexities in tools/quality.py (on more text than the study; of int8 too), and its speeds.

    Where the study has no cell of the method, one of the same pattern and sparsity tells speed and size, which do not
    depend on the values of weights; it says nothing about answers then.
    """
    pattern = method.rpartition(", ")[2]
    alike = [r for r in _evidence("showcase-smollm2") if r["method"].endswith(pattern) and r["sparsity"] == sparsity]
    own = [row for row in alike if row["method"] == method]
    row = own[0] if own else alike[0] | {"agreement": None, "agreement_low": None}
    rows = _evidence("quality-smollm2")
    key = {"method": "reconstruct", "pattern": pattern, "sparsity": sparsity}
    (found,) = [other for other in rows if key.items() <= other.items()]
    (before,) = [other["perplexity"] for other in rows if other["method"] == "dense"]
    (alone,) = [other["perplexity"] for other in rows if other["method"] == "dense int8"]
    timed = _timed("smollm2", row, False)
    reading = [_pair(timed, "faster_than_dense"), _pair(timed, "faster_than_int8")]
    times = _reading_and_writing(reading, sparsity, "bench-sparse-decoding", "torch", LLAMA)
    exact = f"{found['perplexity']:.1f} in float32"
    told = f"{whole:.1f} ({exact})" if (whole := found.get("perplexity in integers")) else exact
    return row, f"{before:.1f}", told, f"{alone:.1f}", times


def _reading_and_writing(reading: list[str], sparsity: float, name: str, *rivals: str) -> list[str]:
    """How many times faster than each rival, in the benchmark `name` for writing."""
    ours = [row for row in _evidence(name) if row["what"] == f"ours {100 * sparsity:.0f}%, integers"]
    writing = [f", writing {_times(ours[0][f'times {rival}'])}" if ours else "" for rival in rivals]
    return [f"reading {one}{other}" if (one + other) != "–" else one for one, other in zip(reading, writing)]


def _quality_alone(name: str, title: str, judged: str) -> str:
    """The row of a network whose quality alone was measured, by tools/quality.py."""
    rows = _evidence(f"quality-{name}")
    dense, row = (next(r for r in rows if r["method"] == method) for method in ("dense", "reconstruct"))
    way = f"{100 * row['sparsity']:.0f} % zeros, {row['pattern']}, reconstructed"
    shown = [f"{r['right %']:.1f} %" for r in (dense, row)]
    return f"| {title} | {way} | {judged} {shown[0]} | {shown[1]} | – | – | – | – | – | quality alone |"


def _timed(name: str, row: dict[str, Any], vnni: bool) -> dict[str, Any]:
    """The cell of `row` as it was timed on a processor with VNNI or without; nothing where it was not."""
    for word in ("", "-avx2", "-vnni"):
        path = FOLDER / f"showcase-{name}{word}.json"
        body = json.loads(path.read_text("utf8")) if path.is_file() else {"cpu": "", "rows": []}
        key = {part: row[part] for part in ("method", "sparsity")}
        found = [other for other in body["rows"] if key.items() <= other.items()]
        if found and ("vnni" in body["cpu"]) == vnni:
            return dict(found[0])
    return {}


def _told(row: dict[str, Any]) -> float:
    """The quality of the network whose speed is shown: in integers where they are faster."""
    faster = (row["speedup_integers"] or 0.0) > (row["speedup"] or 1.0)
    found: float = (row["quality_integers"] if faster else None) or row["quality"]
    return found


def _known(row: dict[str, Any], judged: str) -> str:
    """What can be said of the answers: with a confidence where samples are independent, else what was seen.

    Rows from before answers in integers were counted tell those in float32, and say so.
    """
    kernels = "" if "agreement in" in row else " in float32"
    if row["agreement_low"] is not None:
        return f"the same label for at least {at_least(row['agreement_low'])} % of such images{kernels} (95 % sure)"
    if row["agreement"] is None:
        return "measured only"
    what = {"Spearman": "the same nearest sentence", "perplexity": "the same next token"}[judged]
    return f"measured{kernels}: {what} in {100 * row['agreement']:.0f} % of {row['answers']:,} cases"


def _evidence(name: str) -> list[dict[str, Any]]:
    path = FOLDER / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text("utf8"))["rows"] if path.is_file() else []
    return found


def _pair(row: dict[str, Any], column: str) -> str:
    values = [row.get(column), row.get(f"{column}_second")]
    return " / ".join(_times(value) for value in values if value is not None) or "–"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 1.05 else f"{ratio:.2f}"


def _shown(value: float, judged: str) -> str:
    return (
        f"{100 * value:.1f} %" if judged == "accuracy" else f"{value:.3f}" if judged == "Spearman" else f"{value:.1f}"
    )


def fill_readme() -> None:
    """Put the table between its marks."""
    path = README
    start, end = "<!-- four networks -->\n", "<!-- end -->"
    head, _, rest = path.read_text("utf8").partition(start)
    _, _, tail = rest.partition(end)
    path.write_text(head + start + "\n".join(readme_table()) + "\n" + end + tail, "utf8")


if __name__ == "__main__":
    fill_readme()
