"""What the README says in short, and its table of four networks, from docs/evidence.

python -m tools.front                                   # puts both between their marks
"""

from __future__ import annotations

import json
import math
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
        "| network | zeros | quality: dense → pruned (int8 alone) | faster than float32 | than int8 "
        "| than int8, AVX2 | smaller | what is known |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, method, sparsity, judged) in FRONT.items():
        where = WHERE.get(name, "linear layers")
        if judged == "perplexity":
            row, qualities, times, size = _language_model(method, sparsity)
        else:
            row = _cell(name, method, sparsity)
            before, after, alone = (row["quality_dense"], _told(row), row["quality_int8"])
            qualities = f"{_shown(before, judged)} → {_shown(after, judged)} ({_shown(alone, judged)})"
            avx2 = _cell(f"{name}-avx2", method, sparsity)
            pairs = ((row, "faster_than_dense"), (row, "faster_than_int8"), (avx2, "faster_than_int8"))
            times, size = [_pair(*pair) for pair in pairs], row["times smaller, integers"]
        lines.append(
            f"| {title} | {100 * sparsity:.0f} %, {where} | {judged} {qualities} | {' | '.join(times)} "
            f"| {size:.1f} x | {_known(row, judged)} |"
        )
    return lines


def readme_words() -> list[str]:
    """What the first screen says in words: every number in them is from docs/evidence."""
    half, most = (_both("minilm", "reconstruct, balanced:16", sparsity) for sparsity in (0.5, 0.75))
    images, more = (_cell("resnet20", "reconstruct, balanced:16", sparsity) for sparsity in (0.5, 0.75))
    photographs = _cell("efficientnet", *FRONT["efficientnet"][1:3])
    text, qualities, _, _ = _language_model(*FRONT["smollm2"][1:3])
    before, after = qualities.partition(" (")[0].split(" → ")
    proved = next(row for row in _evidence("certificates-labels") if (row["sparsity"], row["radius"]) == (0.5, 0.1))
    return [
        f"- **Faster than int8 quantisation:** zeros and eight-bit integers together. A sentence encoder with 75 % "
        f"zeros runs {_range(most)} times as fast as the fastest dense int8 measured (Spearman "
        f"{_shown(most[0]['quality_dense'], 'Spearman')} becomes {_shown(_told(most[0]), 'Spearman')}; int8 keeps "
        f"{_shown(most[0]['quality_int8'], 'Spearman')}); with 50 % it loses next to nothing "
        f"({_shown(_told(half[0]), 'Spearman')}) and is {_range(half)} times as fast. ResNet-20 with 50 % zeros runs "
        f"at {_pair(images, 'faster_than_int8')} of its speed (batch 1 / 32) and keeps "
        f"{_shown(_told(images), 'accuracy')} accuracy of {_shown(images['quality_dense'], 'accuracy')}, with 75 % at "
        f"{_pair(more, 'faster_than_int8')} ({_shown(_told(more), 'accuracy')}).",
        f"- **Smaller, and faster than float32:** files are {_least_smaller():.1f} times smaller or more, and "
        f"ResNet-20 with 50 % zeros runs {_pair(images, 'faster_than_dense')} times as fast as the fastest "
        f"float32 engine.",
        f"- **You are told the price:** how often the answer stays, with what confidence, and for networks in float32 "
        f"for which inputs that is proved (a classifier of digits with half of its weights: for "
        f"{100 * proved['proved']:.1f} % of 1,000 test images the label cannot change within a radius of "
        f"{proved['radius']:g}).",
        f"- **When not to use it:** where int8 alone is fast enough, it is simpler and keeps the most. On processors "
        f"with VNNI (instructions for eight-bit integers; `prunus doctor` tells) dense int8 is ahead of 50 % zeros in "
        f"language models that read a prompt ({_pair(text, 'faster_than_int8')} of its speed) and in networks of "
        f"depthwise convolutions such as EfficientNet ({_pair(photographs, 'faster_than_int8')}), which lose points "
        f"even at 50 % ({_shown(photographs['quality_dense'], 'accuracy')} becomes "
        f"{_shown(_told(photographs), 'accuracy')}). Language models predict text "
        f"worse: perplexity {before} becomes {after}, while llama.cpp writes as fast with all weights. Beyond 75 % "
        f"quality has to be won back by training. On a GPU these kernels do not run (a [smaller ordinary "
        f"network](docs/guide/shrink.md) does).",
    ]


