"""Labels through operators that only move entries: reshape, permute, slice, concatenate, expand, pad."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from prunus.structure._labels import Array, Atoms, Block, Labels, pin, unify


def reshape(labels: Labels, shape: Sequence[int]) -> Labels:
    """Labels after a reshape, exactly: only the parts of the shape that change are laid out."""
    new_shape = tuple(int(size) for size in shape)
    parts = _segments(labels.shape, new_shape)
    blocks = []
    for block in labels.blocks:
        touched = [(old, new) for old, new in parts if set(old) & set(block.dims)]
        old_dims = tuple(dim for old, _ in touched for dim in old)
        new_dims = tuple(dim for _, new in touched for dim in new)
        full = np.broadcast_to(block.over(old_dims), [labels.shape[dim] for dim in old_dims])
        blocks.extend(_compressed(full.reshape([new_shape[dim] for dim in new_dims]), new_dims))
    free: set[int] = set()
    for old, new in parts:
        if all(dim in labels.free or labels.shape[dim] == 1 for dim in old):
            free.update(new)
    return Labels(new_shape, tuple(blocks), frozenset(free))


def _segments(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The finest pairs of neighbouring dimensions with equal products, in order."""
    if math.prod(old) == 0:
        return [(list(range(len(old))), list(range(len(new))))]
    parts: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [], []
        a = b = 1
        while True:
            if a <= b and i < len(old):
                left.append(i)
                a *= old[i]
                i += 1
            elif j < len(new):
                right.append(j)
                b *= new[j]
                j += 1
            else:
                left.extend(range(i, len(old)))
                i = len(old)
                break
            if a == b and left and right:
                break
        parts.append((left, right))
    return parts


def _compressed(full: Array, dims: tuple[int, ...]) -> list[Block]:
    """The block of an array of atoms, without the dimensions along which nothing changes."""
    for axis in range(len(dims) - 1, -1, -1):
        first = full.take([0], axis)
        if full.shape[axis] == 1 or (full == first).all():
            full = first.squeeze(axis)
            dims = (*dims[:axis], *dims[axis + 1 :])
    return [Block(dims, np.ascontiguousarray(full))] if dims else []


def permute(labels: Labels, order: Sequence[int]) -> Labels:
    where = {dim % labels.ndim: at for at, dim in enumerate(order)}
    return labels.renamed(where, [labels.shape[dim] for dim in order])


def expand(labels: Labels, shape: Sequence[int]) -> Labels:
    """Stretched and new dimensions are free: the code gives their size, and follows what they meet."""
    from prunus.structure._labels import broadcast

    return broadcast(labels, tuple(int(size) for size in shape))


def take(atoms: Atoms, labels: Labels, dim: int, indices: Array, *, drop: bool, reason: str) -> Labels:
    """Some indices of one dimension; with `drop` a single one, whose dimension goes."""
    dim %= labels.ndim
    shape = tuple(len(indices) if at == dim else size for at, size in enumerate(labels.shape))
    blocks: list[Block] = []
    for block in labels.blocks:
        if dim not in block.dims:
            blocks.append(block)
        elif drop and block.dims == (dim,):
            atoms.pin(block.atoms, reason)
        else:
            taken = block.atoms.take(indices, block.dims.index(dim))
            blocks.append(Block(block.dims, taken))
    new = Labels(shape, tuple(blocks), labels.free)
    if not drop:
        return new
    squeezed = [
        Block(tuple(d for d in b.dims if d != dim), b.atoms.squeeze(b.dims.index(dim))) if dim in b.dims else b
        for b in new.blocks
    ]
    return Labels(shape, tuple(squeezed), labels.free).without([dim])


