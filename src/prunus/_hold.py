"""Zeros that stay zero while training.

Gradients are masked as soon as they are accumulated, so that momenta, second moments and the line search of LBFGS never
see a dropped coordinate; weights are masked again after each step, so that nothing an optimiser does on its own (an old
momentum, an update without a gradient) survives. Kept weights get the very updates they would get anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prunus.errors import BadInput

if TYPE_CHECKING:
    from prunus.masks import Masks


class Hold:
    """Keeps masked weights at +0.0 until `remove()` is called or the `with` block ends."""

    def __init__(self, masks: Masks, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(f"hold needs a torch optimizer as its second argument, not {type(optimizer).__name__}.")
        masks.apply_(model)
        self._pairs = [(p, ~masks[name].to(p.device)) for name, p in masks.parameters_of(model).items()]
        self._handles = [
            parameter.register_post_accumulate_grad_hook(_masked_gradient(dropped))
            for parameter, dropped in self._pairs
            if parameter.requires_grad
        ]
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        """Gradients that did not come from autograd (set by hand, unscaled, reduced) are masked here."""
        for parameter, dropped in self._pairs:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(dropped, 0.0)

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        for parameter, dropped in self._pairs:
            parameter.masked_fill_(dropped, 0.0)

    def remove(self) -> None:
        """Stop holding: the weights may change again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _masked_gradient(dropped: Tensor) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.masked_fill_(dropped, 0.0)

    return hook
