"""Texts as token ids: IMDB reviews and SST-2 sentences.

The tokeniser is simple and fixed. For IMDB: "<br />" becomes a space, everything lower case, and a token is a run of
letters, digits and underscores, possibly with apostrophes inside ("don't"), or one of . , ! ?. SST-2 comes tokenised:
its tokens stand between spaces.

The vocabulary is that of the training part: its 25,000 most frequent tokens, ties in alphabetical order. Id 0 pads, 1
stands for any other token, the most frequent token is 2: 25,002 ids. A text keeps its first 256 tokens (SST-2: 64) and
is padded at the end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import torch

from prunus.data.files import find, read_bytes, reading
from prunus.data.labelled import Labelled
from prunus.errors import BadInput

PAD, UNKNOWN, FIRST = 0, 1, 2
VOCABULARY = 25_000
SENTIMENTS = ("negative", "positive")
_TOKEN = re.compile(r"\w+(?:'\w+)*|[.,!?]")
_IMDB_LENGTH, _SST2_LENGTH = 256, 64

Rows = list[tuple[str, int]]


class Vocabulary(dict[str, int]):
    """Token -> id, from the training part of one folder."""


def tokenise(text: str) -> list[str]:
    """The tokens of a review."""
    return _TOKEN.findall(text.replace("<br />", " ").lower())


def vocabulary(texts: Iterable[Sequence[str]], size: int = VOCABULARY) -> Vocabulary:
    """Ids from `FIRST` on for the `size` most frequent tokens, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for tokens in texts:
        counts.update(tokens)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]
    return Vocabulary({token: FIRST + rank for rank, (token, _) in enumerate(ranked)})


def encode(texts: Iterable[Sequence[str]], count: int, ids: Vocabulary, length: int) -> torch.Tensor:
    """Token ids (count, length), int16 where they fit: cut at `length`, padded at the end."""
    table = np.full((count, length), PAD, dtype=np.int16 if len(ids) + FIRST < 2**15 else np.int32)
    for row, tokens in enumerate(texts):
        kept = [ids.get(token, UNKNOWN) for token in tokens[:length]]
        table[row, : len(kept)] = kept
    return torch.from_numpy(table)


