"""What a module does while it runs that no graph of operators shows."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus._torch import compiled_calls, pytree
from prunus.errors import BadInput

_READS = (
    *("item", "tolist", "numpy", "__array__", "__dlpack__", "__bool__", "__float__", "__int__", "__index__"),
    *("__contains__", "equal", "allclose", "is_nonzero", "__complex__", "__repr__", "__str__", "__format__"),
    *("data_ptr", "storage", "untyped_storage", "__reduce_ex__"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
)
"""Functions that take the values of a tensor out into Python: as numbers, text, memory, or the size of a result."""

_SEEN = "_prunus_depends_on_the_input"


class _Watch(TorchFunctionMode):
    """Notes the functions of torch that a forward calls, and those that take values out of what marked tensors make."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.reads: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self.called.append(name)
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Tensor) and hasattr(leaf, _SEEN) for leaf in leaves):
            if name in _READS or _chooses(name, args):
                self.reads.append(name.strip("_"))
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    setattr(leaf, _SEEN, True)
        return result


def _chooses(name: str, args: Any) -> bool:
    """Whether a call keeps the entries that a condition on values picks: their number is then a value too."""
    if name == "where":
        return len(args) == 1
    if name != "__getitem__":
        return False
    picked = pytree.tree_leaves(args[1])
    return any(isinstance(leaf, Tensor) and leaf.dtype is torch.bool and hasattr(leaf, _SEEN) for leaf in picked)


def check_run(model: nn.Module, inputs: Tensor, which: str) -> None:
    """Refuse a module whose forward does what its graph cannot show.

    Args:
        model: The module as it is.
        inputs: At least two inputs of its own type, (n, *shape).
        which: "original" or "pruned".

    Raises:
        BadInput: It takes values out of tensors, draws random numbers, or calls other functions for a single example.
    """
    one, two = _Watch(), _Watch()
    with torch.no_grad(), _unchanged_random(which), compiled_calls() as compiled:
        for count, watch in ((1, one), (2, two)):
            given = inputs[:count].clone()
            setattr(given, _SEEN, True)
            with watch:
                model(given)
    if compiled:
        raise BadInput(
            f"The {which} network calls a function of torch.compile, whose backend may compute something else: call "
            "the plain function in its forward."
        )
    for name in one.reads + two.reads:
        raise BadInput(
            f"The {which} network takes values of what it computes out of its tensors ({name}), where no certificate "
            "can follow: leave that out of its forward."
        )
    if one.called != two.called:
        raise BadInput(
            f"The {which} network does something else with one example than with several, so it cannot be certified."
        )


@contextlib.contextmanager
def _unchanged_random(which: str) -> Iterator[None]:
    before = _random_states()
    yield
    if _random_states() != before:
        raise BadInput(f"The {which} network draws random numbers while it runs, so it cannot be certified.")


def _random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    states: list[Any] = [random.getstate(), torch.get_rng_state().tolist()]
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states += [kind, keys.tolist(), rest]
    return states
