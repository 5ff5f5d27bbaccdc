"""Which indices of a model's tensors must leave together.

Every index of a dimension carries an *atom*, a whole number. `Labels` are the atoms of one tensor: a list of blocks,
each an array of atoms over one or several dimensions. A block over two dimensions, say (heads, head size), says that
the atom depends on both; that is how a dimension that was split by a reshape keeps its labels exactly.

Operators add edges between atoms ("if one leaves, so does the other") or pin them ("cannot leave"). After the walk
over the graph the connected components are what can be removed: `Atoms.classes`.

A dimension without a block is *rigid* (its size is given from outside: batch, positions, constants) or *free* (made by
broadcasting, so that it follows whatever it meets).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Array = NDArray[Any]


class Atoms:
    """The atoms of one model, the edges between them, and which are pinned, with the reason."""

    def __init__(self) -> None:
        self.count = 0
        self._left: list[Array] = []
        self._right: list[Array] = []
        self._pinned: list[tuple[Array, str]] = []

    def fresh(self, number: int) -> Array:
        """`number` new atoms."""
        self.count += number
        return np.arange(self.count - number, self.count, dtype=np.int64)

    def join(self, left: Array, right: Array) -> None:
        """Atoms at equal places leave together."""
        if left is not right and left.size:
            left, right = np.broadcast_arrays(left, right)
            differs = left != right
            self._left.append(left[differs].ravel())
            self._right.append(right[differs].ravel())

    def join_along(self, atoms: Array, axes: Sequence[int]) -> Array:
        """All atoms along these axes leave together; returns one representative for each remaining place."""
        first = atoms[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(atoms.ndim))]
        self.join(atoms, first)
        return first.reshape([size for axis, size in enumerate(atoms.shape) if axis not in axes])

    def pin(self, atoms: Array, reason: str) -> None:
        """These atoms stay, because of `reason`."""
        if atoms.size:
            self._pinned.append((np.unique(atoms), reason))

    def classes(self) -> tuple[Array, dict[int, str]]:
        """(class of each atom, class -> why it is pinned)."""
        left = np.concatenate([*self._left, np.empty(0, np.int64)])
        right = np.concatenate([*self._right, np.empty(0, np.int64)])
        edges = coo_array((np.ones(left.size, np.int8), (left, right)), shape=(self.count, self.count))
        classes = connected_components(edges, directed=False)[1].astype(np.int64)
        pinned: dict[int, str] = {}
        for atoms, reason in self._pinned:
            for number in np.unique(classes[atoms]).tolist():
                pinned.setdefault(number, reason)
        return classes, pinned


@dataclass(frozen=True, eq=False)
class Block:
    """Atoms over some dimensions of a tensor, in ascending order: `atoms` has one axis for each of `dims`."""

    dims: tuple[int, ...]
    atoms: Array

    def over(self, dims: tuple[int, ...]) -> Array:
        """The atoms with an axis (of size one where the block does not reach) for each of `dims`."""
        sizes = dict(zip(self.dims, self.atoms.shape))
        return self.atoms.reshape([sizes.get(dim, 1) for dim in dims])

    def moved(self, where: dict[int, int]) -> Block:
        """The same block after its dimensions were renamed."""
        new = [where[dim] for dim in self.dims]
        order = np.argsort(new)
        return Block(tuple(sorted(new)), self.atoms.transpose(order))


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of one tensor. Blocks may share dimensions (a flattened outer product carries two)."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...] = ()
    free: frozenset[int] = field(default=frozenset())

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def touching(self, dims: Iterable[int]) -> tuple[Block, ...]:
        wanted = set(dims)
        return tuple(block for block in self.blocks if wanted & set(block.dims))

    def renamed(self, where: dict[int, int], shape: Sequence[int]) -> Labels:
        """Dimensions moved to new places; those not in `where` must carry no block."""
        blocks = tuple(block.moved(where) for block in self.blocks)
        return Labels(tuple(shape), blocks, frozenset(where[dim] for dim in self.free if dim in where))

    def with_dim(self, at: int) -> Labels:
        """A new free dimension of size one."""
        where = {dim: dim + (dim >= at) for dim in range(self.ndim)}
        new = self.renamed(where, (*self.shape[:at], 1, *self.shape[at:]))
        return Labels(new.shape, new.blocks, new.free | {at})

    def without(self, dims: Iterable[int]) -> Labels:
        """Dimensions dropped that carry no block."""
        gone = {dim % self.ndim for dim in dims} if self.ndim else set()
        kept = [dim for dim in range(self.ndim) if dim not in gone]
        return self.renamed({dim: at for at, dim in enumerate(kept)}, [self.shape[dim] for dim in kept])


def broadcast(labels: Labels, shape: tuple[int, ...]) -> Labels:
    """Labels as they stand in a result of this shape; dimensions that are stretched are free."""
    shift = len(shape) - labels.ndim
    new = labels.renamed({dim: dim + shift for dim in range(labels.ndim)}, shape)
    stretched = {dim + shift for dim, size in enumerate(labels.shape) if size == 1 and shape[dim + shift] != 1}
    return Labels(shape, new.blocks, new.free | stretched | frozenset(range(shift)))


def pin(atoms: Atoms, labels: Labels, dims: Iterable[int], reason: str) -> Labels:
    """Nothing leaves along `dims` alone: a block that reaches further leaves as whole slices, another one stays."""
    wanted = {dim % labels.ndim for dim in dims} if labels.ndim else set()
    blocks = []
    for block in labels.blocks:
        inside = [axis for axis, dim in enumerate(block.dims) if dim in wanted]
        if not inside:
            blocks.append(block)
        elif len(inside) == len(block.dims):
            atoms.pin(block.atoms, reason)
        else:
            rest = atoms.join_along(block.atoms, inside)
            blocks.append(Block(tuple(dim for dim in block.dims if dim not in wanted), rest))
    return Labels(labels.shape, tuple(blocks), labels.free)


def unify(atoms: Atoms, left: Labels, right: Labels, reason: str) -> Labels:
    """Labels of an elementwise result of two tensors, both already of the result's shape."""
    left = _pin_where_rigid(atoms, left, right, reason)
    right = _pin_where_rigid(atoms, right, left, reason)
    blocks = list(left.blocks)
    for new in right.blocks:
        met = [block for block in left.blocks if set(block.dims) & set(new.dims)]
        for block in met:
            dims = tuple(sorted(set(block.dims) | set(new.dims)))
            atoms.join(block.over(dims), new.over(dims))
            # Joined, the classes depend only on the dimensions that both blocks have.
            if block in blocks:
                blocks.remove(block)
            blocks.append(_restricted(block, set(new.dims)))
        if not met:
            blocks.append(new)
    return Labels(left.shape, tuple(blocks), left.free & right.free)


