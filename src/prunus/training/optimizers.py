"""The optimizer that a `FitConfig` describes."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from prunus.errors import BadInput
from prunus.layers import plain_name
from prunus.settings.training import FitConfig


def make_optimizer(config: FitConfig, parameters: Sequence[nn.Parameter], model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over `parameters` of `model`, with the rates at their start values.

    A group's "base" is the rate that the schedule scales.
    """
    grouped = _grouped(config, parameters, model) if config.groups else parameters
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0.0
        return torch.optim.SGD(
            grouped, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=nesterov
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(grouped, lr=config.lr, weight_decay=config.weight_decay)


def _grouped(config: FitConfig, parameters: Sequence[nn.Parameter], model: nn.Module) -> list[dict[str, Any]]:
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    members: dict[str, list[nn.Parameter]] = {glob: [] for glob in config.groups}
    rest: list[nn.Parameter] = []
    for parameter in parameters:
        name = names.get(id(parameter), "")
        glob = next((glob for glob in config.groups if fnmatch.fnmatchcase(name, glob)), None)
        (rest if glob is None else members[glob]).append(parameter)
    empty = next((glob for glob, found in members.items() if not found), None)
    if empty is not None:
        raise BadInput(f"groups names {empty!r}, which fits no parameter that is trained and not taken before.")
    found: list[dict[str, Any]] = [
        {"params": part, **config.groups[glob], "base": config.groups[glob].get("lr", config.lr)}
        for glob, part in members.items()
    ]
    return [*found, {"params": rest, "base": config.lr}] if rest else found
