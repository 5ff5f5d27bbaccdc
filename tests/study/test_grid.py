from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from prunus.errors import BadFile, BadInput, UnknownName
from prunus.study import Cell, Grid, Settings


def test_cells_are_the_product_and_nm_has_one_sparsity() -> None:
    grid = Grid(model=("fc:64-10",), pattern=("unstructured", "2:4"), sparsity=(0.5, 0.8, 0.9), seed=(0, 1))
    cells = grid.cells()
    assert len(cells) == len(set(cells)) == 2 * (3 + 1)
    assert {cell.sparsity for cell in cells if cell.pattern == "2:4"} == {0.5}


def test_the_key_follows_what_decides_the_result(tmp_path: Path) -> None:
    cell = Grid(model=("fc:64-10",)).cells()[0]
    assert cell.key == dataclasses.replace(cell).key
    changes = {"model": "fc:64-8-10", "width": 2.0, "data": "mnist", "score": "random", "pattern": "balanced:16"}
    changed = [dataclasses.replace(cell, **{name: value}) for name, value in changes.items()]
    changed += [dataclasses.replace(cell, sparsity=0.7), dataclasses.replace(cell, seed=5)]
    changed.append(dataclasses.replace(cell, settings=Settings(length="11ep")))
    assert len({cell.key, *(other.key for other in changed)}) == len(changed) + 1
    elsewhere = dataclasses.replace(cell, settings=Settings(data_dir=str(tmp_path)))
    assert elsewhere.key == cell.key, "where the data lies decides nothing"
    again = Cell.from_dict(cell.to_dict())
    assert again == cell


def test_cells_that_differ_in_the_pruning_share_the_dense_network() -> None:
    cells = Grid(model=("fc:64-10",), pattern=("unstructured", "balanced:16"), seed=(0, 1)).cells()
    assert len({cell.base for cell in cells}) == 2
    assert len({(cell.base, cell.seed) for cell in cells}) == 2


def test_a_weights_file_that_changes_is_another_network(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"one")
    cell = Grid(model=("fc:64-10",), settings=Settings(weights=str(file))).cells()[0]
    before = (cell.key, cell.base)
    file.write_bytes(b"other")
    assert cell.key != before[0]
    assert cell.base != before[1]


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'model = "fc:64-32-10"\npattern = ["unstructured", "balanced:16"]\nsparsity = [0.5, 0.9]\nseed = [0, 1, 2]\n'
        '[settings]\nlength = "5ep"\nexclude = ["layers.1"]\nradius = 1\n'
    )
    grid = Grid.read(file)
    assert (len(grid.cells()), grid.settings.exclude, grid.settings.radius) == (12, ("layers.1",), 1.0)


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("model = 3", BadInput, "model must be text"),
        ('modle = "fc:64-10"\nmodel = "fc:64-10"', UnknownName, "did you mean 'model'"),
        ('model = "fc:64-10"\n[settings]\nlenght = "1ep"', UnknownName, "did you mean 'length'"),
        ('model = "fc:64-10"\nsparsity = []', BadInput, "empty"),
        ('model = "fc:64-10"\nsparsity = [1.5]', BadInput, "must lie in"),
        ('model = "fc:64-10"\npattern = "stripes"', UnknownName, "balanced:B"),
        ('model = "fc:64-10"\n[settings]\nallocation = "damge"', UnknownName, "did you mean 'damage'"),
        ('model = "fc:64-10"\n[settings]\nlength = "long"', BadInput, "length of training"),
        ('model = "fc:64-10"\n[settings]\ncompress = 1', BadInput, "true or false"),
        ("sparsity = [0.5]", BadInput, "model is missing"),
        ("model = ", BadFile, "not TOML"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, text: str, error: type, part: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    with pytest.raises(error, match=part.replace("(", r"\(")):
        Grid.read(file)
    with pytest.raises(BadFile, match="cannot be read"):
        Grid.read(tmp_path / "absent.toml")
