"""A Python process of its own for a program, without waiting for torch: one process has imported it and is forked.

Nothing of Prunus is imported before the fork, and the program gets a `__main__` of its own, so that a missing import
shows as it would in a new process. What is about starting Python itself uses `subprocess`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

PARENT = """
import atexit, importlib, json, os, sys, traceback, types
for name in sys.argv[1:]:
    importlib.import_module(name)
assert "prunus" not in sys.modules

def run(job):
    os.setsid()
    for number, name in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(name, os.O_RDWR if number else os.O_RDONLY), number)
    sys.stdin = open(0)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv, sys.path[0] = job["argv"], job["first"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if job["file"]:
        main.__file__ = job["file"]
    status = 1
    try:
        exec(compile(job["code"], job["file"] or "<string>", "exec"), main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        run(json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _parent(packages: tuple[str, ...]) -> subprocess.Popen[str]:
    """The process that is forked; it ends with this one, whose end closes its input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, *packages],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert _answer(process) == "ready"
    return process


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def run_fresh(
    program: str | Path,
    *arguments: str,
    cwd: Path | None = None,
    packages: tuple[str, ...] = ("torch",),
    seconds: int = 600,
) -> subprocess.CompletedProcess[str]:
    """Run code, or a file, as `python -c` or `python FILE` would; `packages` are imported already."""
    parent, file = _parent(packages), str(program) if isinstance(program, Path) else ""
    code = program.read_text("utf8") if isinstance(program, Path) else program
    job: dict[str, Any] = {"code": code, "file": file, "first": str(Path(file).parent) if file else ""}
    job |= {"argv": [file or "-c", *arguments], "cwd": str(cwd or Path.cwd())}
    job["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        assert parent.stdin is not None
        parent.stdin.write(json.dumps(job | {"out": out.name, "err": err.name}) + "\n")
        parent.stdin.flush()
        child = int(_answer(parent))
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
        signal.alarm(seconds)
        try:
            status = int(_answer(parent))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return subprocess.CompletedProcess(job["argv"], status, _read(out), _read(err))


def _read(file: IO[str]) -> str:
    return Path(file.name).read_text("utf8", errors="replace")
