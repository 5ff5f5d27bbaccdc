"""The copy of a model that reconstruction works on: the model itself changes only when all is done."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from prunus.errors import BadInput, first_line
from prunus.layers import all_weights, listing


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
    try:
        return copy.deepcopy(model, {id(p): p for p in model.parameters() if id(p) not in changing})
    except RuntimeError as error:
        found = {
            name: value
            for name, module in model.named_modules()
            for value in vars(module).values()
            if isinstance(value, Tensor) and not value.is_leaf
        }
        if not found:
            raise BadInput(f"The model cannot be copied: {first_line(error)}.") from error
        raise BadInput(
            f"The model computes weights of {listing(found)} from others (torch.nn.utils.weight_norm or prune): make "
            "them permanent with torch.nn.utils.remove_weight_norm or prune.remove, then reconstruct."
        ) from None


def require_finite(model: nn.Module) -> None:
    """Refuse a model that holds NaN or Inf."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        if value.layout is not torch.strided or not value.numel():
            continue
        if not all(map(math.isfinite, value.aminmax())):  # isfinite would take memory, and embeddings are large
            raise BadInput(f"The reconstruction of {name!r} is not finite: give more samples, or a larger damping.")
