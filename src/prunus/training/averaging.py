"""A running mean of the weights (EMA): less noise than the last step's, and often a better network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prunus.layers import load_state_tensors, state_tensors
from prunus.training.history import Callback

if TYPE_CHECKING:
    from prunus.training.loop import Run


class Averaging(Callback):
    """Keeps mean <- d mean + (1 - d) weights after every step, with d = min(decay, (1 + n) / (10 + n)) at step n.

    Weights and the statistics of norms take part, whole numbers are copied. The mean obeys the masks of the run: what
    they drop later is dropped from the mean too.
    """

    name = "ema"

    def __init__(self, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.values: dict[str, Tensor] = {}

    def start(self, run: Run) -> None:
        if not self.values:
            self.values = {name: value.detach().clone() for name, value in state_tensors(run.model).items()}

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        self.steps += 1
        part = 1.0 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, value in state_tensors(run.model).items():
            if value.is_floating_point():
                self.values[name].lerp_(value, part)
            else:
                self.values[name].copy_(value)

    @torch.no_grad()
    def leave(self, run: Run) -> None:
        """Put the mean into the model."""
        if self.steps:
            load_state_tensors(run.model, self.values)
            if run.masks is not None:
                run.masks.apply_(run.model)

    @contextmanager
    def shown(self, run: Run) -> Iterator[None]:
        """Inside, the model holds the mean."""
        own = {name: value.detach().clone() for name, value in state_tensors(run.model).items()}
        self.leave(run)
        try:
            yield
        finally:
            load_state_tensors(run.model, own)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, **{f"mean/{name}": value for name, value in self.values.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.values = {key.removeprefix("mean/"): value for key, value in state.items() if key.startswith("mean/")}
