"""The file of `Masks.save`: safetensors, eight weights to a byte.

Every mask is a one-dimensional uint8 tensor under its parameter's name, bits in row-major order, the first weight in
the lowest bit, unused bits of the last byte zero. The metadata hold

    format    "prunus.masks"
    version   "1"
    shapes    JSON: name -> shape
    notes     JSON: how the masks were made
    checksum  SHA-256 over names, shapes, notes and bits: a file that loads is the file that was written
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as write_tensors

from prunus.errors import BadFile
from prunus.files import in_order, replace_file
from prunus.masks import Masks

FORMAT, VERSION = "prunus.masks", "1"


def write_masks(masks: Masks, path: Path) -> None:
    bits = {name: np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little") for name, mask in masks.items()}
    shapes = json.dumps({name: list(mask.shape) for name, mask in masks.items()})
    notes = json.dumps(masks.notes, default=str)
    metadata = {"format": FORMAT, "version": VERSION, "shapes": shapes, "notes": notes}
    metadata["checksum"] = _checksum(bits, shapes, notes)
    replace_file(path, in_order(write_tensors(bits, metadata=metadata)))


def read_masks(path: Path) -> Masks:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"The mask file {path} cannot be read: {error.strerror or error}.") from None
    try:
        metadata = _metadata(content)
        bits = read_tensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadFile(f"{path} is not a whole safetensors file ({error}); save the masks again.") from None
    if metadata.get("format") != FORMAT:
        raise BadFile(f"{path} is a safetensors file but does not hold masks; Masks.save writes such files.")
    if metadata.get("version") != VERSION:
        raise BadFile(
            f"{path} has version {metadata.get('version')!r} of the mask format; this Prunus reads {VERSION}."
        )
    shapes_text, notes_text = metadata.get("shapes", ""), metadata.get("notes", "")
    if metadata.get("checksum") != _checksum(bits, shapes_text, notes_text):
        raise BadFile(f"{path} is damaged: its checksum does not match its content; save the masks again.")
    shapes: dict[str, list[int]] = json.loads(shapes_text)
    masks = {name: _unpack(path, name, bits.get(name), shape) for name, shape in shapes.items()}
    if masks.keys() != bits.keys():
        raise BadFile(f"{path} is inconsistent: its tensors are not those its header lists; save the masks again.")
    return Masks.adopt(masks, json.loads(notes_text))


def _unpack(path: Path, name: str, bits: np.ndarray | None, shape: list[int]) -> torch.Tensor:
    total = math.prod(shape)
    if bits is None or bits.dtype != np.uint8 or bits.size != (total + 7) // 8:
        raise BadFile(f"{path} is inconsistent: the bits of {name!r} do not fill its shape; save the masks again.")
    return torch.from_numpy(np.unpackbits(bits, count=total, bitorder="little").astype(bool)).reshape(shape)


def _metadata(content: bytes) -> dict[str, Any]:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 + size:
        raise ValueError("the header is cut off")
    header = json.loads(content[8 : 8 + size])
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    return metadata if isinstance(metadata, dict) else {}


def _checksum(bits: dict[str, np.ndarray], shapes: str, notes: str) -> str:
    digest = hashlib.sha256()
    for part in (FORMAT, VERSION, str(shapes), str(notes)):
        digest.update(f"{len(part)}:{part}".encode())
    for name in sorted(bits):
        digest.update(f"{len(name)}:{name}:{bits[name].dtype}:{bits[name].size}:".encode())
        digest.update(np.ascontiguousarray(bits[name]).tobytes())
    return digest.hexdigest()
