"""Cut the tensors of a model, set the sizes its modules remember, and compare with the masked original.

Sizes are remembered in two ways. Modules of torch have known attributes (`in_features`, `groups`). Other modules keep
whole numbers that their code reads (`num_heads`, `split_size`): those equal to a size that changes in the module's own
operators are candidates. Where a number could mean a size that stays as well, both are tried; the run decides.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, first_line
from prunus.layers import plain_names
from prunus.structure._call import Example
from prunus.structure._compare import Trial, compare, find_trials
from prunus.structure._labels import Array, Labels
from prunus.structure.groups import Coupling, padding_attribute

_TRIES = 64
_SIZES: dict[type[nn.Module], dict[str, tuple[str, int]]] = {
    nn.Linear: {"in_features": ("weight", 1), "out_features": ("weight", 0)},
    nn.modules.batchnorm._NormBase: {"num_features": ("running_mean", 0)},
    nn.GroupNorm: {"num_channels": ("weight", 0)},
    nn.PReLU: {"num_parameters": ("weight", 0)},
    nn.Embedding: {"embedding_dim": ("weight", 1)},
    nn.RNNBase: {"input_size": ("weight_ih_l0", 1), "hidden_size": ("weight_hh_l0", 1)},
}
_OWN = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.Embedding)


@dataclass(frozen=True)
class Edit:
    """One attribute of one module that changes."""

    module: str
    attribute: str
    value: Any


def cut(model: nn.Module, coupling: Coupling, stays: Array) -> None:
    """Shorten every parameter and buffer of `model`, in place; shared tensors stay shared."""
    first: dict[int, str] = {}
    new: dict[int, Tensor] = {}
    for name, value in _tensors(model):
        first.setdefault(id(value), name)
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, value in [(key, value) for key, value in table.items() if value is not None]:
                name = first[id(value)]
                if id(value) not in new:
                    new[id(value)] = _shortened(value, coupling.walk.tensors.get(name), coupling, stays)
                if new[id(value)] is not value:
                    # Recurrent modules keep a second list of their weights, which only setattr brings up to date.
                    setattr(module, key, new[id(value)])


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _shortened(value: Tensor, labels: Labels | None, coupling: Coupling, stays: Array) -> Tensor:
    short = value.detach()
    for block in labels.blocks if labels is not None else ():
        kept = coupling.of_atoms(stays, block.atoms)
        if not kept.all():
            short = short.index_select(block.dims[0], torch.from_numpy(np.flatnonzero(kept)).to(short.device))
    if short.shape == value.shape:
        return value
    if isinstance(value, nn.Parameter):
        return nn.Parameter(short.contiguous(), requires_grad=value.requires_grad)
    return short.contiguous()


def masks_of(model: nn.Module, coupling: Coupling, stays: Array) -> Masks:
    """The same choice as masks: rows and columns of removed units are zero in every weight."""
    plain = plain_names([name for name, _ in model.named_parameters(remove_duplicate=False)])
    masks = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    matrices = [name for name, value in parameters.items() if value.ndim > 1 and name in coupling.walk.tensors]
    for name in dict.fromkeys([*(p.weight for p in coupling.walk.products if p.weight in parameters), *matrices]):
        assert name is not None
        mask = torch.ones(parameters[name].shape, dtype=torch.bool)
        for block in coupling.walk.tensors[name].blocks:
            kept = torch.from_numpy(coupling.of_atoms(stays, block.atoms))
            mask &= kept.reshape([-1 if dim == block.dims[0] else 1 for dim in range(mask.ndim)])
        if not bool(mask.all()):
            masks[plain[name]] = mask
    return Masks.adopt(masks, {"pattern": "channels", "from": "shrink"})


def never_run(model: nn.Module, coupling: Coupling, counts: Sequence[int]) -> list[str]:
    """Layers that the example did not run and that have the size of something that was narrowed: they may not fit."""
    sizes = {
        part.index.size for group, count in zip(coupling.groups, counts) for part in group.parts if count < len(group)
    }
    every = list(model.named_parameters(remove_duplicate=False))
    seen = {id(value) for name, value in every if name in coupling.walk.tensors}
    idle = [name for name, value in every if value.ndim > 1 and id(value) not in seen and sizes & set(value.shape)]
    return [name.rpartition(".")[0] for name in idle]


def _zero_vectors(model: nn.Module, coupling: Coupling, stays: Array) -> None:
    """Zeros in biases and norms too where units leave, so that the units themselves are zero."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            labels = coupling.walk.tensors.get(name)
            if value.ndim == 1 and labels is not None:
                for block in labels.blocks:
                    value.mul_(torch.from_numpy(coupling.of_atoms(stays, block.atoms)).to(value))


