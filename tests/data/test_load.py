from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prunus.data import describe, load, names
from prunus.errors import BadInput, UnknownName

FILES = {
    "mnist": "train-images-idx3-ubyte",
    "fashion-mnist": "train-images-idx3-ubyte",
    "cifar10": "train_1.npz",
    "covertype": "covertype.npz",
    "imdb": "train.jsonl.xz",
    "sst2": "train.txt.gz",
}


def sentence(*args: object, **kwargs: object) -> str:
    with pytest.raises(BadInput) as caught:
        load(*args, **kwargs)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_missing_folders_and_files_say_what_is_expected_where(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRUNUS_DATA", raising=False)
    assert "PRUNUS_DATA" in sentence(name)
    assert FILES[name] in sentence(name)
    assert f"no data folder {tmp_path / 'absent'}" in sentence(name, folder=tmp_path / "absent")
    assert FILES[name] in sentence(name, folder=tmp_path / "absent")
    message = sentence(name, folder=tmp_path)
    assert FILES[name] in message
    assert str(tmp_path / name) in message
    monkeypatch.setenv("PRUNUS_DATA", str(tmp_path))
    assert sentence(name) == message


def test_unknown_names_and_splits() -> None:
    with pytest.raises(UnknownName, match=r"no data set named 'cifar11'.*did you mean 'cifar10'"):
        load("cifar11")
    with pytest.raises(UnknownName, match=r"no split of digits named 'dev'\. Known: test, train"):
        load("digits", split="dev")
    assert set(names()) == {"digits", "digits-images", *FILES}
    assert describe("covertype").splits == ("train", "validation", "test")


HELD = """
import gc, weakref
from prunus.data import load
first = load("digits", split="test")
assert load("digits", split="test") is first
seen = weakref.ref(first)
del first
gc.collect()
assert seen() is None
"""


def test_a_held_set_is_not_decoded_again_and_a_forgotten_one_is_freed() -> None:
    """In a process of its own: in this one other tests may hold the same set."""
    run = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


OWN = """
import torch
from torch.utils.data import TensorDataset
dataset = TensorDataset(torch.ones(3, 2), torch.zeros(3))
def both(split, folder): return [(split, folder)] * 4
def split_only(split="train"): return [split]
def plain(): return dataset
def fails(): raise OSError("no disk")
def wrong(): return 3
"""


def test_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert len(load("own_data:dataset")) == 3
    assert load("own_data:both", split="test", folder="f")[0] == ("test", "f")
    assert load("own_data:split_only", split="test")[0] == "test"
    assert load("own_data:plain") is load("own_data:dataset")
    assert "failed with OSError: no disk" in sentence("own_data:fails")
    assert "object of type int" in sentence("own_data:wrong")
    assert "has no 'absent'" in sentence("own_data:absent")
    assert "no module 'nowhere'" in sentence("nowhere:dataset")


def test_a_loader_gives_batches_for_cross_entropy() -> None:
    inputs, labels = next(iter(torch.utils.data.DataLoader(load("digits"), batch_size=64)))
    assert inputs.shape == (64, 64)
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
