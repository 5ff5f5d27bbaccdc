"""Tensors of many batches, kept in memory as far as it goes and in files beyond."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, empty_like, from_file


class Shelf:
    """Tensors of many batches: in memory, or in a file each where they would take more than `memory` bytes."""

    def __init__(self, memory: float) -> None:
        self.memory, self.used, self.held = memory, 0, 0
        self.items: dict[int, Any] = {}
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __setitem__(self, index: int, value: Any) -> None:
        self.held -= size_of(self.items.pop(index, None))
        self.items[index] = map_tensors(value, lambda tensor: self._place(tensor.detach()))

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __contains__(self, index: int) -> bool:
        return index in self.items

    def _place(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if self.held + size <= self.memory or tensor.device.type != "cpu" or not size:
            self.held += size
            return tensor.clone()
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory(prefix="prunus-")
        self.used += 1
        path = Path(self.folder.name) / f"{self.used}"
        kept = from_file(str(path), shared=True, size=tensor.numel(), dtype=tensor.dtype)
        kept = kept.as_strided(tensor.shape, empty_like(tensor, device="meta").stride())  # as a clone has it
        path.unlink()  # the mapping keeps it alive, and it goes with the tensor
        kept.copy_(tensor)
        kept._prunus_spilled = True  # type: ignore[attr-defined]
        return kept


def trim() -> None:
    """Give memory that is free back to the system, where the C library keeps it (glibc: tensors of up to 32 MB)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # other C libraries have no such function
            ctypes.CDLL(None).malloc_trim(0)


def size_of(value: Any) -> int:
    """Bytes of memory that the tensors inside take; those in files take none."""
    total = 0

    def add(tensor: Tensor) -> Tensor:
        nonlocal total
        total += 0 if hasattr(tensor, "_prunus_spilled") else tensor.numel() * tensor.element_size()
        return tensor

    map_tensors(value, add)
    return total


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """`function` on every tensor inside tuples, lists, dicts and outputs of transformers."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, function) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(**changed)
    return value


def leaves(value: Any) -> Iterable[Tensor]:
    """The tensors inside an output."""
    found: list[Tensor] = []
    map_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found
