"""The file of `Masks.save`: safetensors, eight weights to a byte.

Every mask is a one-dimensional uint8 tensor under its parameter's name, bits in row-major order, the first weight in
the lowest bit, unused bits of the last byte zero. The record (see `prunus.storage`) holds

    version   2
    shapes    name -> shape
    notes     how the masks were made
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus import storage
from prunus.errors import BadFile
from prunus.masks import Masks

KIND, VERSION = "masks", 2


def write_masks(masks: Masks, path: Path) -> None:
    bits = {name: pack_bits(mask) for name, mask in masks.items()}
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    notes = json.loads(json.dumps(masks.notes, default=str))
    storage.write_tensors(path, bits, KIND, {"version": VERSION, "shapes": shapes, "notes": notes})


def read_masks(path: Path) -> Masks:
    bits, record = storage.read_tensors(path, KIND, f"The mask file {path}")
    if not isinstance(record, dict) or record.get("version") != VERSION:
        found = record.get("version") if isinstance(record, dict) else None
        raise BadFile(f"{path} has version {found!r} of the mask format; this Prunus reads {VERSION}.")
    shapes, notes = record.get("shapes"), record.get("notes")
    if not isinstance(shapes, dict) or not isinstance(notes, dict) or shapes.keys() != bits.keys():
        raise BadFile(f"{path} is inconsistent: its tensors are not those its header lists; save the masks again.")
    return Masks.adopt({name: unpack_bits(path, name, bits[name], shape) for name, shape in shapes.items()}, notes)


def pack_bits(mask: Tensor) -> Tensor:
    """Eight weights to a byte, the first in the lowest bit."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little"))


def unpack_bits(path: Path, name: str, bits: Tensor, shape: Any) -> Tensor:
    """The mask of `name` in this shape; refused where the bits do not fill it."""
    sizes = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**62 for size in shape)
    total = math.prod(shape) if sizes else -1
    if not sizes or bits.dtype != torch.uint8 or bits.shape != ((total + 7) // 8,):
        raise BadFile(f"{path} is inconsistent: the bits of {name!r} do not fill its shape; save the masks again.")
    flat = np.unpackbits(bits.numpy(), count=total, bitorder="little").astype(bool)
    try:
        return torch.from_numpy(flat).reshape(shape)
    except RuntimeError:  # no weights, in sizes whose product overflows
        raise BadFile(f"{path} is inconsistent: the shape of {name!r} is impossible; save the masks again.") from None
