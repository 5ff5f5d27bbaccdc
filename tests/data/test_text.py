from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
import torch

from prunus.data import load
from prunus.data.text import FIRST, PAD, UNKNOWN, tokenise, vocabulary, word_vectors
from prunus.errors import BadFile, BadInput

# id, rating, label, text; in the order of the packed file: by id, negative first. U+2028 is no end of line.
REVIEWS = [
    (0, 3, 0, "Bad. It's bad!<br /><br />Really bad"),
    (0, 9, 1, "A good film\u2028with good actors, good."),
    (1, 1, 0, "Don't watch"),
    (10, 10, 1, "Très good"),
]


def packed(folder: Path) -> None:
    (folder / "imdb").mkdir(parents=True)
    for split in ("train", "test"):
        rows = [{"id": i, "rating": r, "label": y, "text": text} for i, r, y, text in REVIEWS]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "imdb" / f"{split}.jsonl.xz").write_bytes(lzma.compress(lines.encode()))


def original(folder: Path) -> None:
    for split in ("train", "test"):
        for number, rating, label, text in REVIEWS:
            file = folder / "aclImdb" / split / ("neg", "pos")[label] / f"{number}_{rating}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())


def test_tokeniser() -> None:
    assert tokenise("It's GOOD!<br />Très-bien, 10/10...") == [
        *("it's", "good", "!", "très", "bien", ",", "10", "10", ".", ".", "."),
    ]


def test_vocabulary_is_by_frequency_then_alphabet_and_cut() -> None:
    ids = vocabulary([["b", "a", "c"], ["c", "d"]], size=3)
    assert ids == {"c": FIRST, "a": FIRST + 1, "b": FIRST + 2}


def test_imdb_is_the_same_from_both_formats(tmp_path: Path) -> None:
    packed(tmp_path / "packed")
    original(tmp_path / "original")
    first, second = (load("imdb", split="test", folder=tmp_path / kind) for kind in ("packed", "original"))
    assert torch.equal(first.tensors[0], second.tensors[0])
    assert first.labels.tolist() == second.labels.tolist() == [0, 1, 0, 1]
    x, y = first[0]
    assert x.shape == (256,)
    assert x.dtype == torch.int64
    assert y == 0
    ids = first.vocabulary
    assert x[:9].tolist() == [
        ids["bad"],
        ids["."],
        ids["it's"],
        ids["bad"],
        ids["!"],
        ids["really"],
        ids["bad"],
        PAD,
        PAD,
    ]


def test_words_of_the_test_part_alone_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2/train.txt.gz").write_bytes(gzip.compress(b"1 a fine film\n0 a bore\n"))
    (tmp_path / "sst2/dev.txt").write_bytes(b"0 a dull film\n")
    (tmp_path / "sst2/stsa.binary.test").write_bytes(b"1 " + b"fine " * 70 + b"\n")
    dev = load("sst2", split="validation", folder=tmp_path)
    assert dev[0][0][:4].tolist() == [dev.vocabulary["a"], UNKNOWN, dev.vocabulary["film"], PAD]
    assert dev[0][1] == 0
    test = load("sst2", split="test", folder=tmp_path)
    assert test.raw.unique().tolist() == [dev.vocabulary["fine"]]  # cut at 64: no room for padding


def test_damaged_texts(tmp_path: Path) -> None:
    packed(tmp_path)
    file = tmp_path / "imdb/train.jsonl.xz"
    good = file.read_bytes()
    contents = [b"", good[: len(good) // 2], b"text", lzma.compress(b""), lzma.compress(b'{"text": "a"}\n')]
    contents += [lzma.compress(b'{"text": "a", "label": 2}\n'), lzma.compress(b"[1]\n"), lzma.compress(b"\xff\xfe\n")]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(BadFile, match=r"train\.jsonl\.xz is damaged or of another kind"):
            load("imdb", folder=tmp_path)
    (tmp_path / "sst2").mkdir()
    for content in (b"", b"good film\n", b"2 good film\n", b"1\n"):
        (tmp_path / "sst2/train.txt").write_bytes(content)
        with pytest.raises(BadFile, match=r"train\.txt is damaged or of another kind"):
            load("sst2", folder=tmp_path)


@pytest.mark.data
def test_the_real_reviews() -> None:
    train = load("imdb")
    assert len(train) == 25_000
    assert train.labels.bincount().tolist() == [12_500, 12_500]
    assert len(train.vocabulary) == 25_000
    assert int(train.raw.max()) == 25_001
    assert (train.raw == UNKNOWN).float().mean() < 0.03


@pytest.mark.data
def test_the_real_sentences() -> None:
    parts = {split: load("sst2", split=split) for split in ("train", "validation", "test")}
    assert {split: part.labels.bincount().tolist() for split, part in parts.items()} == {
        "train": [3310, 3610],
        "validation": [428, 444],
        "test": [912, 909],
    }
    assert not (parts["train"].raw == UNKNOWN).any()
    assert not parts["train"].raw[:, -1].any()  # 64 is longer than the longest sentence


def test_word_vectors_put_words_of_the_same_company_together() -> None:
    generator = torch.Generator().manual_seed(0)
    topic = torch.randint(2, (400, 1), generator=generator)
    tokens = FIRST + 20 * topic + torch.randint(20, (400, 30), generator=generator)  # two topics of twenty words
    tokens[:, 25:] = PAD
    state = torch.random.get_rng_state()
    vectors = word_vectors(tokens, FIRST + 41, size=8)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(vectors, word_vectors(tokens, FIRST + 41, size=8))
    assert vectors.shape == (FIRST + 41, 8)
    assert torch.isfinite(vectors).all()
    assert abs(float(vectors.std()) - 1) < 1e-5
    unit = torch.nn.functional.normalize(vectors[FIRST : FIRST + 40], dim=1)
    alike = unit @ unit.T
    assert alike[:20, :20].mean() > 0.75
    assert alike[20:, 20:].mean() > 0.75
    assert alike[:20, 20:].mean() < 0.2
    assert not vectors[[PAD, -1]].abs().gt(1e-4).any()  # never seen: nothing is known of them
    with pytest.raises(BadInput, match="word vectors need some"):
        word_vectors(torch.zeros(3, 5), 10)
