"""Folders of Hugging Face: read, pruned, compressed, written and read again, also from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus
from prunus.adapters import example_input, output_tensors
from prunus.cli import run
from prunus.data.own import load_own
from prunus.errors import BadFile, BadInput
from prunus.models import resolve
from prunus.sparse import load_pretrained
from prunus.training import perplexity, spearman
from support.foreign import small
from support.fresh import run_fresh

CODE = """
import sys, torch, prunus
from prunus.adapters import example_input, main_output
model = prunus.sparse.load_pretrained(sys.argv[1])
with torch.no_grad():
    torch.save(main_output(model(**example_input(model, batch=2))), sys.argv[2])
"""


def test_a_part_of_a_model_is_read_as_what_it_is(tmp_path: Path) -> None:
    from support.hugging_face import build

    build("whisper encoder")[0].save_pretrained(tmp_path)
    assert type(resolve(f"hf:{tmp_path}")).__name__ == "WhisperEncoder"


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama-tied", "vit"])
def test_a_folder_is_read_compressed_written_and_read_in_a_fresh_process(kind: str, tmp_path: Path) -> None:
    small(kind).save_pretrained(tmp_path / "dense")
    model = resolve(f"hf:{tmp_path / 'dense'}")
    assert type(model).__name__ == type(small(kind)).__name__
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = prunus.compress(model, example=example_input(model, batch=2), select="always")
    fast.save_pretrained(tmp_path / "fast")
    done = run_fresh(CODE, str(tmp_path / "fast"), str(tmp_path / "out.pt"), packages=("torch", "transformers"))
    assert done.returncode == 0, done.stderr[-2000:]
    with torch.no_grad():
        wanted = output_tensors(model(**example_input(model, batch=2)))[0]
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), wanted, rtol=1e-4, atol=1e-4)


def test_the_librarys_own_loader_refuses_and_so_does_ours(tmp_path: Path) -> None:
    model = small("bert")
    prunus.prune(model, 0.75, pattern="balanced:16")
    fast = prunus.compress(model, example=example_input(model), select="always")
    fast.save_pretrained(tmp_path)
    with pytest.raises(OSError, match="no file named"):
        type(model).from_pretrained(tmp_path)
    with pytest.raises(BadInput, match="load_pretrained"):
        resolve(f"hf:{tmp_path}")
    with pytest.raises(BadInput, match="one form only"):
        fast.save_pretrained(tmp_path, max_shard_size="1GB")
    small("bert").save_pretrained(tmp_path / "dense")
    with pytest.raises(BadInput, match="holds other weights"):
        fast.save_pretrained(tmp_path / "dense")
    with pytest.raises(BadFile, match="not written by a compressed model"):
        load_pretrained(tmp_path / "dense")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda place: None, "There is no folder"),
        (lambda place: place.write_bytes(b"weights"), "is a file: give the model's folder, and weights"),
        (lambda place: place.mkdir(), "no config.json and no GGUF"),
        (lambda place: (place.mkdir(), (place / "config.json").write_text("{}")), "cannot be read"),
        (lambda place: (small("bert").save_pretrained(place), (place / "model.safetensors").unlink()), "cannot be"),
    ],
)
def test_bad_folders_are_one_sentence(make, said: str, tmp_path: Path) -> None:
    make(tmp_path / "model")
    with pytest.raises(BadFile, match=said):
        resolve(f"hf:{tmp_path / 'model'}")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    small("bert").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("pooler.dense.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"lacks weights.*pooler\.dense\.weight"):
        resolve(f"hf:{tmp_path}")


class Words:
    """A tokenizer that counts letters."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        ids = [len(word) for word in text.split()] or [1]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def test_own_files_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("first,second,score\na bb ccc,a bb ccc,5\na bb,dddd eeeee,1\nff,a ggg,2\n")
    (tmp_path / "words.txt").write_text("a bb ccc dddd\nee f ggg\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a bb", "label": 1}) + "\n")
    pairs = load_own(f"{tmp_path / 'pairs.csv'}:first,second", Words())
    assert -1 <= spearman(small("bert"), pairs) <= 1
    text = load_own(str(tmp_path / "words.txt"), Words())
    assert perplexity(small("llama"), text) == pytest.approx(100, rel=0.5)
    assert load_own(str(tmp_path / "rows.jsonl"), Words())[0]["labels"] == 1
    with pytest.raises(BadFile, match="say which one"):
        load_own(str(tmp_path / "pairs.csv"), Words())
    with pytest.raises(BadInput, match="tokenizer"):
        load_own(str(tmp_path / "words.txt"))
    with pytest.raises(BadFile, match="no file"):
        load_own(str(tmp_path / "none.jsonl"), Words())


def test_the_command_line_takes_folders_shapes_and_scores(tmp_path: Path, capsys, monkeypatch) -> None:
    small("llama").save_pretrained(tmp_path / "dense")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(576, 2))\n"
        "def score(context):\n    return {n: w.parameter.detach().abs() for n, w in context.weights.items()}\n"
    )
    prune = ["prune", "hf:dense", "--sparsity", "0.75", "--pattern", "balanced:16", "-o", "p.safetensors", "--json"]
    assert run(prune) == 0
    record = json.loads(capsys.readouterr().out)
    assert all(row["multiply_adds"] for row in record["layers"])
    assert run(["compress", "hf:dense", "--weights", "p.safetensors", "--input-ids", "8", "-o", "fast"]) == 0
    assert (tmp_path / "fast" / "prunus.safetensors").is_file()
    capsys.readouterr()
    own = ["prune", "mine:net", "--input", "3x8x8", "--score", "mine:score", "--sparsity", "0.5", "--json"]
    assert run(own) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"][0]["multiply_adds"] == 3 * 16 * 9 * 36
    assert run(["prune", "conv6:channels=1,width=0.1", "--sparsity", "0.5"]) == 0
    assert run(["prune", "mine:net", "--input", "3by8"]) == 2
    assert run(["compress", "hf:nowhere"]) == 2