# ---------------------------------------------------------------------------------------------------------- attributes


def known_edits(model: nn.Module, coupling: Coupling, stays: Array) -> list[Edit]:
    """What torch's own modules remember, from the tensors they hold after the cut."""
    edits = []
    for name, module in model.named_modules():
        for kind, sizes in _SIZES.items():
            if isinstance(module, kind):
                for attribute, (tensor, dim) in sizes.items():
                    held = getattr(module, tensor, None)
                    if isinstance(held, Tensor) and getattr(module, attribute) != held.shape[dim]:
                        edits.append(Edit(name, attribute, int(held.shape[dim])))
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            if tuple(module.normalized_shape) != tuple(module.weight.shape):
                edits.append(Edit(name, "normalized_shape", tuple(module.weight.shape)))
        elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
            edits += [Edit(name, "nf", int(module.weight.shape[1])), Edit(name, "nx", int(module.weight.shape[0]))]
    return edits + _convolution_edits(model, coupling, stays) + _norm_edits(model, coupling, stays)


def _convolution_edits(model: nn.Module, coupling: Coupling, stays: Array) -> list[Edit]:
    edits = []
    for product in coupling.walk.products:
        if product.weight is None or not product.site.name.startswith("conv"):
            continue
        name = product.weight.rpartition(".")[0]
        module = model.get_submodule(name)
        if not isinstance(module, nn.modules.conv._ConvNd):
            continue
        groups = module.groups
        per_group = module.in_channels // groups
        if groups > 1 and groups >= per_group:
            kept = coupling.of_atoms(stays, product.blocks[0].reshape(-1))
            groups = int(kept.sum()) // per_group
        transposed = bool(module.transposed)
        inner, outer = module.weight.shape[int(not transposed)], module.weight.shape[int(transposed)]
        inputs, outs = (inner, outer * groups) if transposed else (inner * groups, outer)
        wanted = {"in_channels": int(inputs), "out_channels": int(outs), "groups": groups}
        edits += [Edit(name, key, value) for key, value in wanted.items() if getattr(module, key) != value]
    return edits


