"""Rules of the operators that hold parameters or mix channels: products, convolutions, norms, attention, recurrence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prunus.structure import _moves
from prunus.structure._labels import Block, Labels, unify
from prunus.structure._rules import matmul, matrix_of, product, rule, weight_of
from prunus.structure._walk import Product, Result, Site, Walk


@rule("linear")
def _linear(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    x, weight = args[0], args[1]
    name = weight_of(walk, site.node.args[1])
    shape = (*x.shape[:-1], weight.shape[0], x.shape[-1])
    out = product(walk, site, x.with_dim(x.ndim - 1), weight, shape, weight=name, inputs=1, outputs=0)
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    return out if bias is None else walk.pointwise(site, [out, bias], site.shape)


@rule("matmul", "mm", "bmm", "mv", "dot", "__matmul__")
def _matmul(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return matmul(walk, site, args[0], args[1], **matrix_of(walk, site.node.args[1]))


@rule("addmm", "baddbmm")
def _addmm(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    out = matmul(walk, site, args[1], args[2], **matrix_of(walk, site.node.args[2]))
    return walk.pointwise(site, [out, args[0]], site.shape)


@rule("einsum")
def _einsum(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    """Two operands without repeated letters: batch letters join, summed letters contract."""
    text, operands = args[0].replace(" ", ""), args[1]
    inputs, _, output = text.partition("->")
    letters = inputs.split(",")
    plain = len(letters) == 2 and "." not in text and output and all(len(set(part)) == len(part) for part in letters)
    if not plain:
        from prunus.structure._rules import unknown_operator

        return unknown_operator(walk, site, args, kwargs)
    summed = [c for c in dict.fromkeys(letters[0] + letters[1]) if c not in output]
    sizes = {c: n for part, labels in zip(letters, operands) for c, n in zip(part, labels.shape)}
    order = output + "".join(summed)
    aligned = []
    for part, labels in zip(letters, operands):
        for c in order:
            if c not in part:
                labels, part = labels.with_dim(labels.ndim), part + c
        aligned.append(_moves.permute(labels, [part.index(c) for c in order]))
    for extra in summed[:-1]:  # all but one summed letter: pinned, which is safe
        aligned = [walk.pinned(labels, [order.index(extra)], site.reason) for labels in aligned]
    shape = tuple(sizes[c] for c in order)
    if not summed:
        return walk.pointwise(site, aligned, shape)
    result = product(walk, site, aligned[0], aligned[1], shape)
    return result.without(range(len(output), result.ndim))


@rule("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    if site.name == "convolution":
        transposed, groups = bool(args[6]), int(args[8])
    else:
        transposed, groups = False, int(kwargs.get("groups", args[6] if len(args) > 6 else 1))
    return _convolve(walk, site, args, groups, transposed)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return _convolve(walk, site, args, int(kwargs.get("groups", args[6] if len(args) > 6 else 1)), True)


def _convolve(walk: Walk, site: Site, args: Sequence[Any], groups: int, transposed: bool) -> Labels:
    x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
    sides = weight.ndim - 2
    x = walk.pinned(x, range(x.ndim - sides, x.ndim), site.reason)
    weight = walk.pinned(weight, range(2, weight.ndim), site.reason)
    kernel = Labels(weight.shape[:2], weight.blocks)
    channels = Labels(x.shape[: x.ndim - sides], x.blocks)
    if transposed:
        kernel = _moves.permute(kernel, (1, 0))
    name = weight_of(walk, site.node.args[1])
    where = {"weight": name, "inputs": int(not transposed), "outputs": int(transposed), "groups": groups}
    spatial = x.shape[x.ndim - sides :] if transposed else site.shape[len(site.shape) - sides :]
    taps = math.prod(weight.shape[2:]) * math.prod(spatial)
    if groups == 1:
        shape = (*channels.shape[:-1], *kernel.shape)
        out = product(walk, site, channels.with_dim(channels.ndim - 1), kernel, shape, taps=taps, **where)
    else:
        out = _grouped(walk, site, channels, kernel, groups, taps, where)
    out = Labels(site.shape, out.blocks)
    if bias is None:
        return out
    stretched = _moves.reshape(bias, (bias.shape[0], *[1] * sides))
    return walk.pointwise(site, [out, stretched], site.shape)


def _grouped(
    walk: Walk, site: Site, x: Labels, kernel: Labels, groups: int, taps: int, where: dict[str, Any]
) -> Labels:
    """A grouped convolution keeps its groups equal: whole groups leave, or one channel of every group.

    Of a transposed kernel the groups lie along the input, else along the output dimension; both are read as (groups,
    inputs of a group) and (groups, outputs of a group).
    """
    at = x.ndim - 1
    inputs = x.shape[at] // groups
    if where["outputs"] == 0:
        outputs, shared = kernel.shape[0] // groups, 1
    else:
        outputs, shared = kernel.shape[0], 0
    atoms = walk.atoms
    arrays: dict[str, Any] = {}
    for key, labels, dim, inner in (("x", x, at, inputs), ("w0", kernel, 0, outputs), ("w1", kernel, 1, inputs)):
        found = [block for block in labels.touching([dim]) if block.dims == (dim,)]
        for block in labels.touching([dim]):
            if block.dims != (dim,):
                walk.atoms.pin(block.atoms, site.reason)
        whole = (key == "w1" and shared == 1) or (key == "w0" and shared == 0)
        arrays[key] = found[0].atoms.reshape((1 if whole else groups), inner) if found else None
    side = arrays["w0" if shared == 1 else "w1"]  # the kernel's dimension that runs over groups
    within = arrays["w1" if shared == 1 else "w0"]  # the one that all groups share
    out = side if shared == 1 else atoms.fresh(groups * outputs).reshape(groups, outputs)
    if arrays["x"] is None:
        for array in (side, within):
            if array is not None:
                atoms.pin(array, site.reason)
        return Labels((*x.shape[:-1], groups * outputs), tuple(b for b in x.blocks if at not in b.dims))
    if shared == 0 and side is not None:
        atoms.join(side, arrays["x"])
    if groups >= inputs:  # whole groups
        first = atoms.join_along(arrays["x"], [1])
        if out is not None:
            atoms.join(out, first[:, None])
        if within is not None:
            atoms.pin(within, f"the equal groups of {site.reason}")
    else:  # one channel of every group
        first = atoms.join_along(arrays["x"], [0])
        if within is not None and shared == 1:
            atoms.join(within[0], first)
        if out is not None:
            atoms.join(out, atoms.join_along(out, [0]) if shared == 1 else within if within is not None else out)
    flat = out.reshape(-1) if out is not None else None
    batch = tuple(block for block in x.blocks if at not in block.dims)
    blocks = (*batch, Block((at,), flat)) if flat is not None else batch
    counted = [arrays["x"].reshape(-1)] + ([out.reshape(-1)] if groups < inputs and out is not None else [])
    total = math.prod(x.shape[:-1]) * groups * outputs * inputs * taps
    walk.products.append(Product(site, total, tuple(counted), **where))
    return Labels((*x.shape[:-1], groups * outputs), blocks)


# --------------------------------------------------------------------------------------------------------------- norms


def _per_channel(walk: Walk, site: Site, x: Labels, vectors: Sequence[Any]) -> Labels:
    """Vectors over dimension 1 act on x elementwise."""
    for vector in vectors:
        if isinstance(vector, Labels):
            stretched = _moves.reshape(vector, (vector.shape[0], *[1] * (x.ndim - 2)))
            x = walk.pointwise(site, [x, stretched], x.shape)
    return x


@rule("batch_norm", "instance_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm")
def _batch_norm(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    out = _per_channel(walk, site, args[0], args[1:5])
    return [out, Labels(()), Labels(())] if site.several else out


@rule("prelu", "_prelu_kernel")
def _prelu(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    x, slopes = args[0], args[1]
    return walk.pointwise(site, [x], x.shape) if slopes.shape == (1,) else _per_channel(walk, site, x, [slopes])


@rule("group_norm")
def _group_norm(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    x, groups = args[0], int(args[1])
    for block in x.touching([1]):
        if block.dims == (1,):
            walk.atoms.join_along(block.atoms.reshape(groups, -1), [1])
        else:
            walk.atoms.pin(block.atoms, site.reason)
    x = walk.pinned(x, range(2, x.ndim), site.reason)
    return _per_channel(walk, site, x, args[2:4])


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    x = args[0]
    if walk.exact:
        x = walk.pinned(x, range(x.ndim - len(args[1]), x.ndim), site.reason)
    out = walk.pointwise(site, [x, *[value for value in args[2:4] if isinstance(value, Labels)]], x.shape)
    return [out, Labels(()), Labels(())] if site.several else out


# ----------------------------------------------------------------------------------- embeddings, attention, recurrence


@rule("embedding")
def _embedding(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    """Rows are tokens and stay. The columns of a table that inputs look up leave only when it is named."""
    table = walk.pinned(args[0], [0], site.reason)
    columns = [Block((len(site.shape) - 1,), block.atoms) for block in table.blocks if block.dims == (1,)]
    name = weight_of(walk, site.node.args[0])
    if name is not None and site.node.args[1] not in walk.constant:
        walk.named_only.extend((name, block.atoms) for block in columns)
        walk.products.append(Product(site, 0, (), weight=name, inputs=0, outputs=1))  # it makes its columns
    return Labels(site.shape, tuple(columns))


@rule("scaled_dot_product_attention")
def _attention(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    query, key, value = args[:3]
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if kwargs.get("enable_gqa") or (len(args) > 7 and args[7]):
        times = query.shape[-3] // key.shape[-3]
        key, value = _repeated(key, times), _repeated(value, times)
    # The size of a head sets the scale of its scores: heads leave as a whole.
    query, key, value = (walk.pinned(each, [each.ndim - 1], site.reason) for each in (query, key, value))
    order = [*range(key.ndim - 2), key.ndim - 1, key.ndim - 2]
    scores = matmul(walk, site, query, _moves.permute(key, order))
    if mask is not None:
        scores = walk.pointwise(site, [scores, mask], scores.shape)
    scores = walk.pinned(scores, [scores.ndim - 1], site.reason)
    return matmul(walk, site, scores, value)


def _repeated(labels: Labels, times: int) -> Labels:
    """Each head `times` times, as grouped queries read them."""
    at = labels.ndim - 3
    shape = tuple(size * times if dim == at else size for dim, size in enumerate(labels.shape))
    blocks = [
        Block(block.dims, block.atoms.repeat(times, block.dims.index(at))) if at in block.dims else block
        for block in labels.blocks
    ]
    free = labels.free | ({at} if labels.shape[at] == 1 else frozenset())
    return Labels(shape, tuple(block for block in blocks if labels.shape[at] > 1 or at not in block.dims), free)


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    """Units of a recurrent layer: rows of all gates, rows and columns of the recurrent matrix, and who reads them."""
    x, states, weights = args[0], args[1], args[2]
    biases, layers, bidirectional = bool(args[3]), int(args[4]), bool(args[7])
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    count = 4 if biases else 2
    directions = 2 if bidirectional else 1
    if len(weights) != count * layers * directions:
        from prunus.structure._rules import unknown_operator  # projections: their sizes are left alone

        return unknown_operator(walk, site, args, kwargs)
    inputs, units = x, []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            at = count * (layer * directions + direction)
            outs.append(_cell(walk, site, inputs, weights[at : at + count], states, at))
        units.append(outs)
        last = inputs.ndim - 1
        flat = np.concatenate(outs)
        inputs = Labels((*inputs.shape[:-1], flat.size), (Block((last,), flat),))
    walk.recurrent.append((site.module, [out for outs in units for out in outs]))
    shapes = site.shapes
    cells = np.stack([out for outs in units for out in outs])
    finals = []
    for shape in shapes[1:]:
        last = len(shape) - 1
        block = Block((0, last), cells) if len(cells) > 1 else Block((last,), cells[0])
        finals.append(Labels(shape, (block,)))
    return [Labels(shapes[0], inputs.blocks), *finals]


def _cell(walk: Walk, site: Site, x: Labels, weights: Sequence[Labels], states: Sequence[Labels], at: int) -> Any:
    """One layer in one direction; returns the atoms of its units."""
    into, back = weights[0], weights[1]
    size = back.shape[1]
    rows = [block.atoms for block in back.blocks if block.dims == (1,)]
    units = rows[0] if rows else walk.atoms.fresh(size)
    for part in weights:
        for block in part.blocks:
            if block.dims == (0,):
                walk.atoms.join(block.atoms.reshape(-1, size), units[None])
    names: Any = site.node.args[2]
    steps = math.prod(x.shape[:-1])
    product(
        walk, site, x.with_dim(x.ndim - 1), into, (*x.shape[:-1], into.shape[0], x.shape[-1]),
        weight=walk.names.get(names[at]), inputs=1, outputs=0,
    )  # fmt: skip
    details: dict[str, Any] = {"weight": walk.names.get(names[at + 1]), "inputs": 1, "outputs": 0}
    walk.products.append(Product(site, steps * back.shape[0] * size, (units, units), **details))
    for state in states:
        given = Labels((size,), (Block((0,), units),))
        last = Labels((state.shape[-1],), (), frozenset({0}) if state.ndim - 1 in state.free else frozenset())
        if state.shape[-1] == size:
            unify(walk.atoms, given, last, f"a given state of {site.reason}")
    return units
