from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools.evidence import record

from prunus.errors import BadFile, BadInput
from prunus.models import make, save_weights
from prunus.study import Cell, Job, LocalEngine, Progress, Settings, Store, check_size, run_study
from prunus.study.retiming import retime
from support import PROVING, scale
from support.studies import Here, contents, tiny


def test_a_study_runs_measures_and_is_not_run_twice(tmp_path: Path) -> None:
    cells = tiny(
        pattern=("balanced:16", "2:4"), settings={"lr": 0.2, "certify": 2}
    )  # far enough from the uniform start
    seen: list[tuple[int, int]] = []

    def show(state: Progress) -> None:
        seen.append((state.done, state.left))

    first = run_study(cells, tmp_path, engine=LocalEngine(1), show=show)
    assert (first.done, first.failed, first.cached) == (2, 0, 0)
    assert seen[0] == (0, 2)
    assert seen[-1] == (2, 0)
    before = contents(tmp_path)
    again = run_study(cells, tmp_path, engine=LocalEngine(1))
    assert (again.done, again.cached) == (0, 2)
    assert contents(tmp_path) == before
    with Store(tmp_path) as store:
        for result in store.results():
            row = result.row
            assert 0 <= row["accuracy"] <= 1
            assert row["attained"] <= row["bound"]
            assert row["ball_attained"] <= row["ball_bound"]
            assert row["realised_sparsity"] == 0.5
            assert row["mac_kept"] * 2 == row["mac_dense"]
            assert row["speedup"] > 0
            assert row["energy_removed"] == pytest.approx(row["energy_predicted"], abs=0.05)
            assert result.record["versions"]["torch"]
        (base,) = store.bases().values()
    assert {row["name"] for row in base["weights"]} == {"layers.0.weight", "layers.1.weight"}
    assert sum(base["weights"][0]["counts"]) == 16 * 64


def test_times_can_be_taken_again(tmp_path: Path) -> None:
    cells = tiny(pattern=("balanced:16", "2:4"))
    run_study(cells[:1], tmp_path, engine=Here())
    before = contents(tmp_path)
    with Store(tmp_path) as store:
        first = store.results()[0].record["time_us"]
        assert retime(cells, store) == 1, "only what is finished"
        again = store.results()[0]
    assert again.record["time_us"] != first
    assert contents(tmp_path) == before, "nothing else changes"
    next((tmp_path / "bases").iterdir()).unlink()
    with Store(tmp_path) as store, pytest.raises(BadFile, match="run the study again"):
        retime(cells, store)


