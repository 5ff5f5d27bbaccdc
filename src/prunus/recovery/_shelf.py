"""Tensors of many batches, kept in memory as far as it goes and in a file beyond."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, empty_like

from prunus.errors import BadInput

SLAB = 36 << 20
"""Bytes taken from the system at once. The C library gives pieces of this size back as soon as they are free; smaller
ones that live long would lie scattered among what the model computes with, and hold its memory too."""


@dataclass(frozen=True)
class Filed:
    """A tensor that lies in a file: where it begins, and its form."""

    begin: int
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Room:
    """Memory that some shelves share, `memory` bytes, and a file without a name for what goes beyond.

    The file goes with the process, however it ends.
    """

    def __init__(self, memory: float) -> None:
        self.memory, self.taken = memory, 0
        self.file: Any = None
        self.end = 0
        self.free: dict[int, list[int]] = {}

    def write(self, tensor: Tensor) -> Filed:
        """Lay a tensor down in the file, in the memory order that a clone of it would have."""
        whole = tensor if tensor.is_contiguous() else tensor.clone()
        size = whole.numel() * whole.element_size()
        if self.file is None:
            self.file = tempfile.TemporaryFile(prefix="prunus-")  # noqa: SIM115  # open as long as the room
            weakref.finalize(self, self.file.close)
        places = self.free.get(size)
        begin = places.pop() if places else self.end
        self.end = max(self.end, begin + size)
        try:
            _through(os.pwritev, self.file.fileno(), whole, begin)
        except OSError as error:
            raise BadInput(
                f"The activations do not fit into {tempfile.gettempdir()} ({error.strerror}): give more `memory`, "
                "fewer samples, or another folder in TMPDIR."
            ) from error
        return Filed(begin, size, tuple(whole.shape), whole.stride(), whole.dtype)

    def read(self, filed: Filed) -> Tensor:
        """A tensor as it was laid down."""
        found = torch.empty_strided(filed.shape, filed.strides, dtype=filed.dtype)
        _through(os.preadv, self.file.fileno(), found, filed.begin)
        return found

    def give_back(self, filed: Filed) -> None:
        """Its place may be used again."""
        self.free.setdefault(filed.size, []).append(filed.begin)


def _through(move: Callable[..., int], file: int, tensor: Tensor, begin: int) -> None:
    """Write or read the bytes of a tensor without gaps."""
    view: Any = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    while len(view):
        moved = move(file, [view], begin)
        if not moved:
            raise OSError("the file ends early")
        view, begin = view[moved:], begin + moved


class Shelf:
    """What batches gave, by number: tensors and whatever holds them. Each is kept as a copy."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.items: dict[int, Any] = {}
        self.slab: Tensor | None = None
        self.used = 0

    def __setitem__(self, index: int, value: Any) -> None:
        self.drop(index)
        self.items[index] = map_tensors(value, lambda tensor: self._place(tensor.detach()))

    def __getitem__(self, index: int) -> Any:
        """The value itself, to be read only; tensors in the file are read."""
        return map_tensors(self.items[index], self.room.read, Filed)

    def __contains__(self, index: int) -> bool:
        return index in self.items

    def __len__(self) -> int:
        return len(self.items)

    def copy(self, index: int) -> Any:
        """The value in tensors of its own, that may be changed."""
        return map_tensors(map_tensors(self.items[index], torch.clone), self.room.read, Filed)

    def drop(self, index: int) -> None:
        """Forget a value, if there is one."""
        value = self.items.pop(index, None)
        for tensor in leaves(value):
            self.room.taken -= tensor.numel() * tensor.element_size()
        map_tensors(value, self.room.give_back, Filed)
        if not self.items:
            self.slab = None

    def clear(self) -> None:
        """Forget everything."""
        for index in list(self.items):
            self.drop(index)

    def _place(self, tensor: Tensor) -> Tensor | Filed:
        size = tensor.numel() * tensor.element_size()
        plain = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided and size > 0
        if plain and self.room.taken + size > self.room.memory:
            return self.room.write(tensor)
        self.room.taken += size
        if not plain or size > SLAB // 2:
            return tensor.clone()
        if self.slab is None or self.used + size > SLAB:
            self.slab, self.used = torch.empty(SLAB, dtype=torch.uint8), 0
        piece = self.slab[self.used : self.used + size].view(tensor.dtype)
        self.used += -(-size // 64) * 64
        kept = piece.as_strided(tensor.shape, empty_like(tensor, device="meta").stride(), piece.storage_offset())
        return kept.copy_(tensor)


def trim() -> None:
    """Give memory that is free back to the system, where the C library keeps it (glibc: tensors of up to 32 MB)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # other C libraries have no such function
            ctypes.CDLL(None).malloc_trim(0)


def map_tensors(value: Any, function: Callable[[Any], Any], kind: type = Tensor) -> Any:
    """`function` on every tensor (or what else `kind` says) inside tuples, lists, dicts and outputs of transformers."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        make: Any = type(value)
        return make._make(map_tensors(item, function, kind) for item in value)  # PackedSequence is no plain one
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, function, kind) for item in value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, function, kind) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(**changed)
    return value


def leaves(value: Any) -> list[Tensor]:
    """The tensors inside an output."""
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found
