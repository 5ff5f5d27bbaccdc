"""Configurations of Hugging Face models: changed where they can say the new sizes, checked by building the model.

A configuration has one number for all layers (`intermediate_size`), so the groups of layers that look alike keep equal
numbers. Which entries mean a size is not known from their names alone: entries that hold the old number are tried, and
a model without weights is built from the new configuration. Where all its shapes are those of the shrunk model the
entries are written, and `save_pretrained` and `from_pretrained` work. Else the configuration stays: the size of a BERT
head, for instance, is always the hidden size divided by the number of heads. `prunus.structure.save` is the way then.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import nn

from prunus.structure.groups import Coupling, Group

_MLP = ("inner", "intermediate", "ffn", "d_ff", "hidden_dim")


def configured(model: nn.Module) -> bool:
    """Whether this is a model of transformers, with a configuration of its own."""
    return hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "save_pretrained")


def family(group: Group) -> tuple[str, str, int]:
    """Groups of layers that look alike: the name without numbers, the kind, the number of units."""
    return re.sub(r"\d+", "*", group.name), group.kind, len(group)


def tie_layers(coupling: Coupling) -> None:
    """Alike layers keep equal numbers of units, as one configuration for all of them can say."""
    families: dict[Any, list[int]] = {}
    for at, group in enumerate(coupling.groups):
        families.setdefault(family(group), []).append(at)
    tied = {at for tie in coupling.ties for at in tie}
    coupling.ties += [members for members in families.values() if len(members) > 1 and not tied & set(members)]


def update_config(small: nn.Module, coupling: Coupling, counts: list[int]) -> bool:
    """Write the new sizes into the configuration of `small`; False (and untouched) where it cannot say them."""
    wanted = {name: tuple(value.shape) for name, value in small.state_dict().items()}
    config: Any = copy.deepcopy(small.config)
    best = _mismatches(small, config, wanted)
    done: set[Any] = set()
    for group, count in zip(coupling.groups, counts):
        if best == 0:
            break
        if count == len(group) or family(group) in done:
            continue
        done.add(family(group))
        for edits in _candidates(config, group, count):
            trial = copy.deepcopy(config)
            for key, value in edits.items():
                setattr(trial, key, value)
            found = _mismatches(small, trial, wanted)
            if found < best:
                config, best = trial, found
                break
    if best:
        return False
    own: Any = small.config
    for key, value in config.to_dict().items():
        if getattr(own, key, None) != value and key in own.to_dict():
            setattr(own, key, value)
    return True


def _candidates(config: Any, group: Group, count: int) -> list[dict[str, Any]]:
    """Entries that could hold the group's size, with their new values."""
    entries = {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
    if group.kind == "heads":
        sizes = [part.index.shape[1] for part in group.parts if part.tensor in group.makers]
        head, widest = min(sizes), max(sizes)
        per_unit = widest // head
        edits: dict[str, Any] = {}
        for key, value in entries.items():
            if "head" not in key or isinstance(value, bool):
                continue
            if key == "head_dim":
                edits[key] = head
            elif "key_value" in key and value == len(group):
                edits[key] = count
            elif value == len(group) * per_unit and "key_value" not in key:
                edits[key] = count * per_unit
        return [edits] if edits else []
    exact = [key for key, value in entries.items() if type(value) is int and value == len(group)]
    absent = [key for key, value in entries.items() if value is None and any(part in key for part in _MLP)]
    return [{key: count} for key in [*exact, *absent]]


def _mismatches(small: nn.Module, config: Any, wanted: dict[str, tuple[int, ...]]) -> int:
    """How many tensors of a model built from this configuration have another shape."""
    try:
        with torch.device("meta"):
            built = type(small)(copy.deepcopy(config))
    except Exception:  # a configuration that the model's own checks refuse
        return len(wanted) + 1
    shapes = {name: tuple(value.shape) for name, value in built.state_dict().items()}
    return sum(shapes.get(name) != shape for name, shape in wanted.items()) + len(shapes.keys() - wanted.keys())
