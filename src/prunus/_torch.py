"""Every private name of torch that Prunus uses, with the reason; check this file against a new release of torch.

Each has no public form in the releases we support (torch 2.9 to 2.13). Names of the peers that `prunus bench` times
(torch's own packed products) stand in `sparse/bench.py`: without them a row is missing, nothing else.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._C._functorch import peek_interpreter_stack
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad

# Nested arguments and outputs flattened as torch.export does it: the same order of leaves.
from torch.utils import _pytree as pytree

# Sees every operator that a forward runs, whichever function called it.
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "compiled_calls",
    "dispatch_modes",
    "empty_wrapper",
    "holds_for_every_batch",
    "is_mutable",
    "is_tracing",
    "pytree",
    "quiet_export",
    "transformed",
    "unset_fake_temporarily",
]
# HigherOrderOperator, OpOverload, OpOverloadPacket: the types of an exported graph's targets.
# is_tracing, dispatch_modes: kernels called directly are invisible to torch.jit.trace and to dispatch modes.
# unset_fake_temporarily: real constants are read while export runs under fake tensors.


@contextmanager
def quiet_export() -> Iterator[None]:
    """Without torch's messages while it exports a model: missing optional packages, advice, graphs it gave up on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # half a graph is printed, not logged
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def transformed() -> bool:
    """True inside torch.func (vmap, grad, jvp) or forward-mode differentiation, where our operators have no rules."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_mutable(operator: Any) -> bool:
    """Whether an operator changes one of its arguments, as its schema says."""
    return isinstance(operator, OpOverload) and bool(operator._schema.is_mutable)


def holds_for_every_batch(program: Any) -> bool:
    """Whether an exported program holds for every batch size of at least two.

    A branch on the batch size leaves a condition with the sizes' symbols. It is tried at small sizes, large ones, and
    around every number that stands in it.
    """
    modes = [getattr(node.meta.get("val"), "fake_mode", None) for node in program.graph.nodes]
    spaces = {id(mode.shape_env): mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None}
    for condition in [guard.expr for space in spaces.values() for guard in space.guards]:
        numbers = {abs(int(number)) for number in condition.atoms() if number.is_Integer}
        around = {number + step for number in numbers for step in (-1, 0, 1)} | {2 * number for number in numbers}
        for size in {*range(2, 40), 100, 1001, 65536, 10**6 + 3, *around}:
            if size >= 2 and condition.subs(dict.fromkeys(condition.free_symbols, size)) != True:  # noqa: E712
                return False
    return True


@contextmanager
def compiled_calls() -> Iterator[list[str]]:
    """Notes the calls of functions that torch.compile has wrapped, which no mode of torch sees."""
    found: list[str] = []
    before = sys.getprofile()

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "compile_wrapper" and "_dynamo" in code.co_filename:
            found.append(code.co_name)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def empty_wrapper(cls: type, shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor of a subclass that has a shape and no memory of its own."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