def word_vectors(tokens: torch.Tensor, ids: int, size: int = 100, window: int = 4, seed: int = 0) -> torch.Tensor:
    """A vector (ids, size) for every token id, from the words around it: no labels and no download.

    `tokens` is (texts, length), padded. Counted are pairs of known words at most `window` apart; their positive
    pointwise mutual information (context counts to the power 0.75) is factored by a randomised singular value
    decomposition, and the vectors are the left factors times the root of the singular values, scaled to unit spread.
    """
    tokens, pairs = tokens.long(), []
    for distance in range(1, min(window, tokens.shape[1] - 1) + 1):
        one, two = tokens[:, :-distance].reshape(-1), tokens[:, distance:].reshape(-1)
        known = (one >= FIRST) & (two >= FIRST)
        pairs += [one[known] * ids + two[known], two[known] * ids + one[known]]
    if not pairs or not sum(map(len, pairs)):
        raise BadInput("There are no two known words beside each other in these texts: word vectors need some.")
    pair, count = torch.cat(pairs).unique(return_counts=True)
    row, column, count = pair // ids, pair % ids, count.float()
    total = torch.zeros(ids).index_add_(0, row, count)
    context = total.pow(0.75) / total.pow(0.75).sum()
    information = (count / total[row] / context[column]).log().clamp(min=0)
    matrix = torch.sparse_coo_tensor(torch.stack([row, column]), information, (ids, ids), check_invariants=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, values, _ = torch.svd_lowrank(matrix.coalesce(), q=min(size, ids), niter=3)
    vectors = torch.zeros(ids, size)
    vectors[:, : len(values)] = left * values.sqrt()
    return vectors / vectors.std()


# The test part needs the training part's vocabulary: one that is still in use is not built again.
_HELD: WeakValueDictionary[tuple[Callable[[str], list[str]], Path], Vocabulary] = WeakValueDictionary()


class Text(Labelled):
    """Token ids with the vocabulary that made them."""

    def __init__(self, raw: torch.Tensor, labels: torch.Tensor, ids: Vocabulary) -> None:
        super().__init__(raw, labels, SENTIMENTS)
        self.vocabulary = ids


def _encoded(
    folder: Path, split: str, read: Callable[[Path, str], Rows], split_text: Callable[[str], list[str]], length: int
) -> Text:
    rows = read(folder, split)
    key = (split_text, folder.resolve())
    ids = _HELD.get(key)
    if ids is None:
        training = rows if split == "train" else read(folder, "train")
        # Split twice rather than kept: the tokens of 25,000 reviews take ten times the room of their text.
        ids = _HELD[key] = vocabulary(split_text(text) for text, _ in training)
    raw = encode((split_text(text) for text, _ in rows), len(rows), ids, length)
    return Text(raw, torch.tensor([label for _, label in rows]), ids)


def imdb(folder: Path, split: str) -> Labelled:
    """IMDB reviews: 256 token ids, negative 0, positive 1.

    Read are train.jsonl.xz and test.jsonl.xz (or .jsonl), an object with "text" and "label" a line, and the original
    folders aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, in the order of the ids, negative before positive.
    """
    return _encoded(folder, split, _imdb_rows, tokenise, _IMDB_LENGTH)


def _imdb_rows(folder: Path, split: str) -> Rows:
    path = find(folder, ["imdb"], [f"{split}.jsonl.xz", f"{split}.jsonl.gz", f"{split}.jsonl"])
    if path is not None:
        content = read_bytes(path)
        with reading(path):
            records = [json.loads(line) for line in content.decode("utf8").split("\n") if line]
            return _checked([(record["text"], record["label"]) for record in records])
    original = find(folder, ["imdb"], ["aclImdb"])
    if original is None or not (original / split).is_dir():
        raise BadInput(
            f"There is no file {split}.jsonl.xz and no original folder aclImdb/{split} in {folder / 'imdb'} or in "
            f"{folder}: put one of them there."
        )
    files = [
        (int(file.name.partition("_")[0]), label, file)
        for label, kind in enumerate(("neg", "pos"))
        for file in (original / split / kind).glob("[0-9]*_*.txt")
    ]
    with reading(original / split):
        return _checked([(file.read_bytes().decode("utf8"), label) for _, label, file in sorted(files)])


def sst2(folder: Path, split: str) -> Labelled:
    """SST-2 sentences: 64 token ids, negative 0, positive 1.

    Read are {train,dev,test}.txt(.gz) or stsa.binary.{train,dev,test}: a label, a space, the tokens. Split
    "validation" is dev.
    """
    return _encoded(folder, split, _sst2_rows, str.split, _SST2_LENGTH)


def _sst2_rows(folder: Path, split: str) -> Rows:
    stem = "dev" if split == "validation" else split
    path = find(folder, ["sst2"], [f"{stem}.txt.gz", f"{stem}.txt", f"stsa.binary.{stem}"])
    if path is None:
        raise BadInput(
            f"There is no file {stem}.txt.gz (or {stem}.txt, stsa.binary.{stem}) in {folder / 'sst2'} or in {folder}: "
            "put it there."
        )
    content = read_bytes(path)
    with reading(path):
        lines = (line.split(" ", 1) for line in content.decode("utf8").split("\n") if line)
        return _checked([(text, int(label)) for label, text in lines])


def _checked(rows: Rows) -> Rows:
    if not rows:
        raise ValueError("it holds no texts")
    if not all(isinstance(text, str) and label in (0, 1) for text, label in rows):
        raise ValueError("its labels are not 0 and 1 or its texts not texts")
    return rows
