"""`prunus compress` and `prunus bench`: what they write and print, and how they refuse."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
import torch

import prunus
from prunus.cli import run


@pytest.fixture
def pruned(tmp_path: Path) -> Path:
    path = tmp_path / "pruned.safetensors"
    arguments = ["prune", "fc:128-128-10", "--sparsity", "0.9", "--pattern", "balanced:16", "-o", str(path), "--json"]
    assert run(arguments) == 0
    return path


def test_compress_writes_a_file_that_loads(pruned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    small = tmp_path / "small.safetensors"
    options = [
        "--weights",
        str(pruned),
        "--batch",
        "4",
        "--select",
        "always",
        "--threads",
        "1",
        "-o",
        str(small),
        "--json",
    ]
    assert run(["compress", "fc:128-128-10", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["bytes"] < record["dense_bytes"] / 5
    assert [row["layer"] for row in record["layers"]] == ["layers.0", "layers.1"]
    model = prunus.models.make("fc:128-128-10")
    prunus.models.load_weights(model, pruned)
    fast = prunus.sparse.load(small, model)
    x = torch.randn(3, 128)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-4)


def test_bench_times_peers_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "bench.html"
    options = ["--sparsity", "0.9", "--batch", "2", "--repeats", "3", "--json", "-o", str(page)]
    assert run(["bench", "64x128", "conv:16-16-3@8", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    linear, conv = record["rows"]
    assert {"vs dense", "vs torch CSR", "vs SciPy CSR", "vs best dense", "share of limit"} <= set(linear)
    assert "vs dense, channels last" in conv
    assert abs(linear["sparsity"] - 0.9) < 0.01
    drawn = html.unescape(page.read_text("utf8"))
    assert drawn.count("<figure>") == 2
    assert all(name in drawn for name in ("Roofline", "ideal", *(result["what"] for result in record["results"])))


@pytest.mark.parametrize(
    "arguments",
    [
        ["compress", "fc:16-16-4", "--dtype", "int4"],
        ["compress", "fc:16-16-4", "--select", "sometimes"],
        ["compress", "fc:16-16-4", "--batch", "0"],
        ["compress", "nonesuch"],
        ["bench", "64x64", "--threads", "0"],
        ["bench", "nonesuch"],
    ],
)
def test_bad_input_is_one_sentence_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("prunus: ")
    assert message.count("\n") == 1
