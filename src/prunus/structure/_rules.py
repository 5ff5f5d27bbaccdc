"""What each operator does to labels. See `_labels.py` for the primitives and `_moves.py` for pure movement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from prunus._torch import pytree
from prunus.structure import _moves
from prunus.structure._labels import Labels, broadcast, contract, unify
from prunus.structure._walk import Product, Result, Rule, Site, Walk, operator_name

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators with these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def rule_for(target: Any, name: str) -> Rule:
    """The rule of an operator; unknown ones pin everything they read."""
    from prunus.structure import _rules_layers  # noqa: F401  (registers the layers)

    if name in RULES:
        return RULES[name]
    if torch.Tag.pointwise in getattr(target, "tags", ()):
        return _pointwise
    return unknown_operator


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Labels]:
    return [value for value in pytree.tree_leaves((list(args), dict(kwargs))) if isinstance(value, Labels)]


def _pointwise(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return walk.pointwise(site, tensors(args, kwargs), site.shape)


def unknown_operator(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    for labels in tensors(args, kwargs):
        walk.pinned(labels, range(labels.ndim), f"{site.reason}, an operator without a rule")
    results = [Labels(shape) for shape in site.shapes]
    return results if site.several else results[0] if results else None


for _name in (
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "contiguous",
    "clone",
    "alias",
    "to",
    "_to_copy",
    "detach",
):
    RULES[_name] = lambda walk, site, args, kwargs: args[0]
for _name in ("type_as", "where", "masked_fill", "clamp", "__and__", "__or__", "rsub", "lift_fresh_copy", "lift_fresh"):
    RULES[_name] = _pointwise
for _name in ("silu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "gelu", "mish", "selu", "celu", "softplus"):
    RULES[_name] = _pointwise


@rule("ones_like", "zeros_like", "full_like", "empty_like", "rand_like", "randn_like", "dropout_like")
def _like(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return Labels(args[0].shape, args[0].blocks, args[0].free)


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "scalar_tensor")
def _uniform(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return Labels(site.shape, (), frozenset(range(len(site.shape))))


@rule("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_size", "sym_constrain_range_for_size")
def _nothing(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return None


# ------------------------------------------------------------------------------------------------------------ movement


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as", "squeeze")
def _reshape(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return _moves.reshape(args[0], site.shape)


@rule("unsqueeze")
def _unsqueeze(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return args[0].with_dim(args[1] % (args[0].ndim + 1))


@rule("permute")
def _permute(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return _moves.permute(args[0], args[1])


@rule("transpose", "swapaxes", "t", "numpy_T", "adjoint", "mT")
def _transpose(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    order = list(range(args[0].ndim))
    if order:
        i, j = (args[1], args[2]) if len(args) > 2 else (-1, -2 if len(order) > 1 else -1)
        order[i], order[j] = order[j], order[i]
    return _moves.permute(args[0], order)


@rule("expand", "expand_as", "broadcast_to")
def _expand(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return _moves.expand(args[0], site.shape)


@rule("slice")
def _slice(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim, start, end, step = [*args[1:], None, None, None, None][:4]
    dim = dim or 0
    indices = np.arange(args[0].shape[dim])[slice(start, end, step)]
    return _moves.take(walk.atoms, args[0], dim, indices, drop=False, reason=site.reason)


@rule("narrow")
def _narrow(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim, start, length = args[1:]
    return _moves.take(walk.atoms, args[0], dim, np.arange(start, start + length), drop=False, reason=site.reason)


@rule("select")
def _select(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    indices = np.arange(args[0].shape[args[1]])[[args[2]]]
    return _moves.take(walk.atoms, args[0], args[1], indices, drop=True, reason=site.reason)


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0) % args[0].ndim
    ends = np.cumsum([0, *[shape[dim] for shape in site.shapes]])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return [_moves.take(walk.atoms, args[0], dim, part, drop=False, reason=site.reason) for part in parts]


@rule("unbind")
def _unbind(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim = (args[1] if len(args) > 1 else 0) % args[0].ndim
    count = args[0].shape[dim]
    return [_moves.take(walk.atoms, args[0], dim, np.array([i]), drop=True, reason=site.reason) for i in range(count)]


@rule("cat", "concat", "concatenate")
def _cat(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    return _moves.concatenate(walk.atoms, args[0], dim, site.shape, site.reason)


@rule("stack")
def _stack(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return _moves.stack(args[0], args[1] if len(args) > 1 else 0, site.shape)


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def _pad(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    amounts = tuple(int(amount) for amount in args[1])
    labels, made = _moves.pad(walk.atoms, args[0], amounts, site.shape)
    if made:
        walk.paddings.append((site, amounts, made))
    return labels


_MOVES = ("roll", "flip", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "repeat", "repeat_interleave", "tile")


@rule(*_MOVES, "unfold", "movedim", "moveaxis", "diagonal", "rot90", "swapdims", "unsafe_view")
def _laid_out(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    target: Any = site.node.function
    return _moves.laid_out(args[0], lambda full: target(full, *args[1:], **kwargs))


@rule("index", "index_select", "gather", "scatter", "index_put", "take_along_dim", "sort", "topk", "cumsum", "argsort")
def _indexed(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    """Labels along indexed dimensions are pinned, the others go where the operator takes them."""
    labels = args[0]
    if site.name == "index":
        used = [dim for dim, index in enumerate(args[1]) if index is not None]
        rest = walk.pinned(labels, used, site.reason)
        chosen = [None if index is None else torch.zeros(index.shape, dtype=torch.long) for index in args[1]]
        return _moves.laid_out(rest, lambda full: torch.ops.aten.index.Tensor(full, chosen))
    if site.name == "gather":
        dim = args[1] % labels.ndim
        rest = walk.pinned(labels, [dim], site.reason)
        source = Labels(site.shape, rest.blocks, rest.free | {dim})
        return unify(walk.atoms, source, broadcast(args[2], site.shape), site.reason)
    if site.name == "index_select":
        return Labels(site.shape, walk.pinned(labels, [args[1]], site.reason).blocks)
    return unknown_operator(walk, site, args, kwargs)


# ------------------------------------------------------------------------------------------------- sums, norms, pooling


@rule(
    "sum", "mean", "amax", "amin", "var", "std", "any", "all", "prod", "logsumexp", "linalg_vector_norm", "norm", "max"
)
def _reduce(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    labels: Labels = args[0]
    at = 2 if site.name in ("linalg_vector_norm", "norm") else 1
    if site.name in ("max", "min") and (len(args) < 2 or isinstance(args[1], Labels)):
        return unknown_operator(walk, site, args, kwargs) if len(args) < 2 else _pointwise(walk, site, args, kwargs)
    given = kwargs.get("dim", args[at] if len(args) > at else None)
    dims = [given] if isinstance(given, int) else given
    dims = list(range(labels.ndim)) if not dims else [dim % labels.ndim for dim in dims]
    if not walk.exact and site.name in ("mean", "var", "std"):
        rest = Labels(labels.shape, tuple(b for b in labels.blocks if not set(b.dims) <= set(dims)), labels.free)
        rest = walk.pinned(rest, dims, site.reason)
    else:
        rest = walk.pinned(labels, dims, site.reason)
    result = rest if len(site.shape) == labels.ndim else rest.without(dims)
    if result is rest:
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(labels.shape))
        result = Labels(shape, rest.blocks, rest.free)
    return [result, result] if site.several else result


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "glu_norm", "normalize")
def _along(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    return walk.pinned(args[0], [args[1]], site.reason)


_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")


@rule(*[f"{name}{n}d" for name in _POOLS for n in (1, 2, 3)], "max_pool2d_with_indices", "_adaptive_avg_pool2d")
@rule("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest1d", "upsample_linear1d")
def _pool(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    sides = sum(a != b for a, b in zip(site.shape, args[0].shape))
    fixed = 2 if "2d" in site.name else 3 if "3d" in site.name else 1
    rest = walk.pinned(args[0], range(-max(fixed, sides), 0), site.reason)
    labels = Labels(site.shape, rest.blocks)
    return [labels, labels] if site.several else labels


@rule("glu")
def _glu(walk: Walk, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
    dim = (args[1] if len(args) > 1 else -1) % args[0].ndim
    half = args[0].shape[dim] // 2
    parts = [
        _moves.take(walk.atoms, args[0], dim, np.arange(half) + at, drop=False, reason=site.reason) for at in (0, half)
    ]
    return walk.pointwise(site, parts, site.shape)


# ------------------------------------------------------------------------------------------------------------ products


def product(
    walk: Walk, site: Site, left: Labels, right: Labels, shape: tuple[int, ...], taps: int = 1, **details: Any
) -> Labels:
    """Sum over the last dimension of an elementwise product; both operands are broadcast to `shape` first."""
    left, right = broadcast(left, shape), broadcast(right, shape)
    result = contract(walk.atoms, left, right, len(shape) - 1, site.reason)
    seen = {dim for block in result.blocks for dim in block.dims}
    inner = [block for block in (*right.blocks, *left.blocks) if len(shape) - 1 in block.dims]
    blocks = [block.atoms for block in result.blocks]
    blocks += [block.atoms for block in inner[:1] if not set(block.dims) & seen]
    walk.products.append(Product(site, math.prod(shape) * taps, tuple(blocks), **details))
    return result


def matmul(walk: Walk, site: Site, left: Labels, right: Labels, **details: Any) -> Labels:
    """Labels of left @ right, as torch.matmul broadcasts them."""
    vector_left, vector_right = left.ndim == 1, right.ndim == 1
    left = left.with_dim(0) if vector_left else left
    right = right.with_dim(1) if vector_right else right
    rows = left.with_dim(left.ndim - 1)
    order = [*range(right.ndim - 2), right.ndim - 1, right.ndim - 2]
    columns = _moves.permute(right, order)
    columns = columns.with_dim(columns.ndim - 2)
    batch = np.broadcast_shapes(rows.shape[:-3], columns.shape[:-3])
    shape = (*batch, rows.shape[-3], columns.shape[-2], rows.shape[-1])
    result = product(walk, site, rows, columns, tuple(int(size) for size in shape), **details)
    gone = ([result.ndim - 2] if vector_left else []) + ([result.ndim - 1] if vector_right else [])
    return result.without(gone) if gone else result


def weight_of(walk: Walk, node: Any) -> str | None:
    return walk.names.get(node)


def matrix_of(walk: Walk, node: Any) -> dict[str, Any]:
    """The parameter that a product reads as its second operand, as it is or transposed, and its dimensions."""
    name = walk.names.get(node)
    source = node.args[0] if getattr(node, "kind", "") == "call" and node.args else None
    if name is None and source in walk.names and len(source.shape) == 2 and operator_name(node) in _TURNS:
        return {"weight": walk.names[source], "inputs": 1, "outputs": 0}
    return {"weight": name, "inputs": 0, "outputs": 1}


_TURNS = ("t", "transpose", "permute", "numpy_T", "mT", "adjoint", "swapaxes")
