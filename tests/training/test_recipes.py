from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import prunus
from prunus.errors import BadFile, BadInput, UnknownName
from prunus.training import FitConfig, Recipe, recipe, recipes
from support.training import digits, fc, same_bytes

TRAINED = """
about = "everything, quickly"

[reconstruct]
sparsity = 0.75
pattern = "unstructured"
samples = 64
refine = 5

[distil]
length = "1ep"
hidden = 0.5
batch_size = 50

[fit]
length = "2ep"
lr = 0.02
batch_size = 50
"""


@pytest.fixture
def dense() -> torch.nn.Module:
    model = fc()
    prunus.training.fit(model, digits(400)[0], "8ep", FitConfig(lr=0.1, batch_size=32))
    return model


def test_those_that_come_along_are_whole() -> None:
    assert [found.name for found in recipes()] == ["cnn-retrain", "encoder", "llm-oneshot"]
    for found in recipes():
        assert found.about.endswith(".")
        assert found.reconstruct["sparsity"] >= 0.5
        assert (Path(__file__).parents[2] / found.source).is_file()


def test_a_recipe_goes_through_its_steps_and_keeps_its_zeros(dense: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TRAINED)
    train, test = digits(400)
    found = recipe(tmp_path / "mine.toml").replace(sparsity=0.8)
    pruned, plain = copy.deepcopy(dense), copy.deepcopy(dense)
    masks = found.run(pruned, train)
    assert masks.sparsity == pytest.approx(0.8, abs=0.01)
    assert list(masks.notes["steps"]) == ["distil", "fit"]
    assert [len(rows) for rows in masks.notes["steps"].values()] == [1, 2]
    for name, parameter in masks.parameters_of(pruned).items():
        assert not bool(parameter[~masks[name]].any())
    prunus.prune(plain, 0.8)
    assert prunus.training.accuracy(pruned, test) > prunus.training.accuracy(plain, test)


def test_a_recipe_broken_off_goes_on(dense: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(TRAINED)
    train, _ = digits(100)
    found = recipe(tmp_path / "mine.toml")
    whole, broken = copy.deepcopy(dense), copy.deepcopy(dense)
    found.run(whole, train)

    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("prunus.training._recipes.fit", stop)
        with pytest.raises(KeyboardInterrupt):
            found.run(broken, train, folder=tmp_path / "state")
    again = copy.deepcopy(dense)
    found.run(again, train, folder=tmp_path / "state")
    assert same_bytes(again.state_dict(), whole.state_dict())


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[reconstruct]\nsparsty = 0.5", UnknownName, "did you mean 'sparsity'"),
        ("[reconstruct]\n[train]\nlr = 1", UnknownName, "'train'"),
        ('about = "nothing"', BadInput, "reconstruct"),
        ("about = [", BadFile, "no recipe"),
    ],
)
def test_files_that_are_no_recipes(text: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(error, match=words):
        recipe(tmp_path / "wrong.toml")


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownName, match="encoder"):
        recipe("encoders")
    with pytest.raises(UnknownName):
        recipe("../recipes/encoder")
    with pytest.raises(BadFile, match="cannot be read"):
        recipe("missing.toml")
    with pytest.raises(UnknownName, match="lr"):
        Recipe("mine", "").replace(lr=0.1)
