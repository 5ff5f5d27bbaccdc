"""What a network computes without its input: done once, in the network's own precision, as the network does it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from prunus.certificates.reading.nested import numbers
from prunus.errors import BadInput
from prunus.graph import Node

LEFT_OUT = object()
"""Stands for a part of a result that its rule says nothing about."""

_RANDOM = ("rand", "bernoulli", "normal", "multinomial", "poisson", "exponential", "uniform")
_MADE = ("zeros", "ones", "full", "scalar_tensor", "lift_fresh_copy")
_BY_ROW = (
    *("clone", "contiguous", "detach", "alias", "to", "_to_copy", "expand", "view", "reshape", "flatten", "unflatten"),
    *("squeeze", "unsqueeze", "permute", "transpose", "t", "slice", "select", "narrow", "chunk", "split", "unbind"),
    *("cat", "stack", "repeat", "linear", "layer_norm", "dropout"),
)
"""Operators that move entries, or work on the last axis alone, beside those that torch marks as pointwise."""


def place(node: Node) -> str:
    """The module that made the call, in words."""
    return f" in {node.module}, {node.module_class.rpartition('.')[2]}" if node.module else ""


def where(node: Node) -> str:
    """The operator of a call and where it stands, in words."""
    return f"The operator {node.op} ({node.name}{place(node)})"


def constant(node: Node, args: Any, kwargs: Any) -> Any:
    """The value of an operator that does not depend on the input.

    Raises:
        BadInput: The operator is random or cannot be run outside of the network.
    """
    assert node.function is not None
    off = "dropout" in node.op and node.argument(2, "train", True) is False
    if not off and (_has_tag(node, torch.Tag.nondeterministic_seeded) or any(word in node.op for word in _RANDOM)):
        raise BadInput(f"{where(node)} is random, so the network cannot be certified.")
    with contextlib.suppress(TypeError):
        return node.function(*numbers(args), **numbers(kwargs))
    raise BadInput(f"{where(node)} cannot be computed outside of the network.")


def check_sized(node: Node) -> None:
    """Refuse what could turn the size of the batch, which stands in a constant's shape, into a number.

    The constant is computed for a batch of one. Entries made equal and only moved or computed one by one are the same
    for every batch; a sum over the batch, or the position in it, is not.
    """
    name = node.op.split(".")[1] if "." in node.op else node.op
    if name in _MADE or name in _BY_ROW or name == "getitem" or _has_tag(node, torch.Tag.pointwise):
        return
    raise BadInput(f"{where(node)} uses the batch size as a number, so it cannot be certified.")


def _has_tag(node: Node, tag: Any) -> bool:
    return tag in getattr(node.function, "tags", ())
