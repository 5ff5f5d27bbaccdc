"""The fifth that is held aside of data without parts: the same for every command, and no class as a whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from prunus.cli import run
from prunus.cli._inputs import data_pair, data_sets
from prunus.named_data import aside, read_data
from prunus.study import Store
from prunus.study.networks import load as load_for_study
from support.studies import tiny

MINE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

ROWS = torch.arange(40.0).reshape(20, 2)

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))

def whole():
    return TensorDataset(ROWS, torch.arange(20) // 10)

def parts(split):
    return TensorDataset(ROWS[:15] if split == "train" else ROWS[15:], torch.zeros(20)[: 15 if split == "train" else 5])

def anything(**options):
    return parts(options["split"])

listed = [(row, place // 10) for place, row in enumerate(ROWS)]
few = listed[:9]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 5 classes of 20 small images, sorted as folders are, and a module with a network and data sets."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("parts")
    chance = torch.Generator().manual_seed(0)
    for label in range(5):
        (folder / "photos" / f"c{label}").mkdir(parents=True)
        for number in range(20):
            pixels = torch.randint(100, (8, 8, 3), generator=chance)
            pixels[label] += 150
            image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / "photos" / f"c{label}" / f"{number:02}.png")
    (folder / "parted_data.py").write_text(MINE)
    return folder


def shown(rows: object) -> list[tuple[list[float], int]]:
    return [(image.flatten().tolist(), int(label)) for image, label in rows]  # type: ignore[attr-defined]


def test_every_class_of_a_folder_is_trained_on_and_measured_and_no_sample_is_both(place: Path) -> None:
    photos = str(place / "photos")
    train, test = data_pair(photos, None)
    assert Counter(label for _, label in train) == dict.fromkeys(range(5), 16)
    assert Counter(label for _, label in test) == dict.fromkeys(range(5), 4)
    assert not [row for row in shown(test) if row in shown(train)]
    assert shown(data_sets(photos, None, "", look=False)[1]) == shown(test)
    assert shown(data_sets(photos, None, "", look=True)[1]) == shown(test)
    (cell,) = tiny(model=("parted_data:network",), data=(photos,), pattern=("unstructured",))
    assert shown(load_for_study(cell, "train")) == shown(train)
    assert shown(load_for_study(cell, "test")) == shown(test)


def test_what_is_learned_from_a_sorted_folder_is_measured_on_the_same_classes(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = ["parted_data:network", "--data", str(place / "photos"), "--length", "20ep"]
    assert run(["train", *words, "-o", str(place / "trained"), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)["final"]
    assert trained["test_accuracy"] >= 0.9
    pruned = ["--weights", str(place / "trained" / "model.safetensors"), "--sparsity", "0.5", "--json"]
    assert run(["prune", *words[:3], *pruned]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy_before"] == pytest.approx(trained["test_accuracy"])


def test_a_study_of_a_folder_measures_what_it_did_not_train_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    few = ["--certify", "0", "--kernel", "0", "--labels", "0", "--held-out", "100", "--seed", "0", "--no-compress"]
    words = ["study", "parted_data:network", "--data", str(place / "photos"), "--length", "1ep", *few]
    assert run([*words, "--sparsity", "0.5", "--pattern", "unstructured", "-o", str(place / "study")]) == 0
    with Store(place / "study") as store:
        result = next(iter(store.results()))
    assert result.record["answers"] == 20


def test_data_sets_without_a_split_are_parted_and_others_keep_theirs(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for name in ("whole", "listed"):
        train, test = data_pair(f"parted_data:{name}", None)
        assert (len(train), len(test)) == (16, 4)
        assert not [row for row in shown(test) if row in shown(train)]
        assert {label for _, label in shown(train)} == {0, 1}
        assert shown(data_sets(f"parted_data:{name}", None, "", look=False)[1]) == shown(test)
    for name in ("parts", "anything"):
        train, test = data_pair(f"parted_data:{name}", None)
        assert (len(train), len(test)) == (15, 5)
        assert len(read_data(f"parted_data:{name}", "test", None, "")) == 5
    assert [len(part) for part in data_pair("parted_data:few", None)] == [9, 9]
    assert [len(part) for part in data_pair("digits", None)] == [1297, 500]


def test_running_text_keeps_its_neighbours_and_sorted_labels_are_mixed() -> None:
    text = [{"input_ids": [place, 1, 2], "labels": [place, 1, 2]} for place in range(23)]
    assert aside(text) == [19, 20, 21, 22]
    assert aside([{"input_ids": [place]} for place in range(10)]) == [8, 9]
    assert aside([torch.arange(3)] * 10) == [8, 9]
    reviews = [{"input_ids": [place, 1, 2], "labels": place // 50} for place in range(100)]
    assert Counter(place // 50 for place in aside(reviews)) == {0: 10, 1: 10}
    assert aside(reviews) == aside(list(reviews))
    assert aside(reviews) != list(range(4, 100, 5))
    pairs = [({"input_ids": [1]}, {"input_ids": [2]}, place / 20) for place in range(20)]
    assert len(aside(pairs)) == 4
    assert aside(pairs) != [16, 17, 18, 19]
    assert aside(TensorDataset(torch.zeros(100, 3), torch.arange(100))) != list(range(80, 100))
    assert not aside(text[:9])
