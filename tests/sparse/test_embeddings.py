"""Embeddings in fewer bits: what compress returns is what a file gives back, and its error is the one stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import prunus
from prunus import storage
from prunus.adapters import example_input, output_tensors
from prunus.cli import run
from prunus.errors import BadFile, BadInput
from prunus.sparse import compress, explain, load, load_pretrained, save
from support.foreign import small

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def answers(model: nn.Module, example: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return output_tensors(model(**example))[0]


@pytest.mark.parametrize(
    ("kind", "tables", "dtype", "release"),
    [
        ("bert", 3, torch.bfloat16, False),
        ("bert", 3, torch.int8, True),
        ("llama-tied", 1, torch.int8, False),
        ("t5", 3, torch.int8, True),
    ],
)
def test_a_file_gives_back_what_was_run(
    kind: str, tables: int, dtype: torch.dtype, release: bool, tmp_path: Path
) -> None:
    model, plain = small(kind, vocab_size=2000), small(kind, vocab_size=2000)
    for one in (model, plain):
        prunus.prune(one, 0.75, pattern="balanced:16")
    example = example_input(model)
    whole = compress(plain, example=example, select="always")
    fast = compress(model, example=example, select="always", embeddings=dtype, release=release)
    if not release:
        assert torch.equal(answers(model, example), answers(plain, example))  # the model is left as it is
    off = (answers(fast, example) - answers(whole, example)).norm() / answers(whole, example).norm()
    assert 0 < float(off) < 0.05
    fast.save_pretrained(tmp_path / "fast")
    whole.save_pretrained(tmp_path / "whole")
    again = load_pretrained(tmp_path / "fast")
    assert torch.equal(answers(again, example), answers(fast, example))
    assert explain(again) == explain(fast)
    mine = [row for row in explain(fast) if row.format.startswith("embedding")]
    saved = sum(row.dense_bytes - row.bytes for row in mine)
    files = [(tmp_path / place / "prunus.safetensors").stat().st_size for place in ("whole", "fast")]
    assert len(mine) == tables
    assert 0.9 * saved < files[0] - files[1] < 1.1 * saved
    for row in mine:
        old, new = (one.get_submodule(row.layer).weight.detach() for one in (plain, again))
        assert row.error == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-4)
    # saved a second time: the same values again
    again.save_pretrained(tmp_path / "second")
    assert torch.equal(answers(load_pretrained(tmp_path / "second"), example), answers(fast, example))


@pytest.mark.parametrize("kind", TYPES)
def test_rounding_changes_nothing_twice_and_little_once(kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (300.0, 1.0, 1e-3, 1e-5):
        values = torch.randn(200, 33, generator=generator) * torch.rand(200, 1, generator=generator) * size
        model = nn.Sequential(nn.Embedding(200, 33)).to(kind)
        model[0].weight.data = values.to(kind)
        model[0].weight.data[7] = 0
        once = compress(model, embeddings=torch.int8)
        twice = compress(once, embeddings=torch.int8)
        assert torch.equal(once[0].weight, twice[0].weight)
        assert once[0].weight.dtype == kind
        off = (once[0].weight.double() - model[0].weight.double()).abs()
        most = model[0].weight.double().abs().amax(1, keepdim=True)
        assert bool((off <= most / (253 if kind == torch.float32 else 127)).all())


def test_a_table_that_was_changed_since_is_stored_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16))
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = compress(model, select="always", embeddings=torch.int8)
    with torch.no_grad():
        fast[0].weight[3] += torch.randn(16)
    again = load(save(fast, tmp_path / "net.safetensors"), model)
    assert torch.equal(again[0].weight, fast[0].weight)


def test_what_cannot_be_rounded_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16))
    prunus.prune(model, 0.75, pattern="balanced:16")
    with pytest.raises(BadInput, match=r"bfloat16 or torch\.int8, not as torch\.float16"):
        compress(model, embeddings=torch.float16)
    fast = compress(model, select="always", embeddings=torch.int8)
    path = save(fast, tmp_path / "net.safetensors")

    def rewrite(change) -> Path:  # type: ignore[no-untyped-def]
        tensors, record = storage.read_tensors(path, "sparse model")
        change(tensors, record)
        return storage.write_tensors(tmp_path / "bad.safetensors", tensors, "sparse model", record)

    changes = [
        lambda tensors, record: tensors.pop("0.weight"),
        lambda tensors, record: tensors.pop("0.weight|scale"),
        lambda tensors, record: tensors["0.weight|scale"].fill_(float("nan")),
        lambda tensors, record: tensors.update({"0.weight|scale": torch.ones(1, 1)}),
        lambda tensors, record: tensors.update({"0.weight": torch.zeros(50, 16)}),
        lambda tensors, record: record["stored"].update({"0.weight": "int64"}),
        lambda tensors, record: record["plan"].update(embeddings="load"),
    ]
    for change in changes:
        with pytest.raises(BadFile, match="is damaged"):
            load(rewrite(change), model)
    model[0].weight.data[1, 2] = float("inf")
    with pytest.raises(BadInput, match="embedding '0' holds NaN, infinity"):
        compress(model, embeddings=torch.int8)


def test_the_command_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small("bert", vocab_size=500)
    prunus.prune(model, 0.75, pattern="balanced:16")
    model.save_pretrained(tmp_path / "pruned")
    words = ["compress", f"hf:{tmp_path / 'pruned'}", "--select", "always", "--embeddings", "int8", "--input-ids", "8"]
    assert run([*words, "-o", str(tmp_path / "fast")]) == 0
    out = capsys.readouterr().out
    assert "embeddings.word_embeddings is rounded, with an error of 0." in out
    assert run([*words, "-o", str(tmp_path / "again"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    rows = {row["layer"]: row for row in record["layers"]}
    assert 0 < rows["embeddings.word_embeddings"]["error"] < 0.02
    assert record["file_bytes"] == sum(file.stat().st_size for file in (tmp_path / "again").iterdir())
    assert run([*words[:-3], "float16"]) == 2
