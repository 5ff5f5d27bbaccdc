"""Runs tests on changed copies of the package, each in a process forked from one that has the libraries loaded.

Used by tools/mutation.py: starting Python, numpy, scipy and pytest anew for every mutant would take most of the time.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prunus"
MEMORY = 6 << 30  # bytes a run may use
STRANGER = 252  # exit status of a run on another package


@dataclass(frozen=True)
class Outcome:
    """Whether the tests passed, what failed first, and the processor seconds each test took."""

    passed: bool
    by: str
    durations: dict[str, float]


class ByDuration:
    """pytest plugin: the quickest tests first (durations as in the run without a mutation), and what failed."""

    def __init__(self, durations: dict[str, float]) -> None:
        self.known, self.measured, self.failed, self.started = durations, dict[str, float](), "", 0.0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logstart(self) -> None:
        self.started = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.measured[nodeid] = time.process_time() - self.started

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def serve(copy: str) -> None:
    """A worker: imports what does not change once, then forks for every request (a JSON line) and answers.

    The editable install redirects imports ahead of sys.path, so it is taken out of the way first.
    """
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
    sys.path.insert(0, copy)
    for name in (
        "hypothesis.strategies",
        "pytest",
        "scipy.integrate",
        "scipy.optimize",
        "scipy.special",
        "scipy.stats",
    ):
        importlib.import_module(name)
    _remember_ledger(Path(copy))
    # Whether a property fails is all that counts: looking for the simplest failing example takes long.
    settings = importlib.import_module("hypothesis").settings
    phases = importlib.import_module("hypothesis").Phase
    settings.register_profile("no_shrinking", phases=(phases.explicit, phases.generate))
    settings.load_profile("no_shrinking")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run_child(copy, request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _remember_ledger(copy: Path) -> None:
    """Parse the reference values once: they are never changed, and every run reads all of them."""
    parse = tomllib.loads
    texts = [path.read_text("utf8") for path in copy.rglob("*.toml")]
    known = {text: pickle.dumps(parse(text)) for text in texts}
    tomllib.loads = lambda text, **options: pickle.loads(known[text]) if text in known else parse(text, **options)


def _run_child(copy: str, request: dict[str, Any]) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Seconds of the processor, not of the clock: a busy machine must not fail a run.
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    gc.disable()
    output = os.open(request["output"] + ".txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.dont_write_bytecode = request["mutated"]
    plugin = ByDuration(request["durations"])
    options = ["-x", "-q", "--no-header", "--tb=line", "--assert=plain", *request["options"]]
    status = int(pytest.main([*options, *request["tests"]], plugins=[plugin]))
    loaded = sys.modules.get("prunus")
    if loaded is not None and not str(loaded.__file__).startswith(copy):
        status = STRANGER
    answer = {"failed": plugin.failed, "durations": plugin.measured}
    Path(request["output"]).write_text(json.dumps(answer), "utf8")
    return status


class Worker:
    """One copy of the package and the process that runs tests on it."""

    def __init__(self, folder: Path) -> None:
        self.copy = copy_package(folder / "package")
        self.output = folder / "output"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("PRUNUS_PROVE", None)
        command = [sys.executable, __file__, str(self.copy)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def warm_up(self, tests: Sequence[str], seconds: int) -> None:
        """Collect the tests once, which leaves bytecode of everything behind."""
        self.run(tests, {}, seconds, mutated=False, options=["--collect-only"])

    def run(
        self,
        tests: Sequence[str],
        durations: dict[str, float],
        seconds: int,
        mutated: bool,
        options: Sequence[str] = (),
    ) -> Outcome:
        """Run these tests, the quickest first; a crash or running out of time is a failure."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"tests": tests, "durations": durations, "seconds": seconds, "mutated": mutated, "options": options}
        self.output.unlink(missing_ok=True)
        print(json.dumps({**request, "output": str(self.output)}), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        if status == STRANGER:
            raise SystemExit("The tests did not run on the copy of the package: the installed one was imported.")
        answer: dict[str, Any] = {"failed": "", "durations": {}}
        if self.output.exists():
            answer = json.loads(self.output.read_text("utf8"))
        by = "out of time" if -status in (signal.SIGXCPU, signal.SIGKILL) else answer["failed"] or f"status {status}"
        return Outcome(status == 0, by, answer["durations"])

    @contextmanager
    def changed(self, file: str, change: Callable[[str], str]) -> Iterator[None]:
        """Change one file of the copy for a while; its new time keeps the original bytecode from being taken for it."""
        target = self.copy / PACKAGE.name / file
        original, times = target.read_text("utf8"), (target.stat().st_atime, target.stat().st_mtime)
        target.write_text(change(original), "utf8")
        os.utime(target, (times[0], times[1] + 100.0))
        try:
            yield
        finally:
            target.write_text(original, "utf8")
            os.utime(target, times)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def copy_package(folder: Path) -> Path:
    """A fresh copy of the package's Python files in a folder of its own."""
    shutil.copytree(PACKAGE, folder / "prunus", ignore=shutil.ignore_patterns("__pycache__", "native", "*.so"))
    shutil.copytree(PACKAGE / "native", folder / "prunus" / "native", ignore=lambda _, names: _not_python(names))
    return folder


def _not_python(names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".py")}


if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests")]
    serve(sys.argv[1])
