from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import prunus
from prunus.errors import BadFile, BadInput, UnknownName
from prunus.training import FitConfig, Recipe, recipe, recipes
from support.training import conv_net, digits, fc, same_bytes

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
    with pytest.raises(BadInput, match="not by dict"):
        recipe({"reconstruct": {}})  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="'options'"):
        Recipe("mine", "", reconstruct={"options": {"refine": 5}})
    with pytest.raises(UnknownName, match="'config'"):
        Recipe("mine", "", fit={"config": {"lr": 0.1}})
    with pytest.raises(BadInput, match="settings by name"):
        Recipe("mine", "", reconstruct=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "test", "words"),
    [
        (torch.randn(40, 1, 8, 8), None, "Training needs labels"),
        (TensorDataset(torch.randn(40, 64), torch.arange(40) % 10), None, "give images, or a recipe file of your own"),
        (TensorDataset(torch.randn(40, 1, 8, 8), torch.arange(40)), None, "labels run from 0 to 39"),
        (TensorDataset(torch.randn(40, 1, 8, 8), torch.arange(40) % 10), torch.randn(4, 1, 8, 8), "needs labels"),
    ],
    ids=["no labels", "vectors", "other classes", "test without labels"],
)
def test_data_that_fit_cannot_use_are_refused_first(
    data: object, test: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reconstruct(*args: object, **kwargs: object) -> None:
        raise AssertionError("reconstructed before the data were looked at")

    monkeypatch.setattr("prunus.recovery.reconstruct", reconstruct)
    model, state = conv_net(), torch.random.get_rng_state()
    with pytest.raises(BadInput, match=words):
        recipe("cnn-retrain").run(model, data, test)
    assert same_bytes(model.state_dict(), conv_net().state_dict())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_after_a_failure_the_model_is_as_it_was(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(TRAINED.replace("[reconstruct]", '[reconstruct]\nexclude = ["head"]'))
    model = conv_net()
    model.norm.eval()
    before = copy.deepcopy(model.state_dict())

    def stop(trained: torch.nn.Module, *args: object, **kwargs: object) -> None:
        assert not same_bytes(trained.state_dict(), before)
        raise kind("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("prunus.training._recipes.fit", stop)
        with pytest.raises(kind, match="in the middle"):
            recipe(tmp_path / "mine.toml").run(model, digits(100)[0], folder=tmp_path / "state")
    assert same_bytes(model.state_dict(), before)
    assert [model.training, model.norm.training] == [True, False]
    recipe(tmp_path / "mine.toml").run(model, digits(100)[0], folder=tmp_path / "state")  # the same call goes on
    assert not same_bytes(model.state_dict(), before)