def _both(name: str, method: str, sparsity: float) -> list[dict[str, Any]]:
    """A cell on every processor it was timed on; that of the page first."""
    names = [f"{name}{word}" for word in ("", "-vnni", "-avx2")]
    return [_cell(one, method, sparsity) for one in names if _evidence(f"showcase-{one}")]


def _range(rows: list[dict[str, Any]]) -> str:
    """From the least to the most times faster than dense int8, over processors and batch sizes."""
    found = [row[f"faster_than_int8{batch}"] for row in rows for batch in ("", "_second")]
    return f"{_times(min(found))} to {_times(max(found))}"


def _least_smaller() -> float:
    found = [_cell(name, *how[1:3])["times smaller, integers"] for name, how in FRONT.items()]
    return math.floor(10 * min(found)) / 10


def _cell(name: str, method: str, sparsity: float) -> dict[str, Any]:
    """The row of a study's evidence for one cell."""
    (found,) = [r for r in _evidence(f"showcase-{name}") if (r["method"], r["sparsity"]) == (method, sparsity)]
    return found


def _language_model(method: str, sparsity: float) -> tuple[dict[str, Any], str, list[str], float]:
    """Its cell, its perplexities, speeds and size."""
    row, avx2 = (_cell(name, method, sparsity) for name in ("smollm2", "smollm2-avx2"))
    before, after, alone = (_shown(value, "") for value in (row["quality_dense"], _told(row), row["quality_int8"]))
    reading = [_pair(row, "faster_than_dense"), _pair(row, "faster_than_int8"), _pair(avx2, "faster_than_int8")]
    times = _reading_and_writing(reading[:2], sparsity, "bench-sparse-decoding-vnni", "torch", LLAMA)
    times += _reading_and_writing(reading[2:], sparsity, "bench-sparse-decoding", LLAMA)
    return row, f"{before} → {after} ({alone})", times, row["times smaller, integers"]


def _reading_and_writing(reading: list[str], sparsity: float, name: str, *rivals: str) -> list[str]:
    """How many times faster than each rival, in the benchmark `name` for writing."""
    ours = [row for row in _evidence(name) if row["what"] == f"ours {100 * sparsity:.0f}%, integers"]
    writing = [f", writing {_times(ours[0][f'times {rival}'])}" if ours else "" for rival in rivals]
    return [f"reading {one}{other}" if (one + other) != "–" else one for one, other in zip(reading, writing)]


def _told(row: dict[str, Any]) -> float:
    """The quality of the network whose speed is shown: in integers where they are faster."""
    faster = (row["speedup_integers"] or 0.0) > (row["speedup"] or 1.0)
    found: float = (row["quality_integers"] if faster else None) or row["quality"]
    return found


def _known(row: dict[str, Any], judged: str) -> str:
    """What can be said of the answers: with a confidence where samples are independent, else what was seen."""
    assert row["agreement in"] == "integers"
    if row["agreement_low"] is not None:
        return f"at least {at_least(row['agreement_low'])} % of labels stay (95 % sure)"
    what = {"Spearman": "nearest sentences", "perplexity": "next tokens"}[judged]
    return f"measured: {100 * row['agreement']:.0f} % of {row['answers']:,} {what} stay"


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
    """Put words and table between their marks."""
    text = README.read_text("utf8")
    for start, lines in PARTS.items():
        head, _, rest = text.partition(start)
        text = head + start + "\n".join(lines()) + "\n" + END + rest.partition(END)[2]
    README.write_text(text, "utf8")


PARTS = {"<!-- in short -->\n": readme_words, "<!-- four networks -->\n": readme_table}
END = "<!-- end -->"


if __name__ == "__main__":
    fill_readme()
