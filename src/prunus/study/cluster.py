"""The same study on many machines: cells as tasks of a Ray cluster (extra `cluster`).

Connects to the cluster that RAY_ADDRESS names, else starts one on this machine. The dense network of a cell travels as
an object of the cluster, so the machines need the package and the data but no common folder. Ray starts a task again
when its worker or its node is lost; what the task itself reports as failed is a result.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import deque
from pathlib import Path
from typing import Any

from prunus.errors import BadInput, MissingExtra, RunFailed
from prunus.storage import write
from prunus.study.engines import RETRIES, Job, Outcome


class RayEngine:
    """Runs jobs on a Ray cluster, at most `workers` at a time (one for each of its CPUs unless given)."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise BadInput(f"A study needs at least one worker, not {workers}.")
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "cluster", "A study on a cluster")
        import ray

        self._ray = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            self._connect(workers)
        self.slots = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(_perform)
        self._queue: deque[Job] = deque()
        self._running: dict[Any, Job] = {}
        self._weights: dict[Path, Any] = {}

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def running(self) -> list[Job]:
        return list(self._running.values())

    def wait(self, seconds: float) -> list[Outcome]:
        while self._queue and len(self._running) < self.slots:
            job = self._queue.popleft()
            weights = self._object(job.weights) if job.kind == "cell" else None
            self._running[self._task.remote(job.message() | {"network": None}, weights)] = job
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._collect(reference) for reference in ready]

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._mine:
            self._ray.shutdown()

    def _connect(self, workers: int | None) -> None:
        address = os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # whatever Ray raises when a cluster cannot be reached or started
            raise RunFailed(f"Ray could not be started or reached at {address or 'this machine'}: {error}") from error

    def _object(self, path: Path) -> Any:
        """The dense network as an object of the cluster, sent once."""
        if path not in self._weights:
            self._weights[path] = self._ray.put(path.read_bytes())
        return self._weights[path]

    def _collect(self, reference: Any) -> Outcome:
        job = self._running.pop(reference)
        try:
            reply, body = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            return Outcome(job, None, f"The cluster lost this cell {RETRIES + 1} times: {first}", 0.0)
        if body is not None:
            write(job.weights, body)
        return Outcome(job, reply.get("record"), reply.get("error"), reply.get("seconds", 0.0))


def _perform(message: dict[str, Any], weights: bytes | None) -> tuple[dict[str, Any], bytes | None]:
    from prunus.study.worker import perform

    return perform(message, weights)
