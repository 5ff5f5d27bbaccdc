"""Data of the user's own on the command line: text with the model's tokenizer, pairs, running text, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prunus.cli import run
from prunus.data.own import load_own, pictures_of
from prunus.errors import BadFile
from support.foreign import small

TEXT = "a plum tree bears best when it is pruned and the rain fell all night so they stayed at home"
WORDS = TEXT.split()
OWN = """
from torch import manual_seed, nn

def network():
    manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.ReLU(), nn.Linear(4, 2))
"""

BAD = {
    "names.csv": "text,label\nplum,good\n",
    "short.csv": "text,label\nplum,1\npear\n",
    "cut.jsonl": '{"text": "plum", "label": 1}\n{"text": "pe\n',
    "list.jsonl": '["plum", 1]\n',
    "unscored.csv": "first,second\nplum,pear\npear,fig\nfig,plum\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of models with a tokenizer of twenty words, and files of data."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("own")
    known = {word: number for number, word in enumerate(["<pad>", "<unk>", *dict.fromkeys(WORDS)])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
    for kind in ("bert", "bert-classifier", "llama", "t5"):
        small(kind).save_pretrained(folder / kind)
        tokenizer.save_pretrained(folder / kind)
    small("vit").save_pretrained(folder / "vit")
    small("gpt2").save_pretrained(folder / "gpt2")
    texts = [" ".join(WORDS[start : start + 5]) for start in range(12)]
    rows = [json.dumps({"text": text, "label": number % 2}) for number, text in enumerate(texts)]
    (folder / "reviews.jsonl").write_text("\n".join(rows))
    pairs = [f"{one},{two},{number}" for number, (one, two) in enumerate(zip(texts, reversed(texts)))]
    (folder / "pairs.csv").write_text("\n".join(["first,second,score", *pairs]))
    (folder / "words.txt").write_text("\n".join(texts))
    for name, content in BAD.items():
        (folder / name).write_text(content)
    image = pytest.importorskip("PIL.Image")
    for label in ("cats", "dogs"):
        (folder / "photos" / label).mkdir(parents=True)
        for number, size in enumerate([(40, 50), (64, 32)]):
            pixels = torch.randint(255, (*size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
            image.fromarray(pixels.numpy()).save(folder / "photos" / label / f"{number}.png")
        (folder / "icons" / label).mkdir(parents=True)
        for number in range(6):
            pixels = torch.randint(255, (4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
            image.fromarray(pixels.numpy()).save(folder / "icons" / label / f"{number}.png")
    (folder / "icon_network.py").write_text(OWN)
    return folder


def record(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert run([*words, "--sparsity", "0.5", "--misfits", "skip", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "model", "data", "metric"),
    [
        ("reconstruct", "bert-classifier", "reviews.jsonl:text", "accuracy"),
        ("reconstruct", "bert", "pairs.csv:first,second", "spearman"),
        ("reconstruct", "llama", "words.txt", "perplexity"),
        ("reconstruct", "t5", "words.txt", "perplexity"),
        ("prune", "bert", "pairs.csv:first,second", "spearman"),
        ("prune", "llama", "words.txt", "perplexity"),
        ("prune", "vit", "photos", "accuracy"),
        ("reconstruct", "vit", "photos", "accuracy"),
    ],
)
def test_the_metric_fits_the_data(
    command: str, model: str, data: str, metric: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(capsys, command, f"hf:{place / model}", "--data", str(place / data))
    assert found["metric"] == metric
    assert {f"{metric}_before", f"{metric}_after"} <= found.keys()


@pytest.mark.parametrize(
    ("model", "data", "options", "said"),
    [
        ("bert", "pairs.csv:first,second", ["--metric", "accuracy"], "choose the metric spearman"),
        ("llama", "words.txt", ["--metric", "accuracy"], "choose the metric perplexity"),
        ("bert", "reviews.jsonl", [], "no scores"),
        ("bert", "pairs.csv:first,third", [], "say which one"),
        ("vit", "words.txt", [], "no tokenizer"),
        ("llama", "words.txt", ["--metric", "perplexty"], "did you mean 'perplexity'"),
        ("llama", "word.txt", [], "no file"),
        ("gpt2", "words.txt", [], "gpt2 holds no tokenizer, which text needs"),
        ("bert-classifier", "words.txt", [], "tells classes apart, so it has no perplexity"),
        ("bert-classifier", "names.csv:text", [], "holds the label 'good': write the number"),
        ("bert-classifier", "short.csv:text", [], "holds a row without 'label'"),
        ("bert-classifier", "cut.jsonl", [], "line 2 is no JSON."),
        ("bert-classifier", "list.jsonl", [], "something else than an object in line 1"),
        ("bert", "unscored.csv:first,second", [], "Every pair has the same similarity"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    model: str, data: str, options: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prune", f"hf:{place / model}", "--data", str(place / data), "--sparsity", "0.5", *options]
    assert run(words) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ("certify", "--sparsity", "0.1", "--samples", "2", "--radius", "0.01", "--method", "intervals", "--no-attack"),
        ("plan", "--error", "1000", "--samples", "1", "--radius", "0.001", "--score", "snip"),
        ("equivalent", "--sparsity", "0.02", "--points", "1", "--radius", "0.0001", "--boxes", "1"),
        ("tangent", "--inputs", "4", "--tests", "2", "--densities", "1"),
    ],
    ids=lambda words: words[0],
)
def test_proofs_and_kernels_read_own_pictures(
    words: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    capsys.readouterr()
    assert run([words[0], "icon_network:network", "--data", "icons", *words[1:], "--json"]) == 0, (
        capsys.readouterr().err
    )
    assert json.loads(capsys.readouterr().out)["model"] == "icon_network:network"


@pytest.mark.parametrize("command", ["certify", "plan", "equivalent", "tangent"])
def test_token_ids_have_no_surroundings(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "certify": ["--sparsity", "0.5", "--samples", "2"],
        "plan": ["--error", "1", "--samples", "2"],
        "equivalent": ["--sparsity", "0.5", "--points", "2"],
        "tangent": ["--inputs", "2"],
    }
    words = [f"hf:{place / 'bert-classifier'}", "--data", str(place / "reviews.jsonl"), *options[command]]
    assert run([command, *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "real numbers" in said
    assert "such as images" in said


@pytest.mark.parametrize("command", [("certify", "--sparsity", "0.5"), ("plan", "--error", "1")], ids=lambda c: c[0])
def test_models_of_token_ids_are_refused(
    command: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command[0], f"hf:{place / 'bert'}", *command[1:]]) == 2
    assert "takes token ids" in " ".join(capsys.readouterr().err.split())


def test_pictures_are_sized_and_scaled_as_the_model_wants(place: Path) -> None:
    assert load_own(str(place / "photos"), pictures=pictures_of(place / "vit"))[0][0].shape == (3, 32, 32)
    with pytest.raises(BadFile, match="differ in size"):
        load_own(str(place / "photos"))
    rules = {
        "size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}, "do_center_crop": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    (place / "vit" / "preprocessor_config.json").write_text(json.dumps(rules))
    found = load_own(str(place / "photos"), pictures=pictures_of(place / "vit"))
    assert [image.shape for image, _ in found] == [(3, 16, 16)] * 4
    assert [label for _, label in found] == [0, 0, 1, 1]
    assert min(float(image.min()) for image, _ in found) < -0.5
    assert max(float(image.max()) for image, _ in found) <= 1.0
    (place / "vit" / "preprocessor_config.json").unlink()


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_files_of_excel_begin_with_a_mark_that_is_no_part_of_a_name(ending: str, tmp_path: Path) -> None:
    content = {
        "csv": "text,label\nplum,1\n",
        "tsv": "text\tlabel\nplum\t1\n",
        "jsonl": '{"text": "plum", "label": 1}\n',
    }
    file = tmp_path / f"own.{ending}"
    file.write_text(content[ending], "utf-8-sig")
    assert load_own(str(file), lambda text, **_: {"input_ids": [len(text)]}) == [{"input_ids": [4], "labels": 1}]