def concatenate(atoms: Atoms, parts: Sequence[Labels], dim: int, shape: tuple[int, ...], reason: str) -> Labels:
    """Labels of a concatenation: along `dim` one after another, along the others joined."""
    dim %= len(shape)
    parts = [part for part in parts if part.ndim == len(shape)]  # torch allows an empty (0,) among them
    reached = {d for part in parts for block in part.touching([dim]) for d in block.dims} | {dim}
    dims = tuple(sorted(reached))
    rows = []
    labelled = any(part.touching([dim]) for part in parts)
    for part in parts:
        found = part.touching([dim])
        sizes = [part.shape[d] for d in dims]
        if len(found) > 1:
            pin(atoms, part, [dim], reason)
        if len(found) == 1:
            rows.append(np.broadcast_to(found[0].over(dims), sizes))
        else:
            fixed = atoms.fresh(part.shape[dim])
            if labelled:
                atoms.pin(fixed, reason)
            rows.append(np.broadcast_to(Block((dim,), fixed).over(dims), sizes))
    blocks = _compressed(np.concatenate(rows, dims.index(dim)), dims) if labelled else []
    others = [Labels(shape, tuple(b for b in part.blocks if dim not in b.dims), part.free | {dim}) for part in parts]
    joint = others[0]
    for other in others[1:]:
        joint = unify(atoms, joint, other, reason)
    free = frozenset.intersection(*[part.free for part in parts]) & joint.free
    return Labels(shape, (*joint.blocks, *blocks), free)


def stack(parts: Sequence[Labels], at: int, shape: tuple[int, ...]) -> Labels:
    """Labels of a stack: each block gains the new dimension, whose slices keep their own atoms."""
    at %= len(shape)
    where = {dim: dim + (dim >= at) for dim in range(len(shape) - 1)}
    blocks = []
    for dims in {block.dims for part in parts for block in part.blocks}:
        found = [[block for block in part.blocks if block.dims == dims] for part in parts]
        if all(len(each) == 1 for each in found):
            joint = np.stack([each[0].atoms for each in found])
            new = (at, *[where[dim] for dim in dims])
            order = np.argsort(new)
            blocks.append(Block(tuple(sorted(new)), joint.transpose(order)))
    return Labels(shape, tuple(blocks))


def pad(atoms: Atoms, labels: Labels, amounts: Sequence[int], shape: tuple[int, ...]) -> tuple[Labels, list[Array]]:
    """Labels after padding; along labelled dimensions the new places get new atoms, returned as well."""
    made: list[Array] = []
    blocks = list(labels.blocks)
    for number in range(len(amounts) // 2):
        dim, before, after = labels.ndim - 1 - number, amounts[2 * number], amounts[2 * number + 1]
        if not (before or after):
            continue
        for at, block in enumerate(blocks):
            if dim not in block.dims:
                continue
            axis = block.dims.index(dim)
            sides = []
            for width in (max(before, 0), max(after, 0)):
                size = tuple(width if k == axis else n for k, n in enumerate(block.atoms.shape))
                fresh = atoms.fresh(math.prod(size)).reshape(size)
                made.append(fresh.ravel())
                sides.append(fresh)
            inner = block.atoms.take(range(max(-before, 0), block.atoms.shape[axis] + min(after, 0)), axis)
            blocks[at] = Block(block.dims, np.concatenate([sides[0], inner, sides[1]], axis))
    return Labels(shape, tuple(blocks), labels.free), made


def laid_out(labels: Labels, move: Callable[[Tensor], Tensor]) -> Labels | None:
    """Labels through any operator that only moves entries: it is run on the atoms themselves, block by block."""
    blocks: list[Block] = []
    shape: tuple[int, ...] = ()
    for block in labels.blocks or (Block((), np.empty((), np.int64)),):
        full = torch.from_numpy(np.array(block.atoms)).reshape(
            [labels.shape[dim] if dim in block.dims else 1 for dim in range(labels.ndim)]
        )
        moved = move(full.expand(labels.shape))
        shape = tuple(moved.shape)
        if labels.blocks:
            blocks.extend(_compressed(moved.numpy(), tuple(range(moved.ndim))))
    return Labels(shape, tuple(blocks))
