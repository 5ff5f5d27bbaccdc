"""The copy of a model that reconstruction works on: the model itself changes only when all is done."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from prunus.errors import BadInput
from prunus.layers import all_weights, listing, matches


def take_over(model: nn.Module, work: nn.Module) -> None:
    """Copy every tensor that `work` holds into the model itself."""
    with torch.no_grad():
        own = model.state_dict()
        for name, value in work.state_dict().items():
            if isinstance(value, Tensor):  # a module's own extra state may be anything
                own[name].copy_(value)


def working_copy(model: nn.Module, names: Iterable[str], whole: bool) -> nn.Module:
    """A copy to work on. Parameters that nothing changes, such as embeddings, are those of the model itself.

    `names` are the weights that change, with all else that their modules hold; with `whole`, everything may.
    """
    known = all_weights(model)
    changing = {id(p) for name in names for p in known[name].module.parameters()}
    if whole:
        changing = {id(p) for p in model.parameters()}
    memo: dict[int, Any] = {id(p): p for p in model.parameters() if id(p) not in changing}
    for module in model.modules():  # what is computed from parameters is computed again
        made = [value for value in vars(module).values() if isinstance(value, Tensor) and not value.is_leaf]
        memo |= {id(value): value.detach() for value in made}
    return copy.deepcopy(model, memo)


def refuse_computed(model: nn.Module, exclude: Iterable[str]) -> None:
    """Refuse weights that their layer computes from others whenever it runs: a fit could not change them."""
    named = {name: hook for name, module in model.named_modules() for hook in module._forward_pre_hooks.values()}
    computed = [name for name, hook in named.items() if isinstance(hook, (WeightNorm, BasePruningMethod))]
    found = [name for name in computed if not any(matches(name, glob) for glob in exclude)]
    if found:
        raise BadInput(
            f"The weights of {listing(map(repr, found), 20)} are computed from others: make them permanent with "
            "torch.nn.utils.remove_weight_norm or torch.nn.utils.prune.remove, or exclude them."
        )


def require_finite(model: nn.Module) -> None:
    """Refuse a model that holds NaN or Inf."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        if value.layout is not torch.strided or not value.numel():
            continue
        if not all(map(math.isfinite, value.aminmax())):  # isfinite would take memory, and embeddings are large
            raise BadInput(f"The reconstruction of {name!r} is not finite: give more samples, or a larger damping.")
