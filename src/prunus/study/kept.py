"""Pruned networks kept in files beside their study: to be used, and so that no cell makes its network twice."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

from torch import nn

from prunus.contract import Masks
from prunus.storage import read_tensors, write_tensors
from prunus.study import methods
from prunus.study.grid import Cell
from prunus.study.networks import load

_MASK = "mask of "


def made(cell: Cell, dense: nn.Module, network: str | None) -> tuple[methods.Made, float]:
    """The pruned network of a cell and the seconds its making took: from its file where there is one."""
    if network is not None and Path(network).is_file():
        return _read(Path(network), dense)
    started = time.perf_counter()
    found = methods.make(cell, dense, load(cell, "train"))
    seconds = time.perf_counter() - started
    if network is not None and not found.smaller:
        keep(Path(network), found, seconds)
    return found, seconds


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
