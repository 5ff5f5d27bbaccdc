"""One digest, one atomic and synced write, one header for files of tensors: every file of ours goes through here.

Writing. `write` fills a temporary file beside the target, syncs it, renames it and syncs the folder: at every moment,
also after a power cut, the old file or the new one is there, never half of one. Temporary files that killed writers
left are removed by the next writer in the same folder; a writer that lives holds a lock on its own. The user's umask
decides who may read a new file; a file that is replaced keeps its mode.

Files of tensors are safetensors, written and read here rather than by the library, for three reasons: the tensors are
read into memory of their own (the library maps the file, so that truncating it later kills the process), the same
content is always the same bytes, and neither way makes a second copy. Our metadata:

    format         "pt", as other libraries expect it
    prunus.kind    what the file holds: "weights", "masks", "sparse", "checkpoint", ...
    prunus.record  JSON: everything that is not a tensor
    prunus.digest  SHA-256 over kind and record, and over name, type, shape and bytes of every tensor

Records are JSON with "format" and, where they are read again, "digest" over the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prunus.errors import BadFile, BadInput, RunFailed

if TYPE_CHECKING:
    from torch import Tensor

StrPath = str | os.PathLike[str]
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.prunus\.tmp", re.DOTALL)

# -------------------------------------------------------------------------------------------------------------- digests


def digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """SHA-256 over the texts, and over name, type, shape and bytes of every tensor, in the order of the names.

    Example:
        >>> import torch
        >>> digest({"a": torch.zeros(2)}) == digest({"a": torch.zeros(2)}) != digest({"a": torch.zeros(1, 2)})
        True
    """
    from prunus import _safetensors

    total = hashlib.sha256()
    for text in texts:
        body = text.encode(errors="surrogatepass")  # a damaged file can hold half a character
        total.update(b"%d:" % len(body) + body)
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(_safetensors.bytes_of(tensor))
    return total.hexdigest()


def digest_of(content: bytes | str) -> str:
    """SHA-256 of these bytes, or of this text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_of_file(path: StrPath) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"The file {path} cannot be read: {error.strerror or error}.") from None


# -------------------------------------------------------------------------------------------------------------- writing


def write(path: StrPath, content: bytes | str | Iterable[bytes | memoryview]) -> Path:
    """Write `content` to `path`: the old file or the new one is there at every moment, never half of one.

    Args:
        path: the file; a link is followed, an existing file keeps its mode, a new one gets what the umask allows.
        content: bytes, text (written as UTF-8), or parts to be written one after the other.

    Returns:
        The path.

    Raises:
        BadFile: the place cannot be written (a folder, a device, no such folder, not allowed, read-only).
        RunFailed: the disk is full or fails. The old file, if there was one, is as it was.
    """
    target = Path(os.path.realpath(path))
    parts: Iterable[bytes | memoryview]
    parts = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    try:
        mode = _mode_of(target, path)
        _remove_strays(target.parent)
        with _temporary(target) as (file, name):
            for part in parts:
                file.write(part)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(name, target)
        sync_folder(target.parent)
    except OSError as error:
        raise _refusal(path, error) from None
    return Path(path)


def write_json(path: StrPath, record: Any) -> Path:
    """`write` for a JSON record that people and other programs read."""
    return write(path, json.dumps(record, indent=1, default=str) + "\n")


def write_record(path: StrPath, kind: str, record: Mapping[str, Any]) -> Path:
    """Write a record that is read again by `read_record`: JSON with "format" and a "digest" over everything else.

    Raises:
        BadInput: the record holds something that is not JSON (also NaN and infinity), or the place cannot be written.
    """
    body = {"format": kind, **{key: value for key, value in record.items() if key not in ("format", "digest")}}
    try:
        body["digest"] = digest_of(_canonical(body))
        text = json.dumps(body, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"The record {path} cannot be written: {error}; give finite numbers, texts and lists.") from None
    return write(path, text + "\n")


def read_record(path: StrPath, kind: str) -> dict[str, Any]:
    """A record that `write_record` wrote, without "format" and "digest"; what is damaged or foreign is refused."""
    try:
        body = json.loads(read(path), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is damaged or no JSON ({error}): take another copy of it.") from None
    if not isinstance(body, dict) or body.get("format") != kind:
        raise BadFile(f"{path} is no {kind} file: check the name.")
    expected = body.pop("digest", None)
    if expected != digest_of(_canonical(body)):
        raise BadFile(f"{path} is damaged or was changed: its content does not match its digest.")
    del body["format"]
    return body


def read(path: StrPath) -> bytes:
    """A file's bytes; `BadFile` in one sentence where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"The file {path} cannot be read: {error.strerror or error}.") from None


def sync_folder(folder: StrPath) -> None:
    """Make renames in a folder last through a power cut, where the file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)


