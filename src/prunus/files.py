"""Writing files so that nothing is lost: to a temporary name in the same folder, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from prunus.errors import BadInput


def replace_file(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write `content` to `path` so that the old file or the new one is there at every moment, never half of one."""
    target = Path(path)
    body = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror or error}; choose another folder.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except IsADirectoryError:
        Path(temporary).unlink(missing_ok=True)
        raise BadInput(f"{target} is a folder: name a file in it.") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def in_order(content: bytes) -> bytes:
    """A safetensors file with the keys of its metadata in order: the library writes them as they come, so that the
    same content would not always be the same bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if "__metadata__" not in header:
        return content
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > size:  # never, as long as the library writes without spaces
        return content
    return content[:8] + body.ljust(size) + content[8 + size :]


def replace_json(path: str | os.PathLike[str], record: Any) -> Path:
    """`replace_file` for a JSON record."""
    return replace_file(path, json.dumps(record, indent=1, default=str) + "\n")
