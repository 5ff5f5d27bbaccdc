"""Pruned networks beside their study."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from prunus import models
from prunus.errors import BadFile
from prunus.recovery._saved import Saved
from prunus.study import Store, kept, methods, run_study
from prunus.study.retiming import retime
from prunus.training.checkpoints import Checkpoints
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


@pytest.mark.parametrize("broken_in", ["reconstruct", "distil"])
def test_a_cell_that_was_broken_off_goes_on(broken_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends in the same bytes, and tells the seconds of both runs."""
    monkeypatch.setattr(kept, "_EVERY", 0.01)
    monkeypatch.setattr(methods, "_SAVED", "2it")
    settings = {"keep": True, "distil": "8it", "samples": 64, "finetune_lr": 0.01}
    (cell,) = tiny(method=("reconstruct+distil",), settings=settings)
    dense = models.make(cell.model, seed=0)
    keeper, name = (Saved, "keep") if broken_in == "reconstruct" else (Checkpoints, "save")
    original, calls = getattr(keeper, name), []

    def counting(*args: Any) -> Any:
        calls.append(args)
        found = original(*args)
        if len(calls) == count + 1:
            time.sleep(0.3)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(keeper, name, counting)
    count = 1000
    whole, _ = kept.made(cell, dense, str(tmp_path / "whole.safetensors"))
    count = len(calls)
    assert count > 1
    file = tmp_path / "broken.safetensors"
    with pytest.raises(KeyboardInterrupt):
        kept.made(cell, dense, str(file))
    assert file.with_suffix(".state").is_dir()
    found, seconds = kept.made(cell, dense, str(file))
    assert not file.with_suffix(".state").exists()
    assert seconds > 0.3
    assert len(calls) == 2 * count, "nothing that was kept was made again"
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name])


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
