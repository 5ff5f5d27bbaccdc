"""Writers killed at any moment: the old file or the new one is there, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.evidence import record

import prunus
from prunus import storage
from prunus.models import load_weights, make, save_weights
from prunus.private.accounting import Release
from prunus.private.ledger import Ledger
from prunus.sparse import compress
from prunus.training.checkpoints import Checkpoints
from support import PROVING, scale
from support.studies import contents, tiny

SIZES = "fc:64-48-10"


RESULTS: list[dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def evidence() -> Iterator[None]:
    """Under `make prove`, the table of counts once every kind of writer has passed."""
    yield
    if PROVING and len(RESULTS) == 7:
        total = {"what": "together", "kills": sum(row["kills"] for row in RESULTS), "lost": 0}
        record("kills", [*RESULTS, total], "Writers killed at random moments; what they had acknowledged was there.")


def network(seed: int) -> torch.nn.Module:
    return make(SIZES, seed=seed).eval()


def killed_after(work: Callable[[], None], seconds: float) -> None:
    """Run `work` over and over in a child, and kill it after so long."""
    child = os.fork()
    if child == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the writer failed by itself"


def two_of(kind: str, path: Path) -> tuple[list[Callable[[], object]], Callable[[], str]]:
    """Two contents to be written in turn, and what a file holds."""
    if kind == "masks":
        masks = [prunus.find_masks(network(0), sparsity) for sparsity in (0.5, 0.9)]
        return [lambda m=m: m.save(path) for m in masks], lambda: storage.digest(dict(prunus.Masks.load(path)))  # type: ignore[misc]
    if kind == "weights":
        models = [network(0), network(1)]
        read = lambda: storage.digest(load_weights(network(2), path).state_dict())  # noqa: E731
        return [lambda m=m: save_weights(m, path) for m in models], read  # type: ignore[misc]
    pruned = [network(0), network(1)]
    for model in pruned:
        prunus.prune(model, 0.5, pattern="balanced:16")
    fast = [compress(model, select="always") for model in pruned]
    read = lambda: storage.digest(prunus.sparse.load(path, network(2)).state_dict())  # noqa: E731
    return [lambda m=m: prunus.sparse.save(m, path) for m in fast], read  # type: ignore[misc]


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["masks", "weights", "sparse"])
def test_killed_writers_leave_the_old_file_or_the_new_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    writes, read = two_of(kind, path)
    known = []
    for write in writes:
        write()
        known.append(read())
    source, kills, strays = random.Random(kind), scale(6, full=40), 0
    for _ in range(kills):
        killed_after(lambda: [write() for write in writes] and None, source.uniform(0.005, 0.15))
        assert read() in known
        strays += len(list(tmp_path.iterdir())) - 1
    writes[0]()
    assert read() == known[0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    RESULTS.append({"what": kind, "kills": kills, "lost": 0, "strays left and removed": strays})


@pytest.mark.prove
def test_killed_runs_keep_a_whole_checkpoint(tmp_path: Path) -> None:
    folder, kills = Checkpoints(tmp_path, keep=2), scale(6, full=40)
    folder.save(0, {"a": torch.zeros(1000)}, {"step": 0})
    source = random.Random(4)

    def work() -> None:
        step = int(folder.paths()[0].stem.rpartition("-")[2]) + 1
        folder.save(step, {"a": torch.full((1000,), float(step))}, {"step": step})

    before = 0
    for _ in range(kills):
        killed_after(work, source.uniform(0.005, 0.15))
        found = folder.newest()
        assert found is not None
        tensors, about, note = found
        assert note is None
        assert bool((tensors["a"] == about["step"]).all())
        assert about["step"] >= before
        before = about["step"]
    assert before > 0
    RESULTS.append({"what": "checkpoints", "kills": kills, "lost": 0})


@pytest.mark.prove
def test_a_killed_ledger_never_says_less_than_was_acknowledged(tmp_path: Path) -> None:
    path, said, kills = tmp_path / "ledger", tmp_path / "acknowledged", scale(6, full=40)
    Ledger(path)
    source = random.Random(5)

    def work() -> None:
        ledger = Ledger(path)
        with said.open("ab", buffering=0) as sent:
            for number in range(10_000):
                ledger.charge("a", number, Release(rho=0.001))
                sent.write(b".")

    for _ in range(kills):
        killed_after(work, source.uniform(0.02, 0.2))
        sent = said.stat().st_size if said.exists() else 0
        assert sent <= Ledger(path).charges("a") <= sent + kills
    assert said.stat().st_size > 0
    RESULTS.append({"what": "privacy ledger", "kills": kills, "lost": 0})


def orphans(group: int) -> list[str]:
    """Workers of studies that this process's child left: their parent's id is among their arguments."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(group).encode() in words and any(b"prunus.study.worker" in word for word in words) and state != "Z":
            found.append(place.name)
    return found


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="takes minutes: make prove runs it")
def test_a_killed_study_goes_on_and_leaves_no_orphans(tmp_path: Path) -> None:
    """The real command, killed at random moments and started again until it ends; beside a run nobody killed."""
    from prunus.study import LocalEngine, run_study

    cells = tiny(sparsity=(0.5, 0.9), seed=(0, 1))
    run_study(cells, tmp_path / "whole", engine=LocalEngine(1))
    code = (
        "from pathlib import Path; from support.studies import tiny; from prunus.study import LocalEngine, run_study\n"
        "run_study(tiny(sparsity=(0.5, 0.9), seed=(0, 1)), Path('study'), engine=LocalEngine(1))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parent), *sys.path])}
    source, kills = random.Random(6), 0
    wanted = scale(2, full=20)
    while True:
        with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment) as process:
            try:
                process.wait(timeout=source.uniform(1, 25) if kills < wanted else None)
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        until = time.monotonic() + 3
        while orphans(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert not orphans(process.pid)
        if process.returncode == 0 and kills >= wanted:
            break
        if process.returncode == 0:  # done before it was killed often enough: again from the start
            assert contents(tmp_path / "study") == contents(tmp_path / "whole")
            (tmp_path / "study").rename(tmp_path / f"study-{kills}-{time.monotonic_ns()}")
    assert contents(tmp_path / "study") == contents(tmp_path / "whole")
    RESULTS.append({"what": "prunus study", "kills": kills, "lost": 0, "orphans": 0})


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="takes minutes: make prove runs it")
def test_a_killed_training_run_goes_on(tmp_path: Path) -> None:
    """`prunus train`, killed at random moments and resumed, ends in the weights of a run nobody killed."""
    from prunus.cli import run

    common = ["train", SIZES, "--data", "digits", "--length", "6ep", "--every", "5it", "--quiet"]
    assert run([*common, "-o", str(tmp_path / "whole")]) == 0
    code = "import sys; from prunus.cli import main; main(sys.argv[1:])"
    source, kills, wanted = random.Random(7), 0, scale(2, full=20)
    command = [sys.executable, "-c", code, *common, "-o", str(tmp_path / "killed"), "--resume"]
    while not (tmp_path / "killed" / "record.json").exists():
        with subprocess.Popen(command) as process:
            try:
                process.wait(timeout=source.uniform(2, 20) if kills < wanted else None)
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
                continue
        assert process.returncode == 0
    one, two = (
        storage.read_tensors(tmp_path / name / "model.safetensors", "weights")[0] for name in ("whole", "killed")
    )
    assert storage.digest(one) == storage.digest(two)
    RESULTS.append({"what": "prunus train", "kills": kills, "lost": 0})
