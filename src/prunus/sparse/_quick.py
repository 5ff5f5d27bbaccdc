"""Packed layers called again: whether anything has changed since is asked by one native call."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from prunus.sparse._packed import kernels


def watch_packed(module: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """What a native run of a packed layer depends on: entries of its dictionaries and its hooks.

    An entry is (dictionary, name, value, whether it is a tensor that is read where it lies). Integer products read
    weights of their own, so there those are the bias and the span alone.
    """
    _ = module.packed  # a view that was thrown away is made anew first
    own = module.__dict__
    entries: list[tuple[Any, ...]] = [
        (own, name, own[name], False) for name in ("relu", "geometry", "activations", "_view") if name in own
    ]
    entries += [(module._parameters, name, value, value is not None) for name, value in module._parameters.items()]
    for name, value in module._buffers.items():
        entries.append((module._buffers, name, value, value is not None and (name == "span" or not module.integer)))
    return entries, [module._forward_hooks, module._forward_pre_hooks]


class QuickLinear:
    """The native call of a packed linear layer over the range of each token, while the layer is what it was.

    For plain tensors where no gradient is wanted and nothing watches; the layer's own hooks are called by torch.
    """

    def __init__(self, module: Any, choice: int) -> None:
        self._own = module.__dict__
        self._run = module.packed.layer.linear_on
        self._rest = (module._parameters["bias"], module.relu)
        self._choice = choice
        self._same = kernels().Watch(watch_packed(module)[0], []).same

    def fits(self, module: Any) -> bool:
        """Whether the module is the one this was made from, not a copy, and nothing in it has changed."""
        return module.__dict__ is self._own and self._same()

    def __call__(self, x: Tensor) -> Tensor | None:
        """The layer's output; None where x is not what the native call can read."""
        if x.is_neg():
            return None
        return cast("Tensor | None", self._run(x, *self._rest, torch.get_num_threads(), self._choice))
