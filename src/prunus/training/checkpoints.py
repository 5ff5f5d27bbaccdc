"""Checkpoints: one safetensors file per moment, its record (JSON) in the header, and a digest over both.

One file is written under a temporary name, flushed to the disk, and renamed, so that a killed process leaves either the
old set of files or the new one. Reading verifies the digest; a damaged file is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from prunus.errors import BadFile, BadInput
from prunus.files import in_order, replace_file

FORMAT = "prunus-checkpoint-1"


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """A hash of names, types, shapes and bytes of `tensors`, and of `text`."""
    state = hashlib.blake2b(text.encode(), digest_size=32)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return state.hexdigest()


def write(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], kind: str = FORMAT) -> None:
    """One file with `tensors` and `record`, verified by `read`."""
    text = json.dumps(record)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {"format": kind, "record": text, "digest": digest(plain, text)}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, in_order(save(plain, metadata=header)))


def read(path: Path, kind: str = FORMAT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and record of a file written by `write`; refuses what is damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no Mapping
    except FileNotFoundError:
        raise BadFile(f"There is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"{path} is damaged ({error}): take another copy of it.") from error
    if header.get("format") != kind:
        raise BadFile(f"{path} is no {kind} file (it says {header.get('format')!r}): check the name.")
    if header.get("digest") != digest(tensors, header.get("record", "")):
        raise BadFile(f"{path} is damaged (its content does not match its digest): take another copy of it.")
    return tensors, json.loads(header["record"])


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
        for stray in self.folder.glob(".step-*.tmp"):
            stray.unlink(missing_ok=True)
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
