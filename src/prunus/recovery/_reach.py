"""Weights that a model never uses on the data: there is nothing to fit them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import nn

from prunus.adapters import Batch, call
from prunus.layers import Weight
from prunus.recovery._calibration import head
from prunus.recovery._record import Recorder, Stop, Use, plain_layers
from prunus.recovery._units import evaluating, missed


def never_reached(model: nn.Module, weights: Mapping[str, Weight], batches: Sequence[Batch]) -> list[str]:
    """The names of the weights that no batch is multiplied with. Where all are met, two samples tell."""
    waiting = dict(weights)

    def see(use: Use) -> None:
        waiting.pop(use.weight.name, None)
        if not waiting:
            raise Stop

    def look(batch: Batch) -> None:
        with Recorder(weights.values(), see), suppress(Stop):
            call(model, batch)

    with evaluating(model), plain_layers(model), torch.no_grad():
        with suppress(Exception):  # a model may ask for whole batches
            look(head(batches[0], 2))
        for batch in batches:
            if waiting:
                look(batch)
    if len(waiting) == len(weights):
        raise missed(waiting)
    return list(waiting)
