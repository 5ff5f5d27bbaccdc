"""Shrunk models on disk: safetensors with the sizes that their modules remember, nothing pickled.

    prunus.structure.save(small, "small.safetensors")
    again = prunus.structure.load("small.safetensors", make_the_full_model())

A Hugging Face model whose configuration can say its new sizes needs none of this: `save_pretrained` and
`from_pretrained` work as always.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prunus import storage
from prunus.errors import BadFile, BadInput
from prunus.structure._depth import is_list, shorten

_KIND = "shrunk model"


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
    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    seen: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first = seen.setdefault(id(value), name)
        if first == name:
            tensors[name] = value
        else:
            shared[name] = first
    sizes = {name: found for name, module in model.named_modules() if (found := _sizes(module))}
    storage.write_tensors(path, tensors, _KIND, {"sizes": sizes, "shared": shared})


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

    Example:
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> prunus.structure.save(prunus.shrink(model, 0.5, example=torch.zeros(1, 8)), "small.safetensors")
        >>> prunus.structure.load("small.safetensors", prunus.models.make("fc:8-32-4")).layers[0]
        Linear(in_features=8, out_features=16, bias=True)
    """
    tensors, record = _read(Path(path))
    before = {module: dict(module._modules) for module in model.modules() if is_list(module)}
    try:
        return _filled(Path(path), _shortened(Path(path), model, record), tensors, record)
    except (BadFile, BadInput):
        for module, members in before.items():
            module._modules.clear()
            module._modules.update(members)
        raise


def _shortened(path: Path, model: nn.Module, record: dict[str, Any]) -> nn.Module:
    """Take out the blocks that the file's model does not have."""
    modules = dict(model.named_modules())
    for name, sizes in record["sizes"].items():
        kept = sizes.get("kept_blocks") if isinstance(sizes, dict) else None
        if kept is None:
            continue
        module = modules.get(name)
        if module is None or not is_list(module):
            raise BadInput(f"{path} was written for another model: {name!r} is no list of blocks; use the same class.")
        whole = isinstance(kept, list) and all(type(at) is int for at in kept)
        if not whole or kept != sorted(set(kept)) or not all(0 <= at < len(module._modules) for at in kept):
            raise BadFile(f"{path} is damaged or of another model: {name!r} has no blocks {kept!r}.")
        shorten(module, kept)
    return model


def _filled(path: Path, model: nn.Module, tensors: dict[str, Tensor], record: dict[str, Any]) -> nn.Module:
    modules = dict(model.named_modules(remove_duplicate=False))  # one may have two names
    own = model.state_dict(keep_vars=True)
    names = {*tensors, *record["shared"]}
    missing, extra = sorted(own.keys() - names), sorted(names - own.keys())
    unknown = sorted(record["sizes"].keys() - modules.keys())
    if missing or extra or unknown:
        odd = (missing or extra or unknown)[0]
        raise BadInput(f"{path} was written for another model: {odd!r} is not in both; load it into the same class.")
    _require_sizes(path, record, modules)
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
    tensors, record = storage.read_tensors(path, _KIND)
    if not isinstance(record, dict) or not all(isinstance(record.get(key), dict) for key in ("sizes", "shared")):
        raise BadFile(f"{path} is damaged: its record of sizes is not complete.")
    if not all(isinstance(first, str) and first in tensors for first in record["shared"].values()):
        raise BadFile(f"{path} is damaged: a shared tensor is missing.")
    return tensors, record


def _require_sizes(path: Path, record: dict[str, Any], modules: dict[str, nn.Module]) -> None:
    """Only whole numbers that the modules have themselves may be set: a file must not change anything else."""
    for name, sizes in record["sizes"].items():
        own = _sizes(modules[name])
        if not isinstance(sizes, dict):
            raise BadFile(f"{path} is damaged: the sizes of {name!r} are no table.")
        for attribute, value in sizes.items():
            whole = value if isinstance(value, list) else [value]
            alike = isinstance(value, list) == isinstance(own.get(attribute), list)
            if attribute not in own or not alike or not all(type(one) is int for one in whole):
                raise BadFile(f"{path} is damaged or of another model: {name!r} has no size {attribute!r} like that.")
