"""Shrunk models on disk: safetensors with the sizes that their modules remember, nothing pickled.

    prunus.structure.save(small, "small.safetensors")
    again = prunus.structure.load("small.safetensors", make_the_full_model())

A Hugging Face model whose configuration can say its new sizes needs none of this: `save_pretrained` and
`from_pretrained` work as always.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import BadFile, BadInput, first_line
from prunus.files import replace_file

_FORMAT = "prunus-shrunk-1"


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a shrunk model's tensors and sizes to one safetensors file.

    Args:
        model: The smaller model, trained on or not.
        path: Where it goes; an existing file is replaced at once or not at all.

    Example:
        >>> import torch, prunus
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> small = prunus.shrink(model, 0.5, example=torch.zeros(1, 8))
        >>> prunus.structure.save(small, "small.safetensors")
        >>> again = prunus.structure.load("small.safetensors", prunus.models.make("fc:8-32-4"))
        >>> bool((again(torch.ones(1, 8)) == small(torch.ones(1, 8))).all())
        True
    """
    from safetensors.torch import save as pack

    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    seen: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first = seen.setdefault(id(value), name)
        if first == name:
            tensors[name] = value.detach().cpu().contiguous().clone()
        else:
            shared[name] = first
    record = {"sizes": {name: sizes for name, module in model.named_modules() if (sizes := _sizes(module))}}
    metadata = {"format": _FORMAT, "record": json.dumps({**record, "shared": shared}, sort_keys=True)}
    replace_file(Path(path), pack(tensors, metadata=metadata))


def load(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Turn the full model into the smaller one that `save` wrote; in place, and returned.

    Args:
        path: The file.
        model: A model of the same class and of the original sizes; it may be on the meta device.

    Returns:
        The model, now with the file's sizes and tensors.

    Raises:
        BadFile: The file is missing, damaged, or not of this kind.
        BadInput: The file belongs to another model; nothing was changed.
    """
    tensors, record = _read(Path(path))
    modules = dict(model.named_modules())
    own = model.state_dict(keep_vars=True)
    names = {*tensors, *record["shared"]}
    missing, extra = sorted(own.keys() - names), sorted(names - own.keys())
    unknown = sorted(record["sizes"].keys() - modules.keys())
    if missing or extra or unknown:
        odd = (missing or extra or unknown)[0]
        raise BadInput(f"{path} was written for another model: {odd!r} is not in both; load it into the same class.")
    for name, sizes in record["sizes"].items():
        for attribute, value in sizes.items():
            held = getattr(modules[name], attribute, None)
            setattr(modules[name], attribute, type(held)(value) if isinstance(held, (tuple, list)) else value)
    made: dict[str, Tensor] = {}
    for name in [*tensors, *record["shared"]]:
        first = record["shared"].get(name, name)
        owner, attribute = modules[name.rpartition(".")[0]], name.rpartition(".")[2]
        old = own[name]
        if first not in made:
            value = tensors[first].to(old.dtype)
            made[first] = nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value
        setattr(owner, attribute, made[first])
    return model


def _sizes(module: nn.Module) -> dict[str, Any]:
    """Whole numbers and tuples of them among a module's public attributes."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
        elif isinstance(value, (tuple, list)) and value and all(type(each) is int for each in value):
            found[name] = list(value)
    return found


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadFile(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise BadFile(f"{path} is not a shrunk model: prunus.structure.save writes such files.")
            record = json.loads(metadata["record"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(record, dict) or not all(isinstance(record.get(key), dict) for key in ("sizes", "shared")):
        raise BadFile(f"{path} is damaged: its record of sizes is not complete.")
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    return tensors, record