def _canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _no_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _mode_of(target: Path, given: StrPath) -> int | None:
    """The mode of the file that will be replaced; None where there is none yet."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found):
        raise BadFile(f"{given} is a folder: name a file in it.")
    if not stat.S_ISREG(found):
        raise BadFile(f"{given} is a device or a pipe, which cannot be replaced by a file: name an ordinary file.")
    return stat.S_IMODE(found)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[IO[bytes], str]]:
    """A new file beside the target, open and locked; removed unless it was renamed."""
    while True:
        name = str(target.with_name(f".{target.name[:60]}.{secrets.token_hex(6)}.prunus.tmp"))
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _try_lock(handle)
        if os.fstat(handle).st_nlink:  # else another writer took it for a stray before it was locked
            break
        os.close(handle)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)  # gone already where it was renamed


def _try_lock(handle: int) -> bool:
    """Whether this process now holds the file's lock; False too where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_strays(folder: Path) -> None:
    """Remove temporary files whose writers are gone: their locks are free."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if not _TEMPORARY.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                handle = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if _try_lock(handle):
                        os.unlink(folder / name)
                finally:
                    os.close(handle)


_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "your share of the disk is used up"}
_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


def _refusal(path: StrPath, error: OSError) -> BadFile | RunFailed:
    """One sentence for an error of the operating system."""
    if error.errno in _FULL:
        reason = _FULL[error.errno]
        return RunFailed(f"{path} cannot be written: {reason}; make room, or choose another place, and run it again.")
    if error.errno == errno.ENOENT and Path(path).parent.is_dir():
        return BadFile(f"{path} cannot be written: {Path(path).parent} takes no new files; choose another folder.")
    if error.errno == errno.ENOENT:
        return BadFile(f"{path} cannot be written: there is no folder {Path(path).parent}; make it, or choose another.")
    kind = BadFile if error.errno in _PLACE else RunFailed
    return kind(f"{path} cannot be written: {error.strerror or error}; choose another folder.")


# -------------------------------------------------------------------------------------------------------------- tensors


def write_tensors(path: StrPath, tensors: Mapping[str, Tensor], kind: str, record: Any = None) -> Path:
    """Write named tensors and a record to one safetensors file, with a digest over both.

    Args:
        path: the file, written as `write` does.
        tensors: dense tensors of any device, by name.
        kind: what the file holds, as in "weights"; `read_tensors` compares it.
        record: anything that JSON holds.

    Returns:
        The path.

    Raises:
        BadInput: a tensor is sparse, on the meta device or of a type that safetensors lacks; or as `write` says.
    """
    return write(path, _parts(tensors, kind, record))


def pack_tensors(tensors: Mapping[str, Tensor], kind: str, record: Any = None) -> bytes:
    """The bytes that `write_tensors` would write."""
    return b"".join(_parts(tensors, kind, record))


def read_tensors(source: StrPath | bytes, kind: str | None, what: str = "") -> tuple[dict[str, Tensor], Any]:
    """Tensors and record of a safetensors file, in memory of their own, checked against the file's digest.

    Args:
        source: a path, or the content of a file.
        kind: what the file must hold. With None any safetensors file is read; a digest is checked where there is one.
        what: how errors call it; "The file" and its path, unless given.

    Returns:
        The tensors by name, and the record (None for files that Prunus did not write).

    Raises:
        BadFile: it is missing, damaged, or holds something else.
    """
    from prunus import _safetensors

    name = what or ("The content" if isinstance(source, bytes) else f"The file {source}")
    try:
        with _opened(source) as (file, size):
            tensors, metadata = _safetensors.read(file, size)
    except FileNotFoundError:
        raise BadFile(f"{name} cannot be read: there is no file of this name.") from None
    except OSError as error:
        raise BadFile(f"{name} cannot be read: {error.strerror or error}.") from None
    except _safetensors.Damaged as error:
        raise BadFile(f"{name} is damaged or no safetensors file ({error}): take another copy of it.") from None
    found, text = metadata.get("prunus.kind"), metadata.get("prunus.record", "")
    if kind is not None and found != kind:
        holds = f"it holds {found}" if found else "it was not written by Prunus for this"
        raise BadFile(f"{name} does not hold {kind}: {holds}; check the name.")
    if found is None and "prunus.digest" not in metadata:
        return tensors, None
    if metadata != _metadata(tensors, str(found), text):
        raise BadFile(f"{name} is damaged: its content does not match its digest; take another copy of it.")
    try:
        return tensors, json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{name} is damaged: its record cannot be read ({error}).") from None


def _parts(tensors: Mapping[str, Tensor], kind: str, record: Any) -> Iterator[bytes | memoryview]:
    from prunus import _safetensors

    _safetensors.check(tensors)
    text = json.dumps(record)
    return _safetensors.parts(tensors, _metadata(tensors, kind, text))


def _metadata(tensors: Mapping[str, Tensor], kind: str, text: str) -> dict[str, str]:
    sums = {"prunus.digest": digest(tensors, kind, text)}
    return {"format": "pt", "prunus.kind": kind, "prunus.record": text} | sums


@contextlib.contextmanager
def _opened(source: StrPath | bytes) -> Iterator[tuple[IO[bytes], int]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source)
        return
    if not stat.S_ISREG(os.stat(source).st_mode):  # opening a pipe would wait for somebody to write
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    with open(source, "rb", buffering=0) as file:
        yield file, os.fstat(file.fileno()).st_size


# ---------------------------------------------------------------------------------------------------------------- locks


@contextlib.contextmanager
def locked(folder: StrPath, what: str) -> Iterator[None]:
    """Hold a folder for this process; a second one is refused in a sentence that names the first.

    Args:
        folder: it is made where it is missing.
        what: what lies in the folder, as in "study".

    Raises:
        BadInput: another process holds it, or it cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise BadInput(f"{place} is a file: name a folder for the {what}.") from None
    except OSError as error:
        raise BadInput(f"{place} cannot be written: {error.strerror or error}; choose another folder.") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            raise BadInput(
                f"The {what} in {place} is in use by another process{f' ({holder})' if holder.isdigit() else ''}: "
                "wait for it, stop it, or choose another folder."
            ) from None
        except OSError:
            pass  # a file system without locks
        else:
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(handle)
