"""Rules of products of matrices and of attention: entries are moved side by side, multiplied, and summed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from prunus.certificates.reading.layers import linear
from prunus.certificates.reading.linear import gather, plain, reshape, scaling
from prunus.certificates.reading.nonlinear import softmax
from prunus.certificates.reading.pieces import Affine, ValueProduct
from prunus.certificates.reading.rules import Call, Value, register_rule

_MOST = 2**24
"""Products of one operator: more than this does not fit the memory of the bounds."""

_HIDING, _HIDDEN = -1e4, -1e30
"""Masks at or below the first hide an entry; the second stands for -inf, beside which no score counts."""


def moved_to(call: Call, value: Value, index: Tensor, shape: tuple[int, ...]) -> Value:
    """Entries `index` of a value, in a stored shape."""
    flat = index.reshape(-1)
    if flat.numel() == math.prod(value.real) and torch.equal(flat, torch.arange(flat.numel())):
        return value if shape == value.shape else call.emit(reshape(shape), [value], shape)
    return call.emit(gather(flat, shape), [value], shape)


def summed(call: Call, value: Value, terms: int) -> Value:
    """The sum over the last axis."""
    shape = value.shape[:-1]
    count = value.shape[-1]
    piece = plain("sum over axes", lambda x: x.sum(-1), math.sqrt(count) * (1 + 1e-15), terms, ("last", shape))
    return call.emit(piece, [value], shape)


def matrix_product(
    call: Call, left: Any, right: Any, shape: tuple[int, ...], sides: tuple[Tensor, Tensor], extra: int = 2
) -> Value:
    """Sums over the last axis of products; sides: which entry of each factor stands where, (..., terms)."""
    one, two = torch.broadcast_tensors(*sides)
    wide = (*shape, one.shape[-1])
    if math.prod(wide) > _MOST:
        raise call.refuse("the product of these matrices is too large")
    if isinstance(left, Value) and isinstance(right, Value):
        factors = [moved_to(call, value, index, wide) for value, index in ((left, one), (right, two))]
        return summed(call, call.emit(ValueProduct(), factors, wide), one.shape[-1] + extra)
    value, constant, index, place = (left, right, one, two) if isinstance(left, Value) else (right, left, two, one)
    weights = constant.double().flatten()[place.reshape(-1)].reshape(wide)
    if not bool(torch.isfinite(weights).all()):
        raise call.refuse("a constant in it is not finite")
    return summed(call, call.emit(scaling(weights), [moved_to(call, value, index, wide)], wide), one.shape[-1] + extra)


def _places(item: Any) -> Tensor:
    real = item.real if isinstance(item, Value) else tuple(item.shape)
    return torch.arange(math.prod(real)).reshape(real)


def _fixed(call: Call, item: Any, dimension: int) -> None:
    """The axis that is summed over must not be the batch."""
    if isinstance(item, Value):
        call.axis(dimension, item)


@register_rule("aten.matmul", "aten.mm", "aten.bmm")
def _matmul(call: Call) -> Value | Affine:
    left, right = call.get(0, "self"), call.get(1, "other" if "matmul" in call.op else "mat2")
    if isinstance(left, Value) and isinstance(right, Tensor) and right.ndim == 2:
        call.axis(-1)
        if not bool(torch.isfinite(right).all()):
            raise call.refuse("its weight is not finite")
        return linear(right.T.contiguous(), None)
    places = [_places(item) for item in (left, right)]
    if min(part.ndim for part in places) < 2:
        raise call.refuse("products with vectors have no rule")
    _fixed(call, left, -1)
    _fixed(call, right, -2)
    sides = places[0][..., :, None, :], places[1].transpose(-1, -2)[..., None, :, :]
    return matrix_product(call, left, right, call.shape, sides)


@register_rule("aten.scaled_dot_product_attention")
def _attention(call: Call) -> Value:
    """softmax(scale q k' + mask) v, as its steps."""
    query, key, value = (call.get(place, name) for place, name in enumerate(("query", "key", "value")))
    mask, dropout = call.get(3, "attn_mask"), float(call.get(4, "dropout_p", 0.0))
    if not all(isinstance(item, Value) for item in (query, key, value)) or isinstance(mask, Value):
        raise call.refuse("queries, keys and values must depend on the input, and the mask must not")
    if dropout or call.kwargs.get("enable_gqa"):
        raise call.refuse("attention with dropout or with grouped queries has no rule")
    for item, axes in ((query, (-1,)), (key, (-1, -2)), (value, (-1, -2))):
        for axis in axes:
            _fixed(call, item, axis)
    given = call.kwargs.get("scale")
    scale = 1 / math.sqrt(query.real[-1]) if given is None else float(given)
    q, k, v = (_places(item) for item in (query, key, value))
    size = (*call.shape[:-1], key.real[-2])
    real = (*call.real[:-1], key.real[-2])
    scores = matrix_product(call, query, key, size, (q[..., :, None, :], k[..., None, :, :]), 16)
    hidden = _hidden(call, mask, bool(call.get(5, "is_causal", False)), real)
    factors = torch.full(size, float(scale), dtype=torch.float64)
    piece = scaling(factors, hidden.reshape(size) if bool(hidden.any()) else None)
    # A hidden score may be off by the rounding of its mask without any effect: it stays far below the others, or is so
    # large itself that its own rounding counts as much.
    seen = None if piece.bias is None else torch.where(piece.bias <= _HIDING, 0.0, piece.bias.abs())
    scores = call.emit(replace(piece, bias_size=seen), [scores], size)
    shares = call.emit(softmax(len(size)), [scores], size)
    places = torch.arange(math.prod(size)).reshape(real)
    sides = places[..., :, None, :], v.transpose(-1, -2)[..., None, :, :]
    return matrix_product(call, shares, value, call.shape, sides, 16)


def _hidden(call: Call, mask: Any, causal: bool, real: tuple[int, ...]) -> Tensor:
    """What a mask adds to the scores, (*real)."""
    offset = torch.zeros(real, dtype=torch.float64)
    if causal:
        offset = offset.masked_fill(~torch.ones(real[-2:], dtype=torch.bool).tril(), _HIDDEN)
    if mask is not None:
        if mask.dtype == torch.bool:
            given = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, _HIDDEN)
        else:
            given = mask.double().clamp_min(_HIDDEN)
        try:
            offset = offset + given.expand(real)
        except RuntimeError:
            raise call.refuse("its mask differs between the examples of a batch") from None
    offset = offset.clamp_min(_HIDDEN)
    if not bool(torch.isfinite(offset).all()) or not bool((offset > _HIDING).any(-1).all()):
        raise call.refuse("its mask hides a whole row or is not finite")
    return offset
