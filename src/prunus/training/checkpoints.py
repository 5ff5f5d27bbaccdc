"""Checkpoints: one safetensors file per moment, its record (JSON) in the header, and a digest over both.

A file is written as `prunus.storage` writes, so that a killed process leaves either the old set of files or the new
one. Reading verifies the digest; a damaged file is passed over for the one before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunus import storage
from prunus.errors import BadFile, BadInput

FORMAT = "checkpoint"


def write(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], kind: str = FORMAT) -> None:
    """One file with `tensors` and `record`, verified by `read`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be made: {error.strerror or error}; choose another folder.") from None
    storage.write_tensors(path, tensors, kind, dict(record))


def read(path: Path, kind: str = FORMAT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and record of a file written by `write`; refuses what is damaged or of another kind."""
    tensors, record = storage.read_tensors(path, kind)
    if not isinstance(record, dict):
        raise BadFile(f"{path} is damaged: its record is not a table; take another copy of it.")
    return tensors, record


class Checkpoints:
    """The checkpoints of one run in one folder; `keep` of them stay."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def paths(self) -> list[Path]:
        """Files, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def save(self, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `step`, then drop those beyond `keep`."""
        path = self.folder / f"step-{step:010d}.safetensors"
        write(path, tensors, record)
        for old in self.paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[dict[str, Tensor], dict[str, Any], str | None] | None:
        """The newest whole checkpoint, and what to say if newer ones are damaged; None where there is none at all."""
        damaged: list[str] = []
        for path in self.paths():
            try:
                tensors, record = read(path)
            except BadFile:
                damaged.append(path.name)
                continue
            if not damaged:
                return tensors, record, None
            note = f"{', '.join(damaged)} in {self.folder} is damaged; the run goes on from {path.name} before it."
            warnings.warn(note, stacklevel=3)
            return tensors, record, note
        if damaged:
            raise BadFile(
                f"Every checkpoint in {self.folder} is damaged ({', '.join(damaged)}): start again in an empty folder."
            )
        return None


def require_same(started: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a run whose settings or data differ, naming each difference."""
    names = [name for name in {**started, **now} if started.get(name) != now.get(name)]
    if names:
        was = ", ".join(f"{name}={started.get(name)!r}" for name in names)
        wants = ", ".join(f"{name}={now.get(name)!r}" for name in names)
        raise BadInput(
            f"The run in {folder} was started with {was} and cannot be resumed with {wants}: "
            "give the same settings, or another folder."
        )


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors ("3.momentum_buffer") and plain values."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                plain[f"{index}.{key}"] = value
    return tensors, plain


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Put back what `pack_optimizer` took; the groups' settings stay those of `optimizer`."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**plain, **tensors}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
