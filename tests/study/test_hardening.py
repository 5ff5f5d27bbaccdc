"""Studies under attack: hung cells, killed parents, second processes, damaged rows, folders that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prunus.cli import run
from prunus.errors import BadFile, BadInput
from prunus.storage import locked
from prunus.study import Grid, LocalEngine, Settings, Store, check_size, run_study
from prunus.study import runner as running
from prunus.study.store import NAME
from support.studies import Here, tiny

HANG = "import time\ndef model():\n    time.sleep(600)\n"
SPY = "raise SystemExit('the working folder came first')\n"


def test_a_cell_that_takes_too_long_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging.py").write_text(HANG)
    monkeypatch.chdir(tmp_path)
    cells = [*tiny(model=("hanging:model",)), *tiny()]
    engine = LocalEngine(1, minutes=0.15)
    started = time.monotonic()
    done = run_study(cells, tmp_path / "study", engine=engine)
    assert (done.done, done.failed) == (1, 1)
    assert time.monotonic() - started < 120
    with Store(tmp_path / "study") as store:
        errors = [result.error for result in store.results() if result.status == "failed"]
    assert errors == ["It was stopped: it took more than 0.15 minutes."]
    with pytest.raises(BadInput, match="positive"):
        LocalEngine(1, minutes=0.0)


def test_the_working_folder_does_not_come_before_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random.py there is not what the workers import; a model of the user's own there is found."""
    for name in ("random", "json", "selectors"):
        (tmp_path / f"{name}.py").write_text(SPY)
    (tmp_path / "mine.py").write_text(
        "from prunus.models import make\ndef model():\n    return make('fc:64-16-10', seed=0)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run_study(tiny(model=("mine:model",)), tmp_path / "study", engine=LocalEngine(1)).done == 1


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """Also when they are in the middle of a cell, and so would not see the end of their input."""
    (tmp_path / "hanging.py").write_text(HANG)
    code = (
        "from pathlib import Path; from support.studies import tiny; from prunus.study import LocalEngine, run_study\n"
        "run_study(tiny(model=('hanging:model',)), Path('study'), engine=LocalEngine(1))"
    )
    tests = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": tests}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment) as parent:
        until = time.monotonic() + 60
        while not (workers := children(parent.pid)) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(3)
        parent.send_signal(signal.SIGKILL)
    assert workers
    until = time.monotonic() + 3
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def test_a_second_process_is_told_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "fc:64-10", "--length", "1it", "--seeds", "1", "--sparsity", "0.5", "-o", str(tmp_path)]
    with locked(tmp_path, "study"):
        assert run(command) == 2
        said = capsys.readouterr().err
    assert "in use by another process" in said
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_an_export_that_cannot_be_written_is_refused_before_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rows.xlsx", "no/such/folder/rows.csv", "."):
        place = tmp_path / "study"
        assert run(["study", "fc:64-10", "--export", str(tmp_path / name), "-o", str(place)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert not place.exists()


def test_the_estimate_of_a_large_grid_is_quick() -> None:
    settings = Settings(length="1ep")
    grid = Grid(model=("fc:64-16-10",), sparsity=tuple(i / 100 for i in range(50)), seed=tuple(range(100)))
    cells = [*grid.cells(), *Grid(model=("fc:64-8-10",), seed=(0,), settings=settings).cells()]
    assert len(cells) > 5_000
    started = time.process_time()
    with pytest.raises(BadInput, match="add --yes"):
        check_size(cells, None, 2, agreed=False)
    assert time.process_time() - started < 20
    half = running.estimate(cells[: len(cells) // 2], None, 1)
    assert running.estimate(cells, None, 1) > half


def finished(folder: Path) -> Path:
    run_study(tiny(), folder, engine=Here())
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("finished"))


def copied(study: Path, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    (place / NAME).write_bytes((study / NAME).read_bytes())
    return place


def test_a_finished_study_is_one_file_without_a_log(study: Path, tmp_path: Path) -> None:
    """So that it can be read from a read-only mount, where SQLite cannot make the files of its log."""
    assert sorted(path.name for path in study.iterdir()) == [".lock", "bases", NAME]
    header = (study / NAME).read_bytes()[18:20]
    assert header == b"\x01\x01", "not in the write-ahead mode"
    place = copied(study, tmp_path / "copy")
    with Store(place) as store:
        assert len(store.results()) == 1
    assert [path.name for path in place.iterdir()] == [NAME]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_finished_study_is_read_from_a_read_only_mount(study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    code = "import sys; from prunus.study import Store; print(len(Store(sys.argv[1]).rows()))"
    script = f'mount --bind "{study}" "{place}" && mount -o remount,ro,bind "{place}" || exit 77\n'
    script += f'touch "{place}/x" 2>/dev/null && exit 77\nexec "{sys.executable}" -c "{code}" "{place}"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mounts here")
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = 'x'",
        "UPDATE meta SET value = '99'",
        "UPDATE cells SET config = '{'",
        "UPDATE cells SET config = '[]'",
        "UPDATE cells SET config = '{}'",
        "UPDATE cells SET record = '3'",
        "UPDATE cells SET seconds = 'x'",
        "UPDATE bases SET record = ''",
        "DROP TABLE bases",
        "UPDATE cells SET record = replace(record, '1', '2')",
        "UPDATE cells SET seconds = seconds + 1",
        "UPDATE cells SET status = 'failed'",
        "DELETE FROM cells",
        "DELETE FROM bases",
        "DELETE FROM digests",
        "DROP TABLE digests",
    ],
)
def test_damaged_rows_and_versions_are_one_sentence(
    study: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copied(study, tmp_path / "copy")
    with sqlite3.connect(place / NAME) as database:
        database.execute(change)
    with pytest.raises(BadFile) as refused, Store(place) as store:
        store.results(), store.bases(), store.seconds()
    assert "\n" not in str(refused.value)
    assert run(["report", str(place), "-o", str(tmp_path / "page.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_study_of_the_first_format_is_read_and_gets_digests(study: Path, tmp_path: Path) -> None:
    place = copied(study, tmp_path / "copy")
    with sqlite3.connect(place / NAME) as database:
        database.execute("DROP TABLE digests")
        database.execute("UPDATE meta SET value = '1' WHERE name = 'version'")
    with Store(study) as store, Store(place) as old:
        assert old.rows() == store.rows()
    with Store(place, create=True) as old, Store(study) as store:
        assert old.rows() == store.rows()
    with sqlite3.connect(place / NAME) as database:
        database.execute("UPDATE cells SET seconds = seconds + 1")
    with pytest.raises(BadFile, match="not what was written"), Store(place) as old:
        old.rows()


def test_cells_of_a_csv_are_not_formulas(study: Path, tmp_path: Path) -> None:
    place = copied(study, tmp_path / "copy")
    with Store(place, create=True) as store:
        store.add(tiny()[0], error='=HYPERLINK("x")')
    with Store(place) as store:
        text = store.export(tmp_path / "rows.csv").read_text()
        assert "'=HYPERLINK" in text
        assert ",=" not in text
        assert ',"=' not in text


def test_the_pages_toml_has_letters_of_all_planes(study: Path, tmp_path: Path) -> None:
    import tomllib

    from prunus.report.again import _toml

    for value in ('😀 ü \x7f " \\ \n', ["😀", 1, 0.5, True]):
        assert tomllib.loads(f"a = {_toml(value)}") == {"a": value}


def test_exclude_in_toml_must_be_a_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text('model = "fc:64-10"\n[settings]\nexclude = true\n')
    with pytest.raises(BadInput, match="exclude must be text"):
        Grid.read(tmp_path / "grid.toml")


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANG)
    # Processes of a background job start with Ctrl-C switched off.
    code = "import signal, sys; signal.signal(2, signal.default_int_handler); from prunus.cli import main; main()"
    command = [sys.executable, "-c", code, "study", "fc:64-16-10", "--length", "2000ep", "--seeds", "1", "-o", "study"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 90
        while not children(process.pid) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said


def test_json_of_a_study_is_json(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(study) as store:
        assert json.loads(json.dumps(store.rows()))
