"""Pruned networks kept in files beside their study: to be used, and so that no cell makes its network twice."""

from __future__ import annotations

import copy
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from prunus.contract import Masks
from prunus.storage import read_record, read_tensors, write_record, write_tensors
from prunus.study import methods
from prunus.study.grid import Cell
from prunus.study.networks import load

_MASK = "mask of "
_TIME = "time of a cell"
_EVERY = 5.0
"""Seconds between two notes of the time so far."""


def made(cell: Cell, dense: nn.Module, network: str | None) -> tuple[methods.Made, float]:
    """The pruned network of a cell and the seconds its making took: from its file where there is one.

    While it is being made, its state lies beside that file: a cell that is broken off goes on from it.
    """
    if network is None:
        started = time.perf_counter()
        return methods.make(cell, dense, load(cell, "train")), time.perf_counter() - started
    file = Path(network)
    if file.is_file():
        return _read(file, dense)
    state = file.with_suffix(".state")
    with _counted(state / "seconds.json") as seconds:
        found = methods.make(cell, dense, load(cell, "train"), state)
        spent = seconds()
    if not found.smaller:
        keep(file, found, spent)
    shutil.rmtree(state, ignore_errors=True)
    return found, spent


@contextmanager
def _counted(file: Path) -> Iterator[Callable[[], float]]:
    """Inside, a function that tells the seconds so far, with those of runs that were broken off; `file` holds them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = float(read_record(file, _TIME)["seconds"]) if file.is_file() else 0.0
    started, over = time.perf_counter(), threading.Event()

    def seconds() -> float:
        return before + time.perf_counter() - started

    def watch() -> None:
        while not over.wait(_EVERY):
            write_record(file, _TIME, {"seconds": seconds()})

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seconds
    finally:
        over.set()
        watcher.join()


def keep(path: Path, found: methods.Made, seconds: float) -> None:
    """Write a network with its masks; what has the shape of the dense network's tensors can be read again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = dict(found.model.state_dict()) | {_MASK + name: mask for name, mask in found.masks.items()}
    record: dict[str, Any] = {"making": found.record, "seconds": seconds}
    write_tensors(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, "network", record)


def _read(path: Path, dense: nn.Module) -> tuple[methods.Made, float]:
    tensors, record = read_tensors(path, "network")
    masks = {name.removeprefix(_MASK): tensors.pop(name) for name in list(tensors) if name.startswith(_MASK)}
    model = copy.deepcopy(dense)
    model.load_state_dict(tensors)
    return methods.Made(model.eval(), Masks(masks), record=record["making"]), record["seconds"]
