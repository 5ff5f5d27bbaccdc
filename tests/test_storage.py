"""Files are whole or not there, same content is same bytes, damage is seen, and the library reads what we write."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from prunus import _safetensors, storage
from prunus.errors import BadFile, BadInput, RunFailed


def tensors_of_many_kinds() -> dict[str, torch.Tensor]:
    found = {name: torch.ones(2, 3).to(dtype) for name, dtype in _safetensors.TYPES.items()}
    found |= {"empty": torch.ones(0, 4), "scalar": torch.tensor(2.5), "turned": torch.arange(6.0).reshape(2, 3).T}
    return found | {"ü a": torch.arange(5), "conj": torch.tensor([1 + 2j]).conj()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return storage.digest(one) == storage.digest(two)


# -------------------------------------------------------------------------------------------------------------- tensors


def test_tensors_come_back_and_the_library_agrees(tmp_path: Path) -> None:
    tensors = tensors_of_many_kinds()
    path = storage.write_tensors(tmp_path / "f", tensors, "test", {"a": [1, None]})
    found, record = storage.read_tensors(path, "test")
    assert same(found, tensors)
    assert record == {"a": [1, None]}
    assert same(safetensors.torch.load_file(path), tensors)
    assert storage.pack_tensors(tensors, "test", {"a": [1, None]}) == path.read_bytes()
    backwards = dict(reversed(tensors.items()))
    assert storage.write_tensors(tmp_path / "g", backwards, "test", {"a": [1, None]}).read_bytes() == path.read_bytes()
    theirs = {name: tensor.resolve_conj().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(theirs, tmp_path / "theirs")
    assert same(storage.read_tensors(tmp_path / "theirs", None)[0], tensors)


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    for tensor in (torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2).to(torch.complex128)):
        with pytest.raises(BadInput, match="cannot hold"):
            storage.write_tensors(tmp_path / "f", {"a": tensor}, "test")
    assert not list(tmp_path.iterdir())


def crafted(entries: dict[str, object], size: int = 0, text: str = "") -> bytes:
    body = (text or json.dumps(entries)).encode()
    return len(body).to_bytes(8, "little") + body + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        crafted({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8),
        crafted({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 8),
        crafted({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, 4),
        crafted({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": "F32", "shape": [0, 2**61, 2**61], "data_offsets": [0, 0]}}),
        crafted({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, 4),
        crafted({"a": {"dtype": "F32", "shape": [1]}}, 4),
        crafted({"a": 3}),
        crafted({"__metadata__": {"a": 1}}),
        crafted({"__metadata__": [1]}),
        crafted({}, text='{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        crafted({}, text="[" * 100_000),
        crafted({}, text='{"a": ' + "9" * 10_000 + "}"),
        (2**63).to_bytes(8, "little") + b"{}",
        b"",
    ],
)
def test_crafted_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadFile) as refused:
        storage.read_tensors(content, None)
    assert "\n" not in str(refused.value)
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(BadFile):
        storage.read_tensors(tmp_path / "f", None)


def test_every_damaged_byte_is_seen() -> None:
    good = storage.pack_tensors({"a": torch.arange(4.0)}, "test", {"b": 1})
    for place in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            try:
                found, record = storage.read_tensors(bytes(bad), "test")
            except BadFile:
                continue
            assert same(found, {"a": torch.arange(4.0)})
            assert record == {"b": 1}
            assert good[place : place + 1] in b" "  # another kind of white space at the end of the header


def test_the_kind_and_places_that_are_no_files(tmp_path: Path) -> None:
    path = storage.write_tensors(tmp_path / "f", {}, "masks")
    with pytest.raises(BadFile, match="does not hold weights: it holds masks"):
        storage.read_tensors(path, "weights")
    os.mkfifo(tmp_path / "pipe")
    for place in ("absent", "pipe", "."):
        with pytest.raises(BadFile, match="cannot be read"):
            storage.read_tensors(tmp_path / place, "masks")


# -------------------------------------------------------------------------------------------------------------- writing


def test_the_umask_is_respected_and_modes_are_kept(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        private = storage.write(tmp_path / "private", "a")
        os.umask(0o002)
        shared = storage.write(tmp_path / "shared", "a")
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert stat.S_IMODE(shared.stat().st_mode) == 0o664
        storage.write(private, "b")
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_file_and_folder_are_synced_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replace(one: str, two: str) -> None:
        steps.append("rename")
        rename(one, two)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    storage.write_tensors(tmp_path / "f", {"a": torch.ones(3)}, "weights")
    assert steps == ["file", "rename", "folder"]


def test_links_are_followed_and_devices_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    storage.write(tmp_path / "link", "text")
    assert (tmp_path / "real" / "file").read_text() == "text"
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadFile, match="device or a pipe"):
        storage.write(tmp_path / "pipe", "text")
    with pytest.raises(BadFile, match="device or a pipe"):
        storage.write("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFile, match="is a folder"):
        storage.write(tmp_path, "a")
    with pytest.raises(BadFile, match="there is no folder"):
        storage.write(tmp_path / "no" / "f", "a")
    (tmp_path / "f").write_text("old")
    with pytest.raises(BadFile, match="cannot be written"):
        storage.write(tmp_path / "f" / "g", "a")
    with pytest.raises(BadFile, match="cannot be written"):
        storage.write(tmp_path / ("n" * 300), "a")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="the disk is full"):
        storage.write(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_grows_too_large_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from prunus import storage, errors\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n"
        "try: storage.write(sys.argv[1], b'x' * 1000)\n"
        "except errors.RunFailed as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "f"], capture_output=True, text=True)
    assert "cannot be written: File too large" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from prunus import storage\n"
        "def parts():\n  yield b'half'\n  os.kill(os.getpid(), signal.SIGKILL)\n"
        "storage.write(sys.argv[1], parts())"
    )
    (tmp_path / "f").write_text("old")
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "f"])
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / ".notes.tmp").write_text("somebody else's")
    storage.write(tmp_path / "g", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.tmp", "f", "g"]
    assert (tmp_path / "f").read_text() == "old"


def test_a_writer_that_lives_is_not_disturbed(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one "
        storage.write(tmp_path / "other", "x")
        storage.write(tmp_path / "same", "y")
        yield b"two"

    storage.write(tmp_path / "same", parts())
    assert (tmp_path / "same").read_text() == "one two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "same"]


# -------------------------------------------------------------------------------------------------------------- records


def test_records_are_read_as_written_or_refused(tmp_path: Path) -> None:
    path = storage.write_record(tmp_path / "r.json", "test-1", {"bound": 0.25, "who": "ü", "list": [1, None, True]})
    assert storage.read_record(path, "test-1") == {"bound": 0.25, "who": "ü", "list": [1, None, True]}
    good = path.read_text()
    with pytest.raises(BadFile, match="does not match"):
        storage.read_record(storage.write(path, good.replace("0.25", "0.125")), "test-1")
    for text in ("", "[]", "{}", good.replace("0.25", "NaN"), good.replace("test-1", "test-2"), "[" * 100_000):
        with pytest.raises(BadFile):
            storage.read_record(storage.write(path, text), "test-1")
    with pytest.raises(BadInput, match="cannot be written"):
        storage.write_record(path, "test-1", {"bound": float("nan")})


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    code = "import sys; from prunus import storage\nwith storage.locked(sys.argv[1], 'study'): print('mine')"
    command = [sys.executable, "-c", code, tmp_path / "study"]
    with storage.locked(tmp_path / "study", "study"):
        done = subprocess.run(command, capture_output=True, text=True)
        assert f"in use by another process ({os.getpid()})" in done.stderr
    assert subprocess.run(command, capture_output=True, text=True).stdout == "mine\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"), storage.locked(tmp_path / "file", "study"):
        pass
