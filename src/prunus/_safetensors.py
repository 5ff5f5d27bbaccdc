"""The safetensors format, strictly read: named tensors in memory of their own, and a table of texts.

A file is the length of its header (8 bytes), the header (JSON: type, shape and place of every tensor, and
"__metadata__"), and the tensors one after the other without gaps. `prunus.storage` says why the library is not used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from prunus.errors import BadInput

_HEADER_LIMIT = 100_000_000
_LARGEST = 2**62
TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in TYPES.items()}

Entry = tuple[torch.dtype, list[int], int]
"""Type, shape, and where the tensor begins."""


class Damaged(Exception):
    """Why bytes are not a whole safetensors file, as a part of a sentence."""


def bytes_of(tensor: Tensor) -> memoryview:
    """The elements of a tensor in row-major order, without a copy where they lie so already."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if not plain.numel():
        return memoryview(b"")
    return plain.reshape(-1).view(torch.uint8).numpy().data


def check(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that a file cannot hold."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _CODES:
            about = "without content" if tensor.is_meta else f"of type {tensor.dtype} and layout {tensor.layout}"
            raise BadInput(f"The tensor {name!r} is {about}, which files cannot hold: make it dense and plain.")


def parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The file part by part, the same bytes for the same content.

    Larger element types come first, so that every tensor begins at a multiple of its element's size.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    start = 0
    for name in order:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-len(body) % 8)
    yield len(body).to_bytes(8, "little") + body
    for name in order:
        yield bytes_of(tensors[name])


def read(file: IO[bytes], size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of an open file of `size` bytes; raises `Damaged` where they do not fill it exactly."""
    metadata, entries, start = _read_header(file, size)
    return {name: _read_tensor(file, start, entry) for name, entry in entries.items()}, metadata


def _read_header(file: IO[bytes], size: int) -> tuple[dict[str, str], dict[str, Entry], int]:
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or length > min(_HEADER_LIMIT, size - 8):
        raise Damaged("its header is cut off")
    body = bytearray(length)
    _fill(file, memoryview(body))
    try:
        header = json.loads(body.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its header cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise Damaged("its header is not a table of tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Damaged("its metadata is not a table of texts")
    entries = {name: _entry(name, entry) for name, entry in header.items()}
    end = 0
    for first, count, name in sorted((e[2], math.prod(e[1]) * e[0].itemsize, name) for name, e in entries.items()):
        if first != end:
            raise Damaged(f"{name!r} does not begin where the tensor before it ends")
        end = first + count
    if end != size - 8 - length:
        raise Damaged(f"it holds {size - 8 - length:,} bytes of tensors where its header lists {end:,}")
    return metadata, entries, 8 + length


def _entry(name: str, entry: Any) -> Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"the entry of {name!r} is incomplete")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in TYPES:
        raise Damaged(f"{name!r} is of the unknown type {code!r}")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise Damaged(f"the shape or place of {name!r} is impossible")
    if offsets[1] - offsets[0] != math.prod(shape) * TYPES[code].itemsize:
        raise Damaged(f"{name!r} does not fill its shape")
    return TYPES[code], shape, offsets[0]


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _LARGEST for value in values)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _read_tensor(file: IO[bytes], start: int, entry: Entry) -> Tensor:
    dtype, shape, offset = entry
    try:
        tensor = torch.empty(shape, dtype=dtype)
    except (RuntimeError, TypeError) as error:  # sizes that overflow although nothing is in them: (0, 2**61, 2**61)
        raise Damaged(f"a shape is impossible: {str(error).splitlines()[0]}") from None
    if tensor.numel():
        file.seek(start + offset)
        _fill(file, tensor.reshape(-1).view(torch.uint8).numpy().data)
    return tensor


def _fill(file: IO[bytes], view: memoryview) -> None:
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise Damaged("it became shorter while it was read")
        view = view[count:]
