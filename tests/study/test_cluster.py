from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest
from tools.evidence import record

from prunus.errors import BadInput, MissingExtra
from prunus.study import Progress, run_study
from prunus.study.cluster import RayEngine
from support import PROVING, scale
from support.studies import Here, contents, tiny

HERE = importlib.util.find_spec("ray") is not None


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    with pytest.raises(MissingExtra, match=r"prunus\[cluster\]"):
        RayEngine()


def test_workers_are_counted() -> None:
    with pytest.raises(BadInput, match="at least one worker"):
        RayEngine(0)


@pytest.mark.skipif(not HERE, reason="needs Ray: pip install 'prunus[cluster]'")
@pytest.mark.prove
def test_a_cluster_gives_the_same_and_survives_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers; the process of one is killed while it runs a cell."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = tiny(sparsity=tuple((place + 30) / 100 for place in range(scale(3, full=60))))
    run_study(cells, tmp_path / "local", engine=Here())
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        if progress.done and not killed:
            killed.extend(victims()[:1])
            for process in killed:
                os.kill(process, signal.SIGKILL)

    run_study(cells, tmp_path / "cluster", engine=RayEngine(2), show=kill_one)
    assert killed
    cluster, local = contents(tmp_path / "cluster"), contents(tmp_path / "local")
    assert len(local) == len(cells)
    assert cluster == local
    if PROVING:
        rows = [{"cells": len(cells), "workers": 2, "processes killed": len(killed), "differences": 0}]
        record("study-ray", rows=rows, note="A study on a Ray cluster, one worker killed, against local processes.")


def victims() -> list[int]:
    """Processes of Ray that run a cell of this test, found by the name Ray gives them."""
    mine, end = [], time.monotonic() + 30
    while not mine and time.monotonic() < end:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                parents = (folder / "environ").read_bytes()
            except OSError:
                continue  # it ended meanwhile, or is somebody else's
            if words.startswith(b"ray::_perform") and str(Path(__file__).parents[1]).encode() in parents:
                mine.append(int(folder.name))
    return mine
