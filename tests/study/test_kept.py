"""Pruned networks beside their study."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prunus import models
from prunus.errors import BadFile
from prunus.study import Store, kept, methods, run_study
from prunus.study.retiming import retime
from support.studies import Here, tiny


def test_a_network_that_is_kept_is_not_made_again(tmp_path: Path) -> None:
    (cell,) = tiny(settings={"keep": True})
    file = tmp_path / "networks" / "one.safetensors"
    dense = models.make(cell.model, seed=0)
    first, seconds = kept.made(cell, dense, str(file))
    again, told = kept.made(cell, dense, str(file))
    assert told == seconds
    assert dict(again.masks).keys() == dict(first.masks).keys()
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    with pytest.raises(BadFile):
        kept.made(cell, dense, str(file))


def test_a_study_keeps_its_networks_under_their_keys(tmp_path: Path) -> None:
    (cell,) = cells = tiny(settings={"keep": True, "compress": False})
    (plain,) = tiny(settings={"compress": False})
    assert cell.key == plain.key, "what is kept decides no result"
    run_study(cells, tmp_path, engine=Here())
    assert (tmp_path / "networks" / f"{cell.key}.safetensors").is_file()
    with Store(tmp_path) as store:
        assert store.results()[0].status == "done"


def test_times_are_those_of_the_network_that_was_kept(tmp_path: Path) -> None:
    """A sparser network in its place has a smaller file: it is that one which was packed and timed again."""
    (cell,) = cells = tiny(settings={"keep": True})
    run_study(cells, tmp_path, engine=Here())
    (sparser,) = tiny(sparsity=(0.9,))
    other = methods.make(sparser, models.make(cell.model, seed=0), None)
    kept.keep(tmp_path / "networks" / f"{cell.key}.safetensors", other, 1.0)
    with Store(tmp_path) as store:
        (before,) = store.results()
        assert retime(cells, store) == 1
        (after,) = store.results()
    assert after.record["bytes"] < before.record["bytes"]
    assert after.record["quality"] == before.record["quality"]
