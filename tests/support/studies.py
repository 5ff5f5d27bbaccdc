"""Small studies, networks that misbehave, and the comparison of two stores without their measured times."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

import prunus.models
import prunus.training
from prunus import data
from prunus.storage import write
from prunus.study import Cell, Grid, Job, Outcome, Settings, Store
from prunus.study.worker import perform

TIMES = ("time_us", "time_dense_us", "speedup", "packed_layers", "bytes_memory", "format", "seconds", "making_seconds")
TIMES += ("versions",)


class Here:
    """An engine that works in this process, as a worker does: for tests that ask what is measured, not who measures."""

    slots = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def running(self) -> list[Job]:
        return []

    def wait(self, seconds: float) -> list[Outcome]:
        if not self.jobs:
            return []
        job = self.jobs.pop(0)
        message = json.loads(json.dumps(job.message()))
        reply, body = perform(message, job.weights.read_bytes() if job.kind == "cell" else None)
        if body is not None:
            write(job.weights, body)
        reply = json.loads(json.dumps(reply))
        return [Outcome(job, reply.get("record"), reply.get("error"), reply["seconds"])]

    def close(self) -> None:
        self.jobs.clear()


def tiny(**axes: Any) -> list[Cell]:
    """Cells of well under a second each: a test asks for the measurements it looks at."""
    plain = {"certify": 0, "labels": 0, "held_out": 0, "sensitivity": 0, "kernel": 0}
    settings = Settings(length="1ep", **(plain | axes.pop("settings", {})))
    return Grid(**{"model": ("fc:64-16-10",), "sparsity": (0.5,), "seed": (0,), "settings": settings, **axes}).cells()


def timeless(value: Any) -> Any:
    """A record without what a clock measured."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, Any]:
    """Everything a store says, by key, measured times aside."""
    with Store(folder) as store:
        return {result.key: (result.status, result.error, timeless(dict(result.record))) for result in store.results()}


def broken() -> nn.Module:
    """A factory that fails."""
    raise RuntimeError("this network cannot be built")


def deadly() -> nn.Module:
    """A factory whose process dies, as often as the file named by PRUNUS_TEST_LIVES says."""
    file = Path(os.environ["PRUNUS_TEST_LIVES"])
    lives = int(file.read_text())
    if lives > 0:
        file.write_text(str(lives - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return prunus.models.make("fc:64-16-10", seed=0)


class PadsItself(nn.Conv2d):
    """A convolution with a forward of its own, as EfficientNet's."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.pad(images, (1, 1, 1, 1)), self.weight, self.bias)


def padding() -> nn.Module:
    """Nearly all weights lie in a convolution that is packed only where an example tells what its forward does."""
    first, second = PadsItself(1, 16, 3), PadsItself(16, 64, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def error_rate(model: nn.Module, data: Any) -> float:
    """A metric of a user's own, of which less is better."""
    return 1.0 - prunus.training.accuracy(model, data)


error_rate.lower_is_better = True  # type: ignore[attr-defined]


def sorted_digits(split: str) -> Dataset[Any]:
    """The built-in digits, class by class, as a folder of images would give them."""
    digits = data.load("digits", split=split)
    labels = torch.tensor([int(digits[place][1]) for place in range(len(digits))])
    return Subset(digits, labels.argsort(stable=True).tolist())