def contract(atoms: Atoms, left: Labels, right: Labels, dim: int, reason: str) -> Labels:
    """Labels of the sum over `dim` of an elementwise product; both of one shape, the result without `dim`."""
    mine, yours = left.touching([dim]), right.touching([dim])
    rest_left = Labels(left.shape, tuple(b for b in left.blocks if dim not in b.dims), left.free)
    rest_right = Labels(right.shape, tuple(b for b in right.blocks if dim not in b.dims), right.free)
    kept: list[Block] = []
    if mine and yours:
        for block in mine:
            for other in yours:
                dims = tuple(sorted(set(block.dims) | set(other.dims)))
                atoms.join(block.over(dims), other.over(dims))
        if len(mine) == len(yours) == 1 and mine[0].dims == yours[0].dims and len(mine[0].dims) > 1:
            whole = atoms.join_along(mine[0].atoms, [mine[0].dims.index(dim)])
            kept.append(Block(tuple(d for d in mine[0].dims if d != dim), whole))
    elif left.shape[dim] > 1:
        for side in (left, right):
            held = f"{reason}, where it meets a size that stays"
            pinned = pin(atoms, Labels(side.shape, side.touching([dim])), [dim], held)
            kept.extend(pinned.blocks)
    rest_left = Labels(left.shape, (*rest_left.blocks, *kept), rest_left.free)
    # A whole slice that both sides lose is known from the left already: the right side must not pin it.
    covered = frozenset(d for block in kept for d in block.dims)
    joint = unify(atoms, rest_left, Labels(right.shape, rest_right.blocks, rest_right.free | covered), reason)
    return joint.without([dim])


def _pin_where_rigid(atoms: Atoms, labels: Labels, other: Labels, reason: str) -> Labels:
    labelled = {dim for block in other.blocks for dim in block.dims}
    rigid = [d for d in range(labels.ndim) if other.shape[d] > 1 and d not in labelled and d not in other.free]
    return pin(atoms, labels, rigid, reason)


def _restricted(block: Block, dims: set[int]) -> Block:
    """The block at the first index of every dimension that is not in `dims`."""
    atoms = block.atoms[tuple(slice(None) if dim in dims else 0 for dim in block.dims)]
    return Block(tuple(dim for dim in block.dims if dim in dims), atoms)