def test_held_out_points_speak_for_the_distribution(tmp_path: Path) -> None:
    (cell,) = tiny(settings={"held_out": 100, "sensitivity": 0})
    run_study([cell], tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (result,) = store.results()
    assert result.row["held_out_bound"] > 0
    assert result.row["held_out_probability"] == pytest.approx(1 - 0.05 ** (1 / 100)), "none of 100 beyond (P-28)"
    assert 0 < result.row["agreement"] <= 1
    assert result.record["layers"][0]["sensitivity"] is None


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    good = tiny()[0]
    bad = dataclasses.replace(good, model="support.studies:broken")
    wrong = dataclasses.replace(good, settings=dataclasses.replace(good.settings, exclude=("nothing",)))
    progress = run_study([bad, wrong, good], tmp_path, engine=LocalEngine(1))
    assert (progress.done, progress.failed) == (1, 2)
    found = contents(tmp_path)
    assert "cannot be built" in found[bad.key][1]
    assert "matches no prunable weight" in found[wrong.key][1]
    assert found[good.key][0] == "done"


@pytest.mark.parametrize(("deaths", "ends"), [(1, "done"), (9, "failed")])
def test_a_worker_that_dies_is_replaced(
    tmp_path: Path, deaths: int, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = tmp_path / "lives"
    lives.write_text(str(deaths))
    monkeypatch.setenv("PRUNUS_TEST_LIVES", str(lives))
    cell = dataclasses.replace(tiny()[0], model="support.studies:deadly")
    run_study([cell], tmp_path / "study", engine=LocalEngine(1))
    status, error, _ = contents(tmp_path / "study")[cell.key]
    assert status == ends
    assert ends == "done" or "died" in error


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    engine = LocalEngine(1)
    with pytest.raises(KeyboardInterrupt):
        run_study(tiny(sparsity=(0.5, 0.6, 0.7)), tmp_path, engine=engine, show=stop)
    assert not engine.running()
    assert len(contents(tmp_path)) >= 1


def test_empty_and_very_large_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="empty"):
        run_study([], tmp_path)
    many = tiny(seed=tuple(range(500)))
    with pytest.raises(BadInput, match=r"500 cells .* about .* --yes"):
        check_size(many[:1] * 500, None, 1, agreed=False)
    long = [Cell("fc:64-10", 1.0, "digits", "magnitude", "unstructured", 0.5, 0, Settings(length="10000000ep"))]
    with pytest.raises(BadInput, match=" h "):
        check_size(long, None, 1, agreed=False)
    assert check_size(long, None, 1, agreed=True) > 3600


SCRIPT = """
import sys
from pathlib import Path
from support.studies import tiny
from prunus.study import LocalEngine, run_study
cells = tiny(sparsity=tuple((i + 30) / 100 for i in range(int(sys.argv[2]))))
run_study(cells, Path(sys.argv[1]), engine=LocalEngine(2))
"""


def start(folder: Path, cells: int) -> subprocess.Popen[bytes]:
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": tests}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), str(cells)], env=environment)


def count(folder: Path) -> int:
    """Cells in the store; none while it is being made."""
    try:
        return len(contents(folder))
    except BadInput:
        return 0


@pytest.mark.prove
def test_killed_and_resumed_gives_the_same_values(tmp_path: Path) -> None:
    cells, kills = scale(4, full=60), scale(1, full=5)
    run_study(tiny(sparsity=tuple((i + 30) / 100 for i in range(cells))), tmp_path / "whole", engine=Here())
    chance = random.Random(0)
    survived = [0]
    for _ in range(kills):
        run = start(tmp_path / "killed", cells)
        goal = survived[-1] + chance.randint(1, scale(1, full=10))
        while count(tmp_path / "killed") < goal and run.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.5))
        run.send_signal(signal.SIGKILL)
        run.wait()
        survived.append(count(tmp_path / "killed"))
        assert survived[-1] >= goal, "what was done stays done"
    assert start(tmp_path / "killed", cells).wait() == 0
    whole, resumed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert len(whole) == cells
    assert resumed == whole
    if PROVING:
        rows = [{"cells": cells, "kills": kills, "done at each kill": ", ".join(map(str, survived)), "differences": 0}]
        record("study-kills", rows=rows, note="A study killed at random and resumed against an undisturbed one.")


def test_a_damaged_dense_network_is_made_again(tmp_path: Path) -> None:
    """A flipped bit in a dense network must not give other cells beside the right dense accuracy."""
    first, second = tiny(sparsity=(0.5, 0.9))
    run_study([first, second], tmp_path / "good", engine=Here())
    run_study([first], tmp_path / "bad", engine=Here())
    (file,) = (tmp_path / "bad" / "bases").glob("*.safetensors")
    good = file.read_bytes()
    body = bytearray(good)
    body[-1] ^= 0x40  # an exponent
    file.write_bytes(bytes(body))
    assert run_study([first, second], tmp_path / "bad", engine=LocalEngine(1)).failed == 0
    assert file.read_bytes() == good
    assert contents(tmp_path / "bad") == contents(tmp_path / "good")
    assert "damaged" in str(perform_on(second, bytes(body)))


def perform_on(cell: Cell, weights: bytes) -> object:
    """What a worker says about a cell whose dense network is these bytes."""
    from prunus.study.worker import perform

    return perform({"kind": "cell", "cell": cell.to_dict(), "base": {}}, weights)[0]["error"]


def test_weights_that_change_during_a_study_are_refused(tmp_path: Path) -> None:
    """The cells are named by the file as it was at the start."""
    file = save_weights(make("fc:64-16-10", seed=1), tmp_path / "w.safetensors")
    (cell,) = tiny(settings={"weights": str(file)})
    engine = LocalEngine(1)
    submit = engine.submit

    def late(job: Job) -> None:
        save_weights(make("fc:64-16-10", seed=2), file)
        submit(job)

    engine.submit = late  # type: ignore[method-assign]
    assert run_study([cell], tmp_path / "study", engine=engine).failed == 1
    with Store(tmp_path / "study") as store:
        assert "has changed since the study began" in str(store.results()[0].error)