def _norm_edits(model: nn.Module, coupling: Coupling, stays: Array) -> list[Edit]:
    """Group norms lose whole groups; a batch norm without statistics has nothing that shows its size."""
    edits = []
    for site, labels in coupling.walk.values:
        if site.name not in ("group_norm", "batch_norm", "instance_norm"):
            continue
        module = model.get_submodule(site.module)
        for block in labels.blocks:
            if block.dims != (1,):
                continue
            kept = int(coupling.of_atoms(stays, block.atoms).sum())
            if isinstance(module, nn.GroupNorm) and site.name == "group_norm":
                size = block.atoms.size // module.num_groups
                edits += [Edit(site.module, "num_groups", kept // size), Edit(site.module, "num_channels", kept)]
            elif isinstance(module, nn.modules.batchnorm._NormBase):
                edits.append(Edit(site.module, "num_features", kept))
    return edits


def padding_edits(model: nn.Module, coupling: Coupling, stays: Array) -> list[Edit]:
    edits = []
    for site, amounts, made in coupling.walk.paddings:
        attribute = padding_attribute(model, site.module, amounts)
        counts = [int(coupling.of_atoms(stays, atoms).sum()) for atoms in made]
        whole = [atoms.size for atoms in made]
        if attribute is None or counts == whole or len(made) != 2:
            continue
        at = next(i for i in range(0, len(amounts), 2) if [amounts[i], amounts[i + 1]] == whole)
        value = [*amounts[:at], *counts, *amounts[at + 2 :]]
        kind = type(getattr(model.get_submodule(site.module), attribute))
        edits.append(Edit(site.module, attribute, kind(value)))
    return edits


_WIDTH = re.compile(
    r"head|dim|hidden|chan|feat|width|size|embed|embd|inner|inter|unit|neuron|plane|filter|group|split|^[dnc]_|^[dnc]$"
)
_ELSE = re.compile(r"max|min|len|pos|seq|vocab|token|pad|idx|index|patch|image|window|kernel|stride|label|class|layer")


@dataclass(frozen=True)
class Guess:
    """Whole numbers of a class of modules that may be a size that changes: by module, the new value.

    It is `alone` where no operator of the module keeps a size of that number, and `certain` where, besides, its name
    speaks of a width. Others (`max_len`, `limit`) are changed only where the model does not run or is wrong without it:
    the example need not show what they are for.
    """

    kind: str
    attribute: str
    values: tuple[Edit, ...]
    alone: bool

    @property
    def certain(self) -> bool:
        return self.alone and bool(_WIDTH.search(self.attribute.lower())) and not self.otherwise

    @property
    def otherwise(self) -> bool:
        """Whether the name speaks of something else than a width."""
        return bool(_ELSE.search(self.attribute.lower()))


def guesses(model: nn.Module, coupling: Coupling, stays: Array) -> list[Guess]:
    """Attributes of modules that are not torch's own, equal to a size that changes in their operators."""
    changes: dict[str, dict[int, set[int]]] = {}
    for site, labels in coupling.walk.values:
        table = changes.setdefault(site.module, {})
        for dim, size in enumerate(labels.shape):
            table.setdefault(size, set()).add(_size_after(coupling, labels, dim, stays))
    found: dict[tuple[str, str], list[tuple[Edit, bool]]] = {}
    for path, table in changes.items():
        module = model.get_submodule(path)
        if isinstance(module, (*_OWN, nn.RNNBase)):
            continue
        for attribute, value in vars(module).items():
            if not isinstance(value, int) or isinstance(value, bool) or attribute.startswith("_"):
                continue
            new = table.get(value, set()) - {value}
            if value > 1 and new:
                key = (type(module).__qualname__, attribute)
                alone = len(table[value]) == 1
                found.setdefault(key, []).append((Edit(path, attribute, min(new)), alone))
    return [
        Guess(kind, attribute, tuple(edit for edit, _ in edits), all(alone for _, alone in edits))
        for (kind, attribute), edits in found.items()
    ]


def _size_after(coupling: Coupling, labels: Labels, dim: int, stays: Array) -> int:
    size = labels.shape[dim]
    for block in labels.touching([dim]):
        kept = coupling.of_atoms(stays, block.atoms)
        others = tuple(axis for axis, other in enumerate(block.dims) if other != dim)
        size = min(size, int(kept.any(others).sum()))
    return size


def apply_edits(model: nn.Module, edits: list[Edit]) -> None:
    for edit in edits:
        setattr(model.get_submodule(edit.module), edit.attribute, edit.value)


# ----------------------------------------------------------------------------------------------------------- together


@dataclass(frozen=True)
class Cut:
    """A shrunk model with what was changed in it, and how far its outputs are from the masked original's."""

    model: nn.Module
    edits: tuple[Edit, ...]
    difference: float


class DoesNotRun(BadInput):
    """The code of a model fails after some removal."""


def operate(
    model: nn.Module,
    coupling: Coupling,
    stays: Array,
    example: Example,
    decided: Mapping[tuple[str, str], bool] | None = None,
) -> tuple[Cut, dict[tuple[str, str], bool]]:
    """A smaller copy of `model`, run and compared with the masked original; raises `DoesNotRun` if none is equal.

    Returns the cut and which guessed attributes were changed, so that a second cut need not search again.
    """
    masked = masks_of(model, coupling, stays).apply_(copy.deepcopy(model).eval())
    if not coupling.walk.exact:
        _zero_vectors(masked, coupling, stays)
    trials = find_trials(model, masked, example, exact=coupling.walk.exact)
    del masked
    short = copy.deepcopy(model)
    padding = padding_edits(short, coupling, stays)
    unsure = guesses(short, coupling, stays)
    cut(short, coupling, stays)
    sure = known_edits(short, coupling, stays) + padding
    apply_edits(short, sure)
    before = {(g.kind, g.attribute): [_held(short, edit) for edit in g.values] for g in unsure}
    problem = ""
    for choice in _choices(unsure, decided):
        edits = []
        for guess, change in zip(unsure, choice):
            old = before[guess.kind, guess.attribute]
            edits += (
                list(guess.values) if change else [Edit(e.module, e.attribute, o) for e, o in zip(guess.values, old)]
            )
        apply_edits(short, edits)
        try:
            difference, right = compare(short, trials)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ZeroDivisionError) as error:
            problem = problem or _place(error, short)
            continue
        if right:
            made = [e for g, change in zip(unsure, choice) if change for e in g.values]
            answer = {(g.kind, g.attribute): bool(change) for g, change in zip(unsure, choice)}
            return Cut(short, (*sure, *made), difference), answer
        problem = problem or f"its outputs are {difference:.2g} away from the masked original's"
    raise DoesNotRun(f"The smaller model does not run as it should: {problem}.")


def require_equal(model: nn.Module, example: Example, expected: list[Tensor], tolerance: float = 1e-5) -> None:
    """Refuse a model whose outputs are not those expected."""
    try:
        gap = Trial(example, expected, tolerance).gap(model)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, KeyError) as error:
        raise BadInput(f"The model does not run without its blocks: {_place(error, model)}.") from None
    if gap > tolerance:
        raise BadInput(f"The model without its blocks is {gap:.2g} away from the one that skips them.")


