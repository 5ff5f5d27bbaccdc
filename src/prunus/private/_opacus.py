"""Opacus's optimizer with masks before clipping and noise only on what is kept; imported where Opacus is there."""

from __future__ import annotations

import math
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from prunus.errors import BadInput
from prunus.private.accounting import Meter, Release
from prunus.private.policies import Keep, Policy


class MaskedOptimizer(DPOptimizer):
    """A step: spend, draw masks from the batch's mean gradient, mask per-example gradients, clip, add noise, mask."""

    def __init__(self, optimizer: torch.optim.Optimizer, policy: Policy, keep: Keep, meter: Meter, **rest: Any) -> None:
        self.sampling: float = rest.pop("sampling")
        self.scheduled: bool = rest.pop("scheduled")
        super().__init__(optimizer, **rest)
        self.policy, self.keep, self.meter = policy, keep, meter
        self.steps_done = 0
        self.last_masks: list[Tensor] | None = None
        self._in_batch = False  # between the parts of a batch that a BatchMemoryManager has split

    @property
    def epsilon(self) -> float:
        """Privacy spent so far, at the budget's delta."""
        return self.meter.epsilon

    def next_release(self) -> Release:
        """What the next step will reveal about one record."""
        fraction = self.keep(self.steps_done)
        d = sum(p.numel() for p in self.params)
        index = self.policy.epsilon(d, fraction, self.steps_done)
        if self.scheduled and index > 0.0:
            # Up to the next power of 1.02: a schedule would make every step another release to compose.
            index = 1.02 ** math.ceil(math.log(index) / math.log(1.02))
        return Release(index, self.noise_multiplier, self.sampling)

    def pre_step(self, closure: Any = None) -> Any:
        if self._step_skip_queue and self.policy.needs_gradients:
            raise BadInput(
                "This choice of coordinates reads the whole batch, so batches cannot be split: use smaller ones, or "
                "'dense', 'random', masks or a WarmUp."
            )
        if not self._in_batch:
            # Charged before any gradient is used: a refused step has revealed nothing. Once for a split batch.
            self.meter.spend(self.next_release())
        self._mask_examples(draw=not self._in_batch)
        stepped = super().pre_step(closure)
        self._in_batch = not stepped
        if stepped:
            self.policy.after([p.grad for p in self.params if p.grad is not None], self.steps_done)
            self.steps_done += 1
        return stepped

    def _mask_examples(self, draw: bool) -> None:
        """Mask the per-example gradients; the parts of a split batch share the masks that its first part drew."""
        samples = self.grad_samples
        with torch.no_grad():
            if draw:
                mean = [p.detach() for p in self.params]
                if self.policy.needs_gradients:
                    mean = [sample.sum(dim=0) / (self.expected_batch_size or 1) for sample in samples]
                self.last_masks = self.policy.masks(mean, self.keep(self.steps_done), self.steps_done)
            if self.last_masks is not None:
                for parameter, sample, mask in zip(self.params, samples, self.last_masks):
                    # In place: per-example gradients are the largest thing in memory.
                    parameter.grad_sample = sample.mul_(mask)

    def add_noise(self) -> None:
        super().add_noise()
        if self.last_masks is not None:
            for parameter, mask in zip(self.params, self.last_masks):
                parameter.grad *= mask
