"""Every number on the front page stands in an evidence file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LINES = [line for line in (ROOT / "README.md").read_text("utf8").splitlines() if line.startswith("|")]


def evidence(name: str, **wanted: Any) -> dict[str, Any]:
    rows = json.loads((ROOT / "docs" / "evidence" / f"{name}.json").read_text("utf8"))["rows"]
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return dict(row)


@pytest.mark.parametrize(
    "line, sparsity, pattern",
    [
        ("half of the weights gone, 2:4", 0.5, "2:4"),
        ("half gone", 0.5, "balanced:16"),
        ("80 % gone", 0.8, "balanced:16"),
    ],
)
def test_quality(line: str, sparsity: float, pattern: str) -> None:
    (shown,) = [text for text in LINES if line in text]
    row = evidence("quality-resnet20", method="reconstruct", pattern=pattern, sparsity=sparsity)
    assert f"{row['accuracy %']:.2f} %" in shown
    assert f"{evidence('quality-resnet20', method='dense')['accuracy %']:.2f} %" in shown
    assert f"in {row['processor seconds']:.0f} s" in shown


@pytest.mark.parametrize("pattern", ["balanced:16", "2:4"])
def test_quality_of_the_encoder(pattern: str) -> None:
    (shown,) = [text for text in LINES if f"50 % gone, {pattern}" in text]
    row = evidence("quality-minilm", method="reconstruct", pattern=pattern, sparsity=0.5)
    dense = evidence("quality-minilm", method="dense")
    assert f"| {dense['Spearman']:.4f} | {row['Spearman']:.4f} |".replace("0.", ".") in shown
    assert f"in {row['processor seconds']:.0f} s" in shown


@pytest.mark.parametrize("line, share", [("50 % zeros", "50%"), ("75 % zeros", "75%"), ("90 % zeros", "90%")])
def test_speed_against_int8(line: str, share: str) -> None:
    (shown,) = [text for text in LINES if text.startswith(f"| {line}")]
    for tokens in ("1 x 32", "8 x 64"):
        row = evidence("bench-sparse-encoder", tokens=tokens, what=f"ours {share}, integers")
        assert f"| {row['than ONNX Runtime int8']:.1f} " in shown


def test_shrink() -> None:
    (shown,) = [text for text in LINES if "smaller ordinary network" in text]
    row = max(
        json.loads((ROOT / "docs" / "evidence" / "bench-shrink.json").read_text("utf8"))["rows"],
        key=lambda row: (row["network"] == "resnet20", row["multiply-adds"]),
    )
    assert f"{row['multiply-adds']:.0%}".replace("%", " %") in shown
    assert f"{row['dense']:.2%}".replace("%", " %") in shown
    assert f"{row['ours']:.2%}".replace("%", " %") in shown


def test_the_network_that_loses_most() -> None:
    (shown,) = [text for text in LINES if "EfficientNet-Lite0" in text]
    row = evidence("quality-efficientnet", method="reconstruct", pattern="unstructured", sparsity=0.5)
    assert f"| {evidence('quality-efficientnet', method='dense')['right %']:.1f} % | {row['right %']:.1f} % |" in shown


def test_a_deeper_network_shrunk() -> None:
    (shown,) = [text for text in LINES if "ResNet-56" in text]
    row = evidence("bench-shrink", network="resnet56")
    assert f"to {100 * row['multiply-adds']:.0f} % of" in shown
    assert f"| {100 * row['dense']:.2f} % | {100 * row['ours']:.2f} % |" in shown