def _held(model: nn.Module, edit: Edit) -> Any:
    return getattr(model.get_submodule(edit.module), edit.attribute)


def _choices(unsure: list[Guess], decided: Mapping[tuple[str, str], bool] | None) -> Iterator[tuple[bool, ...]]:
    if decided is not None and all((g.kind, g.attribute) in decided for g in unsure):
        yield tuple(decided[g.kind, g.attribute] for g in unsure)
        return
    start = tuple(guess.certain for guess in unsure)
    order = sorted(range(len(unsure)), key=lambda at: (unsure[at].otherwise, unsure[at].certain))

    def flipped(number: int) -> Iterator[tuple[bool, ...]]:
        for some in itertools.combinations(order, number):
            yield tuple(value != (at in some) for at, value in enumerate(start))

    whole = [tuple(g.alone and not g.otherwise for g in unsure), tuple(g.alone for g in unsure)]
    more = itertools.chain.from_iterable(flipped(number) for number in range(2, len(unsure) + 1))
    yield from itertools.islice(dict.fromkeys(itertools.chain([start], flipped(1), whole)), _TRIES)
    yield from itertools.islice(more, _TRIES)


def _place(error: Exception, model: nn.Module) -> str:
    """Where in the model's own code an error came from."""
    names = {id(module): name for name, module in model.named_modules()}
    place, called, owner = "", False, None
    trace = error.__traceback__
    while trace is not None:
        code, held = trace.tb_frame.f_code, trace.tb_frame.f_locals.get("self")
        if code.co_filename == nn.Module.__call__.__code__.co_filename:
            own = id(held) in names and not type(held).__module__.startswith("torch.nn.")
            owner, called = (held, True) if own else (None, False)
        elif called or (owner is not None and held is owner):  # its forward, and what that calls of its own
            place = f"{names[id(owner)] or type(owner).__name__} ({code.co_qualname}, line {trace.tb_lineno})"
            called = False
        trace = trace.tb_next
    where = f"the code of {place} fixes a size: " if place else ""
    return f"{where}{first_line(error).rstrip('.')}"
