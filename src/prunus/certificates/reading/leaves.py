"""Modules whose class has a rule of its own are kept whole while a model is read.

During reading their forward calls one operator of ours, `prunus::leaf`, which torch.export records as it stands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import unset_fake_temporarily

LEAF = "prunus.leaf.default"
_LEAVES: dict[int, tuple[nn.Module, Callable[..., Any]]] = {}


@torch.library.custom_op("prunus::leaf", mutates_args=())
def _leaf(x: Tensor, key: int) -> Tensor:
    result: Tensor = _LEAVES[key][1](x)
    return result.clone()


@_leaf.register_fake
def _(x: Tensor, key: int) -> Tensor:
    with unset_fake_temporarily(), torch.no_grad():
        result = _LEAVES[key][1](torch.zeros(2, *(int(size) for size in x.shape[1:]), dtype=x.dtype))
    return x.new_empty((x.shape[0], *result.shape[1:]), dtype=result.dtype)


def leaf_module(args: tuple[Any, ...]) -> nn.Module:
    """The module behind a call of the leaf operator."""
    return _LEAVES[args[1]][0]


def _calls(key: int) -> Callable[[Tensor], Any]:
    return lambda x: torch.ops.prunus.leaf(x, key)


@contextlib.contextmanager
def leaves_of(model: nn.Module, rule: Callable[[nn.Module], Any]) -> Iterator[None]:
    """Make every module with a rule a leaf, and put their forwards back afterwards."""
    chosen = [module for module in model.modules() if rule(module) is not None]
    for module in chosen:
        _LEAVES[id(module)] = (module, module.forward)
        module.forward = _calls(id(module))
    try:
        yield
    finally:
        for module in chosen:
            del module.forward
            del _LEAVES[id(module)]
