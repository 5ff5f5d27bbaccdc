"""An example input, and how a model is called with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus._torch import pytree
from prunus.errors import BadInput


@dataclass(frozen=True, eq=False)
class Example:
    """Arguments for one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def whole(self) -> Any:
        """In the form that `prunus.graph.read` takes."""
        return self.kwargs if not self.args else self.args


def example_for(model: nn.Module, given: Any) -> Example:
    """Arguments from a tensor, a tuple of them, or a mapping by name; caches of generated text are switched off."""
    if given is None:
        raise BadInput("shrink needs an example input: give example=, a tensor, a tuple, or a dictionary by name.")
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    if isinstance(given, Mapping):
        args, kwargs = (), dict(given)
    elif isinstance(given, (tuple, list)):
        args, kwargs = tuple(given), {}
    else:
        args, kwargs = (given,), {}
    if not any(isinstance(value, Tensor) for value in pytree.tree_leaves((args, kwargs))):
        raise BadInput(f"The example holds no tensor; give what the model is called with, not {type(given).__name__}.")
    if args and kwargs:
        raise BadInput("The example mixes positional and named arguments; give all of them by name.")
    if "use_cache" not in kwargs and "use_cache" in inspect.signature(model.forward).parameters:
        kwargs["use_cache"] = False
    return Example(args, kwargs)


def outputs(model: nn.Module, example: Example) -> list[Tensor]:
    """All tensors a call returns."""
    with torch.no_grad():
        result = model(*example.args, **example.kwargs)
    if isinstance(result, Mapping):
        result = dict(result)
    return [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]


def run_once(model: nn.Module, example: Any) -> list[Tensor]:
    """The tensors that a model returns for an example, without gradients.

    Args:
        model: Any module.
        example: A tensor, a tuple, or a dictionary by name.

    Returns:
        All tensors among the outputs.

    Raises:
        BadInput: The example holds no tensor.

    Example:
        >>> import torch
        >>> [tuple(each.shape) for each in run_once(torch.nn.Linear(4, 2), torch.zeros(3, 4))]
        [(3, 2)]
    """
    return outputs(model, example_for(model, example))
