from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from prunus.data import load
from prunus.errors import BadFile

ROWS = 15_200


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    return {
        "quantitative": rng.randint(-150, 4000, (10, ROWS)).astype(np.int16),
        "wilderness": rng.randint(0, 4, ROWS).astype(np.uint8),
        "soil": rng.randint(0, 40, ROWS).astype(np.uint8),
        "label": rng.randint(1, 8, ROWS).astype(np.uint8),
    }


def as_text(table: dict[str, np.ndarray]) -> bytes:
    indicators = [np.eye(4, dtype=int)[table["wilderness"]], np.eye(40, dtype=int)[table["soil"]]]
    rows = np.concatenate([table["quantitative"].T, *indicators, table["label"][:, None]], 1)
    return b"".join(b",".join(b"%d" % value for value in row) + b"\n" for row in rows.tolist())


def test_both_formats_agree_in_the_documented_split(table: dict[str, np.ndarray], tmp_path: Path) -> None:
    for place in ("a/covertype", "b", "c"):
        (tmp_path / place).mkdir(parents=True)
    np.savez_compressed(tmp_path / "a/covertype/covertype.npz", **table)
    text = as_text(table)
    (tmp_path / "b/covtype.data.gz").write_bytes(gzip.compress(text, 1))
    (tmp_path / "c/covtype.csv").write_bytes(b"Elevation,Aspect,...,Cover_Type\n" + text)
    for split, count in (("train", 11_340), ("validation", 3_780), ("test", ROWS - 15_120)):
        first = load("covertype", split=split, folder=tmp_path / "a")
        assert len(first) == count
        for place in ("b", "c"):
            second = load("covertype", split=split, folder=tmp_path / place)
            assert torch.equal(first.tensors[0], second.tensors[0])
            assert torch.equal(first.labels, second.labels)
    x, y = load("covertype", folder=tmp_path / "a").tensors
    torch.testing.assert_close(x[:, :10].double().mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, :10].double().std(0, correction=0), torch.ones(10, dtype=torch.float64))
    assert set(x[:, 10:].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(x[:, 10:14].argmax(1), torch.from_numpy(table["wilderness"][:11_340]).long())
    assert y.tolist() == (table["label"][:11_340] - 1).tolist()


def test_damaged_tables(table: dict[str, np.ndarray], tmp_path: Path) -> None:
    def refused(**changes: np.ndarray) -> str:
        np.savez_compressed(tmp_path / "covertype.npz", **(table | changes))
        with pytest.raises(BadFile) as caught:
            load("covertype", folder=tmp_path)
        return str(caught.value)

    assert "labels are not numbers from 1 to 7" in refused(label=table["label"] - 1)
    assert "damaged" in refused(soil=table["soil"] + 1)  # a 41st soil
    assert "columns" in refused(quantitative=table["quantitative"][:9])
    assert "too few" in refused(**{key: value[..., :100] for key, value in table.items()})
    (tmp_path / "covertype.npz").unlink()
    text = as_text({key: value[..., :15_130] for key, value in table.items()})
    for bad in (
        b"",
        text[:1000],
        text.replace(b",0,", b",", 1),
        text[:-20] + b"x" + text[-19:],
        text.replace(b"1,", b"2,"),
    ):
        (tmp_path / "covtype.data").write_bytes(bad)
        with pytest.raises(BadFile, match=r"covtype\.data is damaged or of another kind"):
            load("covertype", folder=tmp_path)


@pytest.mark.data
def test_the_real_table() -> None:
    train, test = load("covertype"), load("covertype", split="test")
    assert train.labels.bincount().tolist() == [1620] * 7  # documented: the training part is balanced
    rest = load("covertype", split="validation").labels.bincount() + test.labels.bincount() + 1620
    assert rest.tolist() == [211840, 283301, 35754, 2747, 9493, 17367, 20510]
