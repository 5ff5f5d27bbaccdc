"""The operations of one network brought into the order and the form that certificates work on.

A batch norm that follows a layer is folded into it (ledger P-31). The layer as it runs stays with the folded one: its
own sums may be larger than what the batch norm makes of them, and they are what overflows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prunus.certificates.reading.pieces import Affine, Elementwise, Lipschitz, Piece


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of one network: its name, the values it reads, its piece and the shape it makes."""

    name: str
    inputs: tuple[int, ...]
    piece: Piece
    shape: tuple[int, ...]


def ordered(ops: list[Operation]) -> list[Operation]:
    """The operations behind the output in the order in which it asks for them: two graphs of one architecture agree."""
    number: dict[int, int] = {0: 0}
    result: list[Operation] = []
    stack = [len(ops)]
    while stack:
        value = stack[-1]
        if value in number:
            stack.pop()
            continue
        op = ops[value - 1]
        missing = [index for index in op.inputs if index not in number]
        if missing:
            stack += reversed(missing)
            continue
        result.append(replace(op, inputs=tuple(number[index] for index in op.inputs)))
        number[value] = len(result)
        stack.pop()
    return result


def pooled_first(ops: list[Operation]) -> list[Operation]:
    """Max pooling right after a ReLU changes places with it, which is exact: fewer entries are then relaxed."""
    readers = [index for op in ops for index in op.inputs]
    result = list(ops)
    for here in range(len(ops) - 1):
        bends, pools = result[here], result[here + 1]
        first, second = bends.piece, pools.piece
        bent = isinstance(first, Elementwise) and first.kind == "relu" and readers.count(here + 1) == 1
        pooled = isinstance(second, Lipschitz) and second.windows is not None and pools.inputs == (here + 1,)
        if bent and pooled:
            result[here] = replace(pools, inputs=bends.inputs)
            result[here + 1] = replace(bends, shape=pools.shape, inputs=pools.inputs)
    return result


def folded(ops: list[Operation]) -> list[Operation]:
    """Fold every per-channel scaling into the layer before it, where nothing else reads that layer."""
    readers = [0] * (len(ops) + 1)
    for op in ops:
        for index in op.inputs:
            readers[index] += 1
    result: list[Operation] = []
    number = {0: 0}  # old value -> new value
    for position, op in enumerate(ops, start=1):
        made = _fold_into(op, result, number, readers)
        if made is None:
            result.append(replace(op, inputs=tuple(number[index] for index in op.inputs)))
        else:
            result[-1] = made
        number[position] = len(result)
    return result


def _fold_into(op: Operation, result: list[Operation], number: dict[int, int], readers: list[int]) -> Operation | None:
    scale = op.piece
    if not (isinstance(scale, Affine) and scale.kind == "diagonal" and scale.settings == (1,) and result):
        return None
    before = result[-1]
    source = op.inputs[0]
    layer = before.piece
    if number[source] != len(result) or readers[source] != 1 or not isinstance(layer, Affine) or layer.scaled is None:
        return None
    if len(before.shape) != 1 and layer.kind == "linear":
        return None  # a linear layer over sequences has its channels last
    factors = scale.weight
    assert layer.weight is not None
    assert factors is not None
    axes = [1] * (len(before.shape) - 1)
    wide = factors.reshape(-1, *axes)
    bias, size = scale.bias, scale.bias_size
    if layer.bias is not None:
        scaled = layer.bias * wide
        bias = scaled if bias is None else bias.reshape(-1, *axes) + scaled
        own = (layer.bias if layer.bias_size is None else layer.bias_size).abs() * wide.abs()
        size = own if size is None else size.reshape(-1, *axes) + own
    terms, roundings = layer.terms + 8, layer.roundings + scale.roundings
    piece = replace(
        layer,
        weight=layer.scaled(layer.weight, factors),
        bias=bias,
        bias_size=size,
        terms=terms,
        roundings=roundings,
        inside=layer,
        lost=layer.underflow * wide.abs() + scale.terms + 2,
    )
    return replace(before, piece=piece)
