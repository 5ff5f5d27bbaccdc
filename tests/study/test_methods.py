from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from prunus import data, models
from prunus.errors import BadInput, UnknownName
from prunus.report.facts import panels, payload
from prunus.study import Grid, Settings, Store, methods, run_study
from prunus.study.networks import load
from prunus.training import accuracy, fit
from support.studies import Here, tiny


def test_a_method_adds_one_cell_for_each_choice_it_leaves_open() -> None:
    grid = Grid(
        model=("fc:64-16-10",),
        method=("prune", "imp"),
        score=("magnitude", "random"),
        pattern=("unstructured", "2:4"),
        sparsity=(0.5, 0.9),
        seed=(0,),
    )
    cells = grid.cells()
    assert len(cells) == 2 * (2 + 1) + 2, "two scores with three cells each, and two of imp, which has its own score"
    assert {cell.score for cell in cells if cell.method == "imp"} == {"magnitude"}
    assert len({cell.key for cell in cells}) == len(cells)
    assert grid.left_out() == [
        "2:4 has the sparsity 0.5 only: 0.9 is left out for it.",
        "imp makes unstructured masks only: 2:4 is left out for it.",
    ]


def test_keys_of_older_stores_stay_valid() -> None:
    (cell,) = Grid(model=("fc:64-32-10",), sparsity=(0.5,), seed=(0,)).cells()
    assert cell.key == "aecb38609d8f4625", "the key of this cell before methods were an axis"


def test_a_grid_without_any_cell_says_why() -> None:
    with pytest.raises(BadInput, match="imp makes unstructured masks only"):
        Grid(model=("fc:64-16-10",), method=("imp",), pattern=("2:4",))
    with pytest.raises(UnknownName, match="did you mean 'reconstruct'"):
        Grid(model=("fc:64-16-10",), method=("recontruct",))


def test_methods_that_cannot_measure_damage_have_equal_shares_and_say_so(tmp_path: Path) -> None:
    names = ("prune", "distil", "gradual", "imp", "reconstruct", "reconstruct+distil", "shrink")
    grid = Grid(
        model=("fc:64-16-10",),
        method=names,
        pattern=("unstructured", "channels"),
        sparsity=(0.5,),
        seed=(0,),
        settings=Settings(allocation="damage"),
    )
    spread = {cell.method: cell.settings.allocation for cell in grid.cells()}
    assert {name for name, found in spread.items() if found == "uniform"} == {"prune", "distil", "gradual", "imp"}
    assert spread["reconstruct"] == spread["reconstruct+distil"] == "damage"
    said = "Only reconstruct measures damage: the allocation is uniform for prune, distil, gradual, imp."
    assert grid.left_out()[-1] == said
    plain, rebuilt = tiny(method=("prune", "reconstruct"), settings={"allocation": "damage", "compress": False})
    assert plain.key == tiny(settings={"compress": False})[0].key, "the same cell as in a study of equal shares"
    assert run_study([plain, rebuilt], tmp_path, engine=Here()).failed == 0
    with Store(tmp_path) as store:
        found = {result.config["method"]: result.config["settings"]["allocation"] for result in store.results()}
    assert found == {"prune": "uniform", "reconstruct": "damage"}


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9, 0.99])
def test_rounds_of_iterative_pruning_reach_the_sparsity(sparsity: float) -> None:
    rounds, fraction = methods.imp_rounds(sparsity)
    assert (1 - fraction) ** rounds == pytest.approx(1 - sparsity)
    assert 0 < fraction < 0.3 or rounds == 1


@pytest.mark.parametrize(
    "method", ["prune", "reconstruct", "gradual", "imp", "iterand", "edge-popup", "gem-miner", "multicoated"]
)
def test_every_method_gives_a_network_with_the_zeros_asked_for(method: str, tmp_path: Path) -> None:
    (cell,) = tiny(method=(method,), settings={"gradual": "1ep", "held_out": 0, "sensitivity": 0, "compress": False})
    done = run_study([cell], tmp_path, engine=Here())
    assert "\n" not in str(done)
    assert str(done).startswith("1 of 1 cells done")
    with Store(tmp_path) as store:
        (result,) = store.results()
    assert result.error is None
    assert result.row["method"] == method
    assert result.row["realised_sparsity"] == pytest.approx(0.5, abs=0.01)
    assert result.row["accuracy"] > 0.15, "more than chance, after one epoch"
    (panel,) = panels([result], {})
    layers = payload(panel)["groups"][0]["layers"]
    if method == "reconstruct":
        assert all(0 < row["error_after"] < row["error_before"] <= 1.5 for row in layers)
    else:
        assert {row["error_after"] for row in layers} == {None}


@pytest.mark.parametrize("method", ["shrink", "shrink+distil"])
def test_a_shrunk_network_is_timed_as_it_is(method: str, tmp_path: Path) -> None:
    (cell,) = tiny(method=(method,), pattern=("channels",), settings={"held_out": 50, "sensitivity": 0, "peers": True})
    run_study([cell], tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (result,) = store.results()
    assert result.error is None
    assert result.record["faster_than_int8"] > 0
    assert result.record["speedup_integers"] > 0, "in an engine that runs any network in int8"
    assert 0 < result.record["quality_integers"] <= 1
    assert result.row["bytes"] < result.row["bytes_dense"]
    assert result.record["making"]["multiply_adds"] <= 0.5
    assert result.row["speedup"] > 0
    assert result.row["bound"] is None


PROGRAM = """
from pathlib import Path

import prunus
from prunus.study import Grid, LocalEngine, Settings, run_study


@prunus.scores.register("backwards")
def backwards(context):
    return {name: -weight.parameter.detach().abs() for name, weight in context.weights.items()}


if __name__ == "__main__":
    settings = Settings(length="1ep", certify=0, kernel=0, held_out=0, sensitivity=0, compress=False)
    grid = Grid(model=("fc:64-16-10",), score=("backwards",), sparsity=(0.5,), seed=(0,), settings=settings)
    print(run_study(grid.cells(), Path("out"), engine=LocalEngine(1)))
"""


def test_a_score_of_ones_own_travels_to_the_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    run = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("1 of 1 cells done")
    with Store(tmp_path / "out") as store:
        (result,) = store.results()
    assert result.error is None
    assert result.row["energy_removed"] > 0.8, "the largest half of the weights went"


def test_scores_and_removals_see_all_classes_of_sorted_data() -> None:
    """The first samples of such data are of one class: Wanda kept 21 % of the digits by them, and 89 % by others."""
    dense = models.make("fc:64-128-64-10", seed=0)
    fit(dense, data.load("digits", split="train"), length="15ep")
    test = data.load("digits", split="test")
    settings = Settings(look=128, samples=128, exclude=("layers.2",))
    cell = tiny(data=("support.studies:sorted_digits",), pattern=("balanced:16",), sparsity=(0.8,))[0]
    for method, score, pattern, least in (("prune", "wanda", "balanced:16", 0.75), ("shrink", "", "channels", 0.75)):
        asked = dataclasses.replace(cell, method=method, score=score, pattern=pattern, settings=settings)
        made = methods.make(asked, copy.deepcopy(dense.eval()), load(asked, "train"))
        assert accuracy(made.model, test) > least
