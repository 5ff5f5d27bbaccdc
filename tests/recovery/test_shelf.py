"""What lies on a shelf comes back as it was, from memory and from the file."""

from __future__ import annotations

import errno
import gc
import os
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor

from prunus.errors import BadInput
from prunus.recovery._shelf import SLAB, Filed, Room, Shelf, leaves

Pair = namedtuple("Pair", "first second")


def _values(seed: int) -> list[Any]:
    """Tensors of many kinds and memory orders, and what may hold them."""
    torch.manual_seed(seed)
    images = torch.randn(2, 3, 4, 5)
    return [
        torch.randn(3, 4),
        images.to(memory_format=torch.channels_last),
        torch.randn(6, 5).t(),
        torch.randn(4, 1).expand(4, 3),
        torch.randn(8)[2:5],
        torch.tensor(1.5, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.randn(5).bfloat16(),
        torch.randn(3, dtype=torch.complex64),
        Pair(torch.arange(4), {"mask": torch.tensor([True, False]), "name": "x", "none": None}),
        [torch.randn(2), (torch.randn(1), 3)],
    ]


def _same(one: Any, other: Any) -> bool:
    first, second = leaves(one), leaves(other)
    alike = (torch.equal(a, b) and a.stride() == b.clone().stride() for a, b in zip(first, second, strict=True))
    return type(one) is type(other) and all(alike)


@pytest.mark.parametrize("memory", [1e9, 100.0, 0.0])
def test_values_come_back_as_clones_would_be(memory: float) -> None:
    room = Room(memory)
    shelf = Shelf(room)
    values = _values(0)
    for index, value in enumerate(values):
        shelf[index] = value
    for index, value in enumerate(values):
        assert _same(shelf[index], value)
        copied = shelf.copy(index)
        for tensor in leaves(copied):
            tensor.zero_()
        assert _same(shelf[index], value)
    assert room.taken <= memory
    assert (room.file is None) == (memory == 1e9)
    assert shelf.copy(9)[1]["name"] == "x"


@pytest.mark.parametrize("memory", [1e9, 300.0])
def test_places_are_used_again_and_everything_is_given_back(memory: float) -> None:
    room = Room(memory)
    shelf = Shelf(room)
    ends = []
    for turn in range(3):
        for index in range(6):
            shelf[index] = torch.full((20,), float(turn + index))
        ends.append(room.end)
        assert [float(shelf[index][0]) for index in range(6)] == [turn + index for index in range(6)]
    assert len(set(ends)) == 1  # the file does not grow
    shelf.clear()
    assert (room.taken, len(shelf), shelf.slab) == (0, 0, None)


def test_tensors_share_slabs_and_large_ones_have_their_own() -> None:
    shelf = Shelf(Room(1e9))
    for index in range(5):
        shelf[index] = torch.zeros(SLAB // 3, dtype=torch.uint8)
    shelf[5] = torch.zeros(SLAB, dtype=torch.uint8)
    begins = {tensor.untyped_storage().data_ptr() for tensor in shelf.items.values()}
    assert len(begins) == 2 + 1  # three to a slab
    assert shelf.room.file is None


def test_a_full_disk_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(BadInput, match="No space left on device"):
        Shelf(Room(0))[0] = torch.ones(3)


def test_writes_that_end_early_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, begin: write(file, [parts[0][:7]], begin))
    shelf, value = Shelf(Room(0)), torch.randn(10)
    shelf[0] = value
    assert isinstance(shelf.items[0], Filed)
    assert torch.equal(shelf[0], value)


def test_other_kinds_of_tensors_stay_in_memory() -> None:
    class Marked(Tensor):
        """A tensor of another class."""

    room = Room(0)
    shelf = Shelf(room)
    shelf[0] = torch.ones(3).as_subclass(Marked)
    shelf[1] = torch.eye(3).to_sparse()
    assert isinstance(shelf[0], Marked)
    assert shelf[1].layout is torch.sparse_coo
    assert room.file is None


def test_the_file_is_closed_with_its_room() -> None:
    room = Room(0)
    Shelf(room)[0] = torch.ones(3)
    file = room.file
    del room
    gc.collect()
    assert file.closed
