"""Damage and crafted content for every file format: what the fuzzers of the tests share."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunus import storage
from prunus.errors import BadInput

SECONDS = 60
"""A case that takes longer hangs."""
UNSEEN = "damage not seen (no digest)"
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 2**31, 2**63, -(2**70), 1e308, -0.5, "", "x", "\x1b[31m", "\ud800", "9" * 400),
    *([], {}, [[]], {"a": 1}, [1, 2], [-1], [2**40, 2**40], "infinite", "../../etc/passwd", "layers.0"),
)


@dataclass
class Format:
    """How a file is made, read, and changed from inside with its digest made right again."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    craft: Callable[[Path, random.Random], None] | None = None
    sealed: bool = True
    """Whether damage must be seen: what loads must be what was written."""
    counts: dict[str, int] = field(default_factory=dict)

    def run(self, folder: Path, plain: int, crafted: int, seed: int) -> dict[str, int]:
        """So many cases of each kind; fails at the first that is not refused in one sentence or read as it was."""
        source = random.Random(f"{self.name} {seed}")
        good = folder / f"good-{self.name.replace(' ', '-')}"
        self.make(good)
        body, expected = good.read_bytes(), self.read(good)
        bad = good.with_name(good.name.replace("good", "bad"))
        tally = {"plain damage": plain, "crafted": crafted if self.craft else 0, "refused": 0, "read": 0}
        tally[UNSEEN] = 0
        for case in range(plain):
            content = damaged(body, source)
            bad.write_bytes(content)
            found = self._attempt(bad, f"{self.name}, plain case {case}")
            tally["refused" if found is None else "read"] += 1
            other = found is not None and found[0] != expected
            assert not (other and self.sealed), f"{self.name}, case {case}: a wrong load"
            tally[UNSEEN] += other
        for case in range(crafted if self.craft else 0):
            assert self.craft is not None
            bad.write_bytes(body)
            self.craft(bad, source)
            found = self._attempt(bad, f"{self.name}, crafted case {case}")
            tally["refused" if found is None else "read"] += 1
        return tally

    def _attempt(self, path: Path, about: str) -> tuple[Any] | None:
        try:
            with in_time(SECONDS):
                return (self.read(path),)
        except BadInput as error:
            text = str(error)
            assert text.strip(), about
            assert "\n" not in text, f"{about}: more than one line: {text}"
            assert len(text) < 1500, f"{about}: a long sentence: {text}"
            return None
        except Exception as error:
            raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def in_time(seconds: int, what: str = "it") -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged(good: bytes, source: random.Random) -> bytes:
    """One way in which disks, networks and editors harm files; never the same bytes."""
    while True:
        body, kind = bytearray(good), source.randrange(8)
        start = source.randrange(len(body))
        if kind == 0:
            body[start] ^= 1 << source.randrange(8)
        elif kind == 1:
            del body[start:]
        elif kind == 2:
            body[start:start] = source.randbytes(source.randrange(1, 9))
        elif kind == 3:
            body[start : start + 8] = source.randbytes(8)
        elif kind == 4:
            size = min(source.randrange(1, 512), len(body) - start)
            body[start : start + size] = bytes(size)
        elif kind == 5:
            body += source.randbytes(source.randrange(1, 64))
        elif kind == 6:
            del body[start : start + source.randrange(1, 64)]
        else:
            size, other = source.randrange(1, 64), source.randrange(len(body))
            body[start : start + size] = good[other : other + size]
        if bytes(body) != good:
            return bytes(body)


def changed(value: Any, source: random.Random) -> Any:
    """A JSON value with one of its parts replaced by junk, dropped, or doubled."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        key = source.choice(list(value))
        what = source.random()
        if what < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if what < 0.15:
            return {**value, source.choice(["x", "", "layers.9", f"{key}."]): value[key]}
        return {**value, key: changed(value[key], source)}
    if isinstance(value, list) and value and source.random() < 0.85:
        place = source.randrange(len(value))
        what = source.random()
        if what < 0.1:
            return value[:place] + value[place + 1 :]
        if what < 0.15:
            return [*value, value[place]]
        return [*value[:place], changed(value[place], source), *value[place + 1 :]]
    return source.choice(JUNK)


def changed_tensors(tensors: dict[str, Tensor], source: random.Random) -> dict[str, Tensor]:
    """The tensors with one of them cut, filled, reshaped, converted, dropped, renamed or added."""
    found = dict(tensors)
    if not found:
        return {"x": torch.ones(3)}
    name = source.choice(sorted(found))
    tensor, kind = found[name], source.randrange(9)
    if kind == 0:
        del found[name]
    elif kind == 1:
        found[source.choice(["x", "", f"{name}.", "layers.0.values"])] = found.pop(name)
    elif kind == 2 and tensor.dim():
        found[name] = tensor[: source.randrange(len(tensor) + 1)]
    elif kind == 3:
        found[name] = tensor.to(source.choice([torch.float32, torch.int64, torch.uint8, torch.bool, torch.float16]))
    elif kind == 4:
        found[name] = tensor.reshape(-1) if source.random() < 0.5 else tensor[None]
    elif kind == 5 and tensor.is_floating_point():
        found[name] = torch.full_like(tensor, source.choice([float("nan"), float("inf"), -1e38, 0.0]))
    elif kind == 6 and tensor.numel() and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        edited = tensor.clone()
        limits = torch.iinfo(tensor.dtype)
        edited.view(-1)[source.randrange(tensor.numel())] = source.choice([limits.min, limits.max, 1, 0, 7])
        found[name] = edited
    elif kind == 7:
        found[f"{name}x"] = tensor
    else:
        found[name] = torch.zeros(0)
    return found


def craft_tensors(kind: str) -> Callable[[Path, random.Random], None]:
    """Change tensors or record of one of our tensor files, and write it with a right digest."""

    def craft(path: Path, source: random.Random) -> None:
        tensors, record = storage.read_tensors(path, kind)
        for _ in range(source.randrange(1, 3)):
            if record and source.random() < 0.6:
                record = changed(record, source)
            else:
                tensors = changed_tensors(tensors, source)
        path.write_bytes(storage.pack_tensors(tensors, kind, record))

    return craft


def craft_record(kind: str) -> Callable[[Path, random.Random], None]:
    """The same for a sealed record."""

    def craft(path: Path, source: random.Random) -> None:
        record = changed(storage.read_record(path, kind), source)
        record = record if isinstance(record, dict) else {"record": record}
        body = {"format": kind, **record}
        body["digest"] = storage.digest_of(json.dumps(body, sort_keys=True, separators=(",", ":")))
        path.write_text(json.dumps(body))

    return craft
