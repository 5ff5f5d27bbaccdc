"""The configuration of a shrunk Hugging Face model.

A configuration has one number for all layers (`intermediate_size`, `mlp_ratio`). A `Knob` is such an entry with the
groups whose size it decides. Which entry decides what is not known from names: an entry that could hold a group's size
is turned, a model without weights is built, and the shapes that change must be those of whole groups and no others.
Groups of one knob keep equal shares, the others stay whole where the target allows it, and then `save_pretrained` and
`from_pretrained` work. Some sizes no configuration can say: the size of a BERT head is always the hidden size divided
by the number of heads. `prunus.structure.save` is the way then.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from prunus.structure.groups import Coupling, Group

_MLP = ("inner", "intermediate", "ffn", "d_ff", "hidden_dim")
Edits = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def configured(model: nn.Module) -> bool:
    """Whether this is a model of transformers, with a configuration of its own."""
    return hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "save_pretrained")


@dataclass(frozen=True, eq=False)
class Knob:
    """Entries of a configuration that decide the sizes of some groups.

    The smallest of `groups` comes first; `edits` gives the entries for a number of its units, the others keeping the
    same share. The number must be a multiple of `step`.
    """

    groups: tuple[Group, ...]
    edits: Callable[[int], Edits]
    step: int = 1


def find_knobs(model: nn.Module, coupling: Coupling) -> list[Knob]:
    """The entries of the model's configuration that decide sizes of groups."""
    wanted = _shapes(model)
    if _built(model, {}) != wanted:
        return []  # the model does not match its configuration, so nothing can be learnt from it
    knobs: list[Knob] = []
    for at, group in enumerate(coupling.groups):
        if any(group in knob.groups for knob in knobs) or len(group) < 2:
            continue
        for edits in _candidates(model.config, group):
            knob = _probe(model, coupling, at, edits, wanted)
            if knob is not None and not any(set(knob.groups) & set(other.groups) for other in knobs):
                knobs.append(knob)
                break
    return knobs


def matched(knobs: Sequence[Knob], coupling: Coupling) -> list[Knob]:
    """The same knobs for a model that was read again after some blocks left."""
    found = {(group.name, group.kind, len(group)): group for group in coupling.groups}
    again = []
    for knob in knobs:
        size = len(knob.groups[0])
        groups = [new for old in knob.groups if (new := found.get((old.name, old.kind, len(old)))) is not None]
        if groups:
            factor = len(groups[0]) // size
            again.append(Knob(tuple(groups), partial(_scaled, knob.edits, factor), knob.step * factor))
    return again


