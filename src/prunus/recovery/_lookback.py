"""Which units a model reads the outputs of, beside the unit right before: skip connections, gates, routing.

Found by following what is computed from each unit's output, not by its values: a comparison, an index or a branch of
the program hides values, but it is a read like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from prunus._torch import TorchDispatchMode, pytree
from prunus.adapters import Batch, call
from prunus.errors import BadInput
from prunus.recovery._parts import replaced_forward
from prunus.recovery._record import Stop
from prunus.recovery._shelf import leaves, map_tensors

_aten = torch.ops.aten
_FORM_ONLY = frozenset(
    getattr(_aten, name)
    for name in (
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
        "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full",
    )
)  # fmt: skip
"""They read the shape of what they are given and none of its numbers."""
_INDEXED = (_aten.index, _aten.index_put, _aten.index_put_, _aten._unsafe_index, _aten._unsafe_index_put)
_SHOWN = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
"""Operators whose numbers the program sees, or which give as many as the numbers say."""
_LEAVING = ("tolist", "numpy", "__array__", "data_ptr", "__dlpack__")
"""Methods of tensors that give their numbers to code outside of torch."""


def looks_back(model: nn.Module, units: Sequence[str], batch: Batch, end: bool = False) -> bool:
    """Does a unit need the output of another than the one before it, as skip connections between distant units do?

    Also if that output only decides something: which numbers are taken, how many there are, how the program goes on.
    With `end` it also counts if the model's own output needs another than that of the last unit, as that of branches
    that meet there.

    Raises:
        BadInput: if the model itself gives NaN or Inf on the batch.
    """
    reads = _Reads(last=len(units) - 1, end=end)
    with ExitStack() as stack:
        for number, name in enumerate(units):
            module = model.get_submodule(name)
            stack.enter_context(replaced_forward(module, _followed(module.forward, reads, number, name)))
        stack.enter_context(_Leaving(reads))
        stack.enter_context(reads)
        with suppress(Stop):
            output = call(model, batch)
            if end:
                reads.given(leaves(output), len(units))
    return reads.back


def _followed(forward: Callable[..., Any], reads: _Reads, number: int, name: str) -> Callable[..., Any]:
    """A unit's own forward, with what it is given looked at and what it gives marked as its output."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = leaves((args, kwargs))
        reads.given(given, number)
        places = {_memory(tensor) for tensor in given if _has_memory(tensor)}
        reads.inside = number
        output = map_tensors(forward(*args, **kwargs), lambda tensor: reads.own(tensor, number, places))
        if any(tensor.is_floating_point() and bool(torch.isnan(tensor).any()) for tensor in leaves(output)):
            raise BadInput(  # -inf stands in masks by design
                f"The activations after {name!r} hold NaN or Inf on the first batch: mend the model or the data."
            )
        reads.inside = None
        if number == reads.last and not reads.end:
            raise Stop
        return output

    return run


def _memory(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


class _Reads(TorchDispatchMode):
    """Follows the outputs of units, by number, through all that is computed from them; `back` says what was found.

    Marks belong to memory, so that views and work in place keep them. `inside` is the unit that runs.
    """

    def __init__(self, last: int, end: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.last, self.end = last, end
        self.back = False
        self.inside: int | None = None
        self.marks: dict[StorageWeakRef, frozenset[int]] = {}

    def given(self, tensors: Iterable[Any], number: int) -> None:
        """Unit `number`, or the end of the model, takes these."""
        if any(unit != number - 1 for unit in self.units(tensors)):
            self.found()

    def decided(self, units: Iterable[int]) -> None:
        """Numbers from these units say how the program between the units goes on, also on its way to later units."""
        later = self.last + self.end
        if self.inside is None and any(unit + 1 < later for unit in units):
            self.found()

    def found(self) -> None:
        """Nothing more is to be learnt."""
        self.back = True
        raise Stop

    def units(self, values: Iterable[Any]) -> frozenset[int]:
        """The units that any of these was computed from."""
        return frozenset().union(*(self.marks.get(_memory(each), ()) for each in values if _has_memory(each)))

    def own(self, tensor: Tensor, number: int, given: set[StorageWeakRef]) -> Tensor:
        """An output of a unit, marked as that; one in the memory of what the unit was given gets memory of its own."""
        if not _has_memory(tensor):
            self.found()  # it cannot be followed
        if _memory(tensor) in given:
            tensor = tensor.detach().clone()
        self.marks[_memory(tensor)] = frozenset([number])
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        units = self.units(pytree.tree_leaves((args, kwargs)))
        if not units or func.overloadpacket in _FORM_ONLY:
            return func(*args, **kwargs)
        if self.inside is not None and any(unit < self.inside - 1 for unit in units):
            self.found()
        if func.overloadpacket in _INDEXED:  # as many places as a mask has True
            masks = [each for each in pytree.tree_leaves(args[1]) if isinstance(each, Tensor) and not _counts(each)]
            self.decided(self.units(masks))
        elif not _SHOWN.isdisjoint(func.tags):
            self.decided(units)
        output = func(*args, **kwargs)
        for made in pytree.tree_leaves(output):
            if _has_memory(made):
                self.marks[_memory(made)] = units | self.marks.get(_memory(made), frozenset())
            elif isinstance(made, Tensor):
                self.found()  # it cannot be followed
        return output


def _counts(index: Tensor) -> bool:
    return index.dtype not in (torch.bool, torch.uint8)


class _Leaving(TorchFunctionMode):
    """Sees numbers go where torch sees them no more: into lists and arrays."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _LEAVING:
            self.reads.decided(self.reads.units(args[:1]))
        return func(*args, **(kwargs or {}))
