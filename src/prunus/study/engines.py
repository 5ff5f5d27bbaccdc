"""Where cells run. An engine takes jobs and hands back outcomes in the order they end.

`LocalEngine` keeps worker processes on this machine; `RayEngine` (in `cluster`) uses a Ray cluster. Both run the same
`worker.perform`, so the results are the same. A worker that dies is replaced and its job runs again, at most
`RETRIES` times.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from prunus.errors import BadInput
from prunus.study import own_scores
from prunus.study.grid import Cell

RETRIES = 2
# A worker asks the system to end it with its parent before it imports anything that takes time (1: PR_SET_PDEATHSIG).
_WORKER = """
import ctypes, os, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv[1]) or os._exit(1)
from prunus.study.worker import main
main()
"""


@dataclass(frozen=True)
class Job:
    """Train a dense network ("base") or measure a pruned one ("cell"); `weights` is the dense network's file.

    `weights_hash` is the SHA-256 of the weights the study was given, as they were when it began; `network` is the file
    that the pruned network is kept in, if it is.

    Example:
        >>> from pathlib import Path
        >>> cell = prunus.study.Grid(model=("fc:64-32-10",)).cells()[0]
        >>> prunus.study.Job("base", cell, Path("bases/dense.safetensors")).message()["kind"]
        'base'
    """

    kind: str
    cell: Cell
    weights: Path
    base: Mapping[str, Any] | None = None
    attempt: int = 0
    weights_hash: str = ""
    network: Path | None = None

    def message(self) -> dict[str, Any]:
        """The job as plain JSON, for a worker."""
        return {
            "kind": self.kind,
            "cell": self.cell.to_dict(),
            "data_dir": self.cell.settings.data_dir,
            "weights": str(self.weights),
            "base": self.base,
            "own_score": own_scores.address(self.cell.score),
            "weights_hash": self.weights_hash,
            "network": None if self.network is None else str(self.network),
        }


@dataclass(frozen=True)
class Outcome:
    """What came of a job: a record, or an error in one line.

    Example:
        >>> from pathlib import Path
        >>> cell = prunus.study.Grid(model=("fc:64-32-10",)).cells()[0]
        >>> job = prunus.study.Job("cell", cell, Path("bases/dense.safetensors"))
        >>> prunus.study.Outcome(job, {"accuracy": 0.9}, error=None, seconds=1.5).record["accuracy"]
        0.9
    """

    job: Job
    record: Mapping[str, Any] | None
    error: str | None
    seconds: float


class Engine(Protocol):
    """Runs jobs side by side.

    Example:
        An engine that fails every job, to see what a study does then:

        >>> from pathlib import Path
        >>> class Failing:
        ...     slots = 1
        ...     def __init__(self): self.jobs = []
        ...     def submit(self, job): self.jobs.append(job)
        ...     def running(self): return []
        ...     def wait(self, seconds): return [prunus.study.Outcome(self.jobs.pop(), None, "out of order", 0.0)]
        ...     def close(self): pass
        >>> cells = prunus.study.Grid(model=("fc:64-32-10",), sparsity=(0.5,), seed=(0,)).cells()
        >>> prunus.study.run_study(cells, Path("failing"), engine=Failing()).failed
        1
    """

    slots: int

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue.

        Args:
            job: what is to be done.
        """
        ...

    def running(self) -> list[Job]:
        """The jobs under way."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """Outcomes that have arrived, after waiting for one at most so long.

        Args:
            seconds: how long to wait at most.

        Returns:
            The outcomes; none where nothing has ended.
        """
        ...

    def close(self) -> None:
        """Stop whatever runs."""
        ...


class LocalEngine:
    """Processes on this machine, started when there is work for them.

    A job that takes longer than `minutes` is stopped, and is a failure. Workers end with the process that started
    them, however that ends.

    Example:
        >>> engine = prunus.study.LocalEngine(workers=2, minutes=30)
        >>> engine.slots, engine.running()
        (2, [])
        >>> engine.close()
    """

    def __init__(self, workers: int | None = None, minutes: float | None = None) -> None:
        if workers is not None and workers < 1:
            raise BadInput(f"A study needs at least one worker, not {workers}.")
        if minutes is not None and not minutes > 0:
            raise BadInput(f"The time for a cell must be positive, not {minutes} minutes.")
        self.minutes = minutes
        self._since: dict[subprocess.Popen[str], float] = {}
        self.slots = workers or max(1, len(os.sched_getaffinity(0)))
        self._queue: deque[Job] = deque()
        self._workers: dict[subprocess.Popen[str], Job | None] = {}
        self._ready = selectors.DefaultSelector()

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue.

        Args:
            job: what is to be done.
        """
        self._queue.append(job)

    def running(self) -> list[Job]:
        """The jobs under way."""
        return [job for job in self._workers.values() if job is not None]

    def wait(self, seconds: float) -> list[Outcome]:
        """Outcomes that have arrived, after waiting for one at most so long.

        Args:
            seconds: how long to wait at most.

        Returns:
            The outcomes; none where nothing has ended.
        """
        self._feed()
        outcomes = []
        for key, _ in self._ready.select(seconds if self.running() else 0):
            outcome = self._collect(key.data)
            if outcome is not None:
                outcomes.append(outcome)
        return outcomes + self._overdue()

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
            _close_pipes(worker)
        self._workers.clear()
        self._ready.close()

    # ------------------------------------------------------------------------------------------------------- processes

    def _feed(self) -> None:
        """Give every idle worker a job; start workers while there are jobs and free places."""
        for worker, job in list(self._workers.items()):
            if job is None and self._queue:
                self._give(worker)
        while self._queue and len(self._workers) < self.slots:
            self._give(self._start())

    def _overdue(self) -> list[Outcome]:
        """Stop what takes too long; another worker is started for the next job."""
        outcomes = []
        for worker, job in list(self._workers.items()):
            seconds = time.monotonic() - self._since.get(worker, 0.0)
            if job is None or self.minutes is None or seconds < 60 * self.minutes:
                continue
            worker.kill()
            self._forget(worker)
            outcomes.append(Outcome(job, None, f"It was stopped: it took more than {self.minutes:g} minutes.", seconds))
        return outcomes

    def _start(self) -> subprocess.Popen[str]:
        # The working folder must not come before Python's own modules (-P), and what this process found elsewhere is
        # appended by the worker, not put first as PYTHONPATH would.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        found = json.dumps([path for path in sys.path if path])
        worker = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER, str(os.getpid()), found],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the engine, which decides
        )
        self._workers[worker] = None
        assert worker.stdout is not None
        self._ready.register(worker.stdout, selectors.EVENT_READ, worker)
        return worker

    def _give(self, worker: subprocess.Popen[str]) -> None:
        job = self._queue.popleft()
        self._workers[worker] = job
        self._since[worker] = time.monotonic()
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(job.message()) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            return  # it has died; `wait` sees the end of its output and runs the job again

    def _collect(self, worker: subprocess.Popen[str]) -> Outcome | None:
        assert worker.stdout is not None
        line, job = worker.stdout.readline(), self._workers[worker]
        if not line.endswith("\n"):
            return self._bury(worker, job)
        reply = json.loads(line)
        if "ready" in reply:  # the time that Python took to start is not the cell's
            self._since[worker] = time.monotonic()
            return None
        self._workers[worker] = None
        assert job is not None
        return Outcome(job, reply.get("record"), reply.get("error"), reply.get("seconds", 0.0))

    def _bury(self, worker: subprocess.Popen[str], job: Job | None) -> Outcome | None:
        """A worker has died: drop it, and run its job again or record it as failed."""
        status = self._forget(worker)
        if job is None:
            return None
        if job.attempt < RETRIES:
            self._queue.appendleft(replace(job, attempt=job.attempt + 1))
            return None
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return Outcome(job, None, f"The process that ran this cell died {RETRIES + 1} times ({how}).", 0.0)

    def _forget(self, worker: subprocess.Popen[str]) -> int:
        self._ready.unregister(worker.stdout)  # type: ignore[arg-type]
        status = worker.wait()
        _close_pipes(worker)
        del self._workers[worker]
        self._since.pop(worker, None)
        return status


def _close_pipes(worker: subprocess.Popen[str]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was left in the buffer went to a process that is gone