def _scaled(edits: Callable[[int], Edits], factor: int, count: int) -> Edits:
    return edits(count // factor)


def family(group: Group) -> tuple[str, str, int]:
    """Groups of layers that look alike: the name without numbers, the kind, the number of units."""
    return re.sub(r"\d+", "*", group.name), group.kind, len(group)


def tie_layers(coupling: Coupling, knobs: Sequence[Knob]) -> None:
    """Groups of one knob keep equal shares, and alike layers equal numbers."""
    families: dict[Any, list[int]] = {}
    where = {group: at for at, group in enumerate(coupling.groups)}
    turned = {group for knob in knobs for group in knob.groups}
    for group, at in where.items():
        if group not in turned:
            families.setdefault(family(group), []).append(at)
    tied = {at for tie in coupling.ties for at in tie}
    found = [[where[group] for group in knob.groups] for knob in knobs] + list(families.values())
    coupling.ties += [members for members in found if len(members) > 1 and not tied & set(members)]
    coupling.grains |= {where[knob.groups[0]]: knob.step for knob in knobs if knob.step > 1}


def update_config(small: nn.Module, coupling: Coupling, knobs: Sequence[Knob], counts: Sequence[int]) -> bool:
    """Write the new sizes into the configuration of `small`; False (and untouched) where it cannot say them."""
    left = dict(zip(coupling.groups, counts))
    edits: Edits = {}
    for knob in knobs:
        first = knob.groups[0]
        if left.get(first, len(first)) < len(first):
            for key, value in knob.edits(left[first]).items():
                edits[key] = _merged(small.config, edits.get(key), key, value)
    for lengths in _lengths(small):
        if _built(small, {**edits, **lengths}) == _shapes(small):
            for key, value in {**edits, **lengths}.items():
                setattr(small.config, key, value)
            return True
    return False


def _lengths(small: nn.Module) -> Iterator[Edits]:
    """Entries that could say how many blocks are left in lists from which some have left, one guess after another."""
    shortened = [m for m in small.modules() if hasattr(m, "kept_blocks")]
    config: Any = small.config
    entries = config.to_dict() if shortened else {}
    guesses: list[Edits] = [{}]
    for module in shortened:
        kept: tuple[int, ...] = module.kept_blocks  # type: ignore[assignment]
        options: list[Edits] = []
        for key, value in entries.items():
            by_layer = {
                name: [each[at] for at in kept]
                for name, each in entries.items()
                if isinstance(each, list) and "layer" in name and type(value) is int and len(each) == value
            }
            if type(value) is int and value > len(kept) and any(word in key for word in ("layer", "depth", "block")):
                options.append({key: len(kept), **by_layer})
            elif isinstance(value, list) and all(type(each) is int for each in value):
                options += [{key: _with(value, at, len(kept))} for at, each in enumerate(value) if each > len(kept)]
        guesses = [_joined(small.config, one, other) for one in guesses for other in options][:64]
    yield from guesses or [{}]


def _joined(config: Any, one: Edits, other: Edits) -> Edits:
    return {**one, **{key: _merged(config, one.get(key), key, value) for key, value in other.items()}}


def _merged(config: Any, former: Any, key: str, value: Any) -> Any:
    """A list that two knobs turn at different places holds both changes."""
    if not isinstance(value, list) or former is None:
        return value
    own = getattr(config, key)
    return [b if b != c else a for a, b, c in zip(former, value, own)]


# ------------------------------------------------------------------------------------------------------------- probing


def _probe(model: nn.Module, coupling: Coupling, at: int, edits: Callable[[int], Edits], old: Shapes) -> Knob | None:
    """The knob if turning these entries changes whole groups, in equal shares, and nothing else."""
    size = len(coupling.groups[at])
    new = _built(model, edits(size // 2))
    if new is None or new.keys() != old.keys() or new == old:
        return None
    changed = {
        (name, dim)
        for name, shape in old.items()
        for dim, (a, b) in enumerate(zip(shape, new[name]))
        if len(shape) == len(new[name]) and a != b
    }
    turned = [
        number
        for number, group in enumerate(coupling.groups)
        if any((part.tensor, part.dim) in changed for part in group.parts)
    ]
    if at not in turned or not _foretold(coupling, turned, at, size // 2, old, new):
        return None
    groups = sorted((coupling.groups[n] for n in turned), key=len)
    if any(len(group) % len(groups[0]) for group in groups):
        return None
    factor = size // len(groups[0])
    # Some entries know only some sizes: whole ratios, channels in eights.
    steps = sorted({2**power for power in range(10)} | {size // ratio for ratio in range(2, 9) if size % ratio == 0})
    for step in [step for step in steps if step % factor == 0 and step <= size // 2]:
        new = _built(model, edits(size - step))
        if new is not None and _foretold(coupling, turned, at, size - step, old, new):
            return Knob(tuple(groups), lambda count: edits(count * factor), step // factor)
    return None


def _foretold(coupling: Coupling, turned: Sequence[int], at: int, count: int, old: Shapes, new: Shapes) -> bool:
    """Whether the new shapes are those when the groups keep the share that one of them keeps."""
    size = len(coupling.groups[at])
    if any(len(coupling.groups[n]) * count % size for n in turned):
        return False
    counts = {n: len(coupling.groups[n]) * count // size for n in turned}
    return _predicted(coupling, old, counts) == new


def _predicted(coupling: Coupling, shapes: Shapes, counts: Mapping[int, int]) -> Shapes:
    """All shapes when these groups keep these numbers of units."""
    new = {name: list(shape) for name, shape in shapes.items()}
    for number, count in counts.items():
        group = coupling.groups[number]
        for part in group.parts:
            if part.tensor in new:
                new[part.tensor][part.dim] -= (len(group) - count) * part.index.shape[1]
    return {name: tuple(shape) for name, shape in new.items()}


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _built(model: nn.Module, edits: Edits) -> Shapes | None:
    """The shapes of a model made from the changed configuration; None if its own checks refuse it."""
    config: Any = copy.deepcopy(model.config)
    try:
        for key, value in edits.items():
            setattr(config, key, value)
        with torch.device("meta"):
            return _shapes(type(model)(config))
    except Exception:  # a configuration that the model's own checks refuse
        return None


def _candidates(config: Any, group: Group) -> Iterator[Callable[[int], Edits]]:
    """Entries that could hold the group's size, as functions of the number of units."""
    entries = {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
    if group.kind == "heads":
        yield from _head_entries(entries, group)
        return
    size = len(group)
    for key, value in entries.items():
        if type(value) is int and value == size:
            yield partial(_plain, key)
        elif _numbers(value):
            yield from (partial(_in_list, key, value, at) for at, each in enumerate(value) if each == size)
    for key, value in entries.items():
        if value is None and any(part in key for part in _MLP):
            yield partial(_plain, key)
    for key, value in entries.items():
        if "ratio" in key and type(value) in (int, float) and value > 0:
            yield partial(_as_ratio, key, value, size)
        elif "ratio" in key and _numbers(value):
            yield from (partial(_ratio_in_list, key, value, at, size) for at in range(len(value)))


def _numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(each) in (int, float) for each in value)


def _plain(key: str, count: int) -> Edits:
    return {key: count}


def _in_list(key: str, values: Sequence[Any], place: int, count: int) -> Edits:
    return {key: _with(values, place, count)}


def _as_ratio(key: str, value: float, size: int, count: int) -> Edits:
    return {key: _ratio(value, count, size)}


def _ratio_in_list(key: str, values: Sequence[Any], place: int, size: int, count: int) -> Edits:
    return {key: _with(values, place, _ratio(values[place], count, size))}


def _head_entries(entries: Mapping[str, Any], group: Group) -> Iterator[Callable[[int], Edits]]:
    sizes = [part.index.shape[1] for part in group.parts if part.tensor in group.makers]
    head, size = min(sizes), len(group)
    per_unit = max(sizes) // head

    def edits(count: int, with_size: bool) -> Edits:
        found: Edits = {}
        for key, value in entries.items():
            if "head" not in key or type(value) is not int or key == "head_dim":
                continue
            if "key_value" in key and value == size:
                found[key] = count
            elif value == size * per_unit and "key_value" not in key:
                found[key] = count * per_unit
        return {**found, "head_dim": head} if with_size else found

    yield lambda count: edits(count, "head_dim" in entries)
    if "head_dim" not in entries:  # some models read an entry that their configuration does not list
        yield lambda count: edits(count, True)


def _ratio(value: float, count: int, size: int) -> float:
    """The ratio at which the whole part of width times ratio is `count`, where it was `size`."""
    exact = value * count / size
    return int(exact) if exact == int(exact) and type(value) is int else value * (count + 1e-3) / size


def _with(values: Sequence[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]
