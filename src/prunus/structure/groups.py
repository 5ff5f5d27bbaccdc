"""What can be removed from a model: units (a channel, a head, a neuron) in groups of interchangeable ones.

A unit is everything that must leave together: rows of the layers that make it, columns of the layers that read it,
entries of norms and biases in between. A group holds units of the same make, say the 64 channels of one convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from prunus.errors import BadInput
from prunus.layers import as_globs, listing, matches
from prunus.structure._labels import Array
from prunus.structure._walk import Product, Walk


@dataclass(frozen=True, eq=False)
class Part:
    """Where the units of a group lie in one tensor: `index[u]` are the places of unit u along `dim`."""

    tensor: str
    dim: int
    index: Array


@dataclass(frozen=True, eq=False)
class Group:
    """Interchangeable units of one kind, such as the channels of a convolution.

    Attributes:
        name: The layer that makes the units first.
        kind: What they are: "neurons", "channels", "groups" (of channels), "heads", "units" (of recurrent layers) or
            "columns" (of embeddings).
        classes: The number of each unit among all units of the model.
        parts: Where the units lie in each tensor.
        makers: The weights whose output dimension the units run along.
        readers: The weights whose input dimension the units run along.

    Example:
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> group = prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8)).coupling.groups[0]
        >>> group.name, group.kind, len(group), group.readers
        ('layers.0', 'neurons', 32, ('layers.1.weight',))
    """

    name: str
    kind: str
    classes: Array
    parts: tuple[Part, ...]
    makers: tuple[str, ...]
    readers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.classes)

    def part(self, tensor: str, dim: int) -> Part | None:
        """Where the units lie in this tensor along this dimension; None where they do not.

        Args:
            tensor: name of a parameter or buffer.
            dim: one of its dimensions.

        Returns:
            The part, or None.
        """
        return next((part for part in self.parts if part.tensor == tensor and part.dim == dim), None)


@dataclass(frozen=True)
class FixedLayer:
    """A layer whose outputs cannot be removed, and why.

    Attributes:
        name: The layer.
        size: How many outputs it has.
        reason: What keeps them.

    Example:
        >>> model = prunus.models.make("fc:8-32-4", seed=0).eval()
        >>> removal = prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8))
        >>> [(each.name, each.size) for each in removal.fixed]
        [('layers.1', 4)]
    """

    name: str
    size: int
    reason: str


@dataclass(eq=False)
class Coupling:
    """All groups of a model, what is fixed, and the labels behind them.

    Attributes:
        walk: What was read from the model.
        classes: The unit that each atom (one place of one tensor's dimension) belongs to.
        number: How many units there are.
        groups: The groups whose units can leave.
        fixed: The layers whose outputs cannot be removed.
        ties: Groups, by position, that must keep equal shares of their units.
        grains: Groups, by position, of which only multiples of a number may stay.

    Example:
        >>> model = prunus.models.make("fc:8-32-16-4", seed=0).eval()
        >>> coupling = prunus.structure.find_removal(model, 0.5, example=torch.zeros(1, 8)).coupling
        >>> [(group.name, len(group)) for group in coupling.groups]
        [('layers.0', 32), ('layers.1', 16)]
    """

    walk: Walk
    classes: Array  # of each atom
    number: int  # of classes
    groups: list[Group]
    fixed: list[FixedLayer]
    ties: list[list[int]]
    grains: dict[int, int] = field(default_factory=dict)

    def kept(self, keep: Mapping[int, Array]) -> Array:
        """Whether each class stays; `keep` holds a boolean array for some groups (by position), the others stay.

        Args:
            keep: position of a group -> which of its units stay.

        Returns:
            For every unit of the model, whether it stays.
        """
        stays = np.ones(self.number, dtype=bool)
        for position, mask in keep.items():
            stays[self.groups[position].classes] = mask
        return stays

    def of_atoms(self, stays: Array, atoms: Array) -> Array:
        """For each atom, whether its unit stays.

        Args:
            stays: for every unit of the model, whether it stays.
            atoms: numbers of atoms, in any shape.

        Returns:
            True or False in the same shape.
        """
        return stays[self.classes[atoms]]

    def step(self, position: int, multiple: int = 1) -> int:
        """Of what the number of units of a group must be a multiple, if all widths are multiples of `multiple`.

        Args:
            position: the group's.
            multiple: widths are multiples of this.

        Returns:
            The step.
        """
        return math.lcm(multiple, self.grains.get(position, 1))

    def without(self, reasons: Mapping[int, str]) -> Coupling:
        """The same with some groups (by position) fixed, each for a reason.

        Args:
            reasons: position of a group -> why it is fixed.

        Returns:
            A copy.
        """
        kept = [at for at in range(len(self.groups)) if at not in reasons]
        where = {old: new for new, old in enumerate(kept)}
        fixed = [FixedLayer(self.groups[at].name, len(self.groups[at]), reason) for at, reason in reasons.items()]
        ties = [[where[at] for at in tie if at in where] for tie in self.ties]
        groups, ties = [self.groups[at] for at in kept], [tie for tie in ties if len(tie) > 1]
        grains = {where[at]: grain for at, grain in self.grains.items() if at in where}
        return Coupling(self.walk, self.classes, self.number, groups, [*self.fixed, *fixed], ties, grains)


def find_groups(walk: Walk, model: nn.Module, *, named: Iterable[str] = (), exclude: Iterable[str] = ()) -> Coupling:
    """Groups from the labels of a walk.

    Args:
        walk: What `read` found.
        model: The model that was read.
        named: Globs of embeddings whose columns may leave too.
        exclude: Names and globs of layers whose own outputs stay.
    """
    _settle_paddings(walk, model)
    for tensor, atoms in walk.named_only:
        if not _matches(tensor, named):
            walk.atoms.pin(atoms, f"the embedding {_layer(tensor)}, which leaves only when it is named")
    _make_rectangular(walk)
    classes, pinned = walk.atoms.classes()
    places = _places(walk, classes)
    makers = {(p.weight, p.outputs): p for p in walk.products if p.weight is not None}
    readers = {(p.weight, p.inputs): p for p in walk.products if p.weight is not None}
    fixed = [*_fixed(walk, classes, pinned, makers), *_computed(model)]
    excluded = _excluded([weight for weight, _ in makers], exclude)
    attention = _attention_classes(walk, classes)
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, where in places.items():
        if number in pinned or any(len(index) == walk.tensors[t].shape[d] for (t, d), index in where.items()):
            continue
        if not any(key in makers for key in where):
            continue
        if any(key in makers and key[0] in excluded for key in where):
            continue
        signature = tuple((tensor, dim, len(index)) for (tensor, dim), index in sorted(where.items()))
        found.setdefault(signature, []).append(number)
    order = {weight: at for at, (weight, _) in enumerate(makers)}
    groups = [_group(np.array(numbers), places, makers, readers, order, attention) for numbers in found.values()]
    groups.sort(key=lambda group: min(order[weight] for weight in group.makers))
    return Coupling(
        walk, classes, int(classes.max(initial=-1)) + 1, groups, fixed, _recurrent_ties(walk, classes, groups)
    )


def _group(
    numbers: Array,
    places: Mapping[int, Mapping[tuple[str, int], Array]],
    makers: Mapping[tuple[str, int], Product],
    readers: Mapping[tuple[str, int], Product],
    order: Mapping[str, int],
    attention: set[int],
) -> Group:
    keys = list(places[int(numbers[0])])
    parts = tuple(Part(t, d, np.stack([places[int(n)][t, d] for n in numbers])) for t, d in keys)
    made = sorted((t for t, d in keys if (t, d) in makers), key=lambda t: order[t])
    read = [t for t, d in keys if (t, d) in readers]
    first = next(part for part in parts if part.tensor == made[0] and (part.tensor, part.dim) in makers)
    ranked = np.argsort(first.index[:, 0], kind="stable")
    parts = tuple(Part(part.tensor, part.dim, part.index[ranked]) for part in parts)
    product = makers[first.tensor, first.dim]
    return Group(
        _layer(made[0]),
        _kind(product, first.index.shape[1], int(numbers[0]) in attention),
        numbers[ranked],
        parts,
        tuple(dict.fromkeys(made)),
        tuple(dict.fromkeys(read)),
    )


def _kind(product: Product, size: int, attention: bool) -> str:
    if attention:
        return "heads"
    if product.site.name == "embedding":
        return "columns"
    if product.site.name.startswith("conv"):
        return "groups" if size > 1 and product.groups > 1 else "channels"
    return "units" if product.site.name in ("lstm", "gru", "rnn_tanh", "rnn_relu") else "neurons"


def _places(walk: Walk, classes: Array) -> dict[int, dict[tuple[str, int], Array]]:
    """For each class: tensor and dimension -> indices."""
    places: dict[int, dict[tuple[str, int], Array]] = {}
    for tensor, labels in walk.tensors.items():
        for block in labels.blocks:
            numbers = classes[block.atoms]
            order = np.argsort(numbers, kind="stable")
            cuts = np.flatnonzero(np.diff(numbers[order])) + 1
            for index in np.split(order, cuts):
                places.setdefault(int(numbers[index[0]]), {})[tensor, block.dims[0]] = index
    return places


def _make_rectangular(walk: Walk) -> None:
    """A tensor with labels over two dimensions must stay a rectangle: whole rows leave, or whole columns.

    Where the graph has not decided it yet, the dimension along which more can be removed on its own is taken.
    """
    seen: set[bytes] = set()
    for _, labels in walk.values:
        for block in labels.blocks:
            if len(block.dims) < 2 or not block.atoms.size:
                continue
            key = block.atoms.tobytes() + repr(block.atoms.shape).encode()
            if key in seen:
                continue
            seen.add(key)
            classes, pinned = walk.atoms.classes()
            numbers = classes[block.atoms]
            frozen = np.isin(numbers, np.fromiter(pinned, dtype=np.int64, count=len(pinned)))
            best, most = 0, -1
            for axis in range(block.atoms.ndim):
                others = tuple(a for a in range(block.atoms.ndim) if a != axis)
                whole = ~frozen.any(others)
                slices = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
                distinct = len({frozenset(row.tolist()) for row in slices[whole]})
                if distinct > most:
                    best, most = axis, distinct
            walk.atoms.join_along(block.atoms, [a for a in range(block.atoms.ndim) if a != best])


def _settle_paddings(walk: Walk, model: nn.Module) -> None:
    """Padded channels may leave where the amount is an attribute of the module, else they are fixed by the code."""
    for site, amounts, made in walk.paddings:
        if padding_attribute(model, site.module, amounts) is None:
            for atoms in made:
                walk.atoms.pin(atoms, f"the padding {amounts} written in the code of {site.reason}")


def padding_attribute(model: nn.Module, module: str, amounts: Sequence[int]) -> str | None:
    """The attribute of a module that holds these amounts of padding."""
    for name, value in vars(model.get_submodule(module)).items():
        if isinstance(value, (tuple, list)) and tuple(value) == tuple(amounts):
            return name
    return None


def _fixed(
    walk: Walk, classes: Array, pinned: Mapping[int, str], makers: Mapping[tuple[str, int], Product]
) -> list[FixedLayer]:
    fixed = []
    for (weight, dim), _ in makers.items():
        for block in walk.tensors[weight].blocks:
            if block.dims == (dim,):
                reasons = [pinned[n] for n in classes[block.atoms].tolist() if n in pinned]
                if len(reasons) == block.atoms.size:
                    fixed.append(FixedLayer(_layer(weight), block.atoms.size, reasons[0]))
    return fixed


def _computed(model: nn.Module) -> Iterator[FixedLayer]:
    """Layers whose weights are no parameters of their own: they cannot be cut."""
    for name, module in model.named_modules():
        for tensor in getattr(module, "parametrizations", ()):
            reason = f"its {tensor} is computed; torch.nn.utils.parametrize.remove_parametrizations makes it plain"
            yield FixedLayer(name, len(getattr(module, tensor)), reason)


def _attention_classes(walk: Walk, classes: Array) -> set[int]:
    """Classes that run through a product of two values: heads."""
    return {
        int(number)
        for p in walk.products
        if p.weight is None
        for block in p.blocks
        for number in classes[block].ravel()
    }


def _recurrent_ties(walk: Walk, classes: Array, groups: Sequence[Group]) -> list[list[int]]:
    """The layers and directions of one recurrent module have one size."""
    ties = []
    for _, cells in walk.recurrent:
        numbers = [set(classes[atoms].tolist()) for atoms in cells]
        tie = [at for at, group in enumerate(groups) if any(set(group.classes.tolist()) & cell for cell in numbers)]
        if len(tie) > 1:
            ties.append(tie)
    return ties


def _layer(tensor: str) -> str:
    return tensor.rpartition(".")[0] or tensor


def _matches(tensor: str, globs: Iterable[str]) -> bool:
    return any(matches(tensor, glob) for glob in globs)


def _excluded(weights: Sequence[str], exclude: Iterable[str]) -> set[str]:
    globs = as_globs(exclude)
    for glob in globs:
        if not any(_matches(weight, [glob]) for weight in weights):
            layers = listing([_layer(weight) for weight in weights])
            raise BadInput(f"exclude names {glob!r}, which matches no layer; the model has {layers}.")
    return {weight for weight in weights if _matches(weight, globs)}
