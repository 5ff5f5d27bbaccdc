"""A model as a row of units that run one after the other, and a way to run each of them on its own.

A unit is a module that runs exactly once in a forward pass: a residual block, a transformer layer, or a single layer
where there is no such block. `UnitWalk` moves the activations of a data set through the units. It keeps the outputs of
the last unit only: the units before it are replaced for the moment by functions that return what they returned, so that
whatever lies between two units (embeddings, masks, pooling, reshaping) runs as the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, call
from prunus.errors import BadInput
from prunus.layers import Weight, listing
from prunus.recovery._parts import SettledParts, replaced_forward
from prunus.recovery._record import Stop, is_batch_norm
from prunus.recovery._shelf import Room, Shelf, map_tensors

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
_LISTS = (nn.ModuleList, nn.ModuleDict)
"""They hold modules and do not run themselves."""


# ------------------------------------------------------------------------------------------------------------- division


def divide(model: nn.Module, weights: Mapping[str, Weight], batch: Batch, skip: bool = False) -> list[str]:
    """The names of the units that hold `weights`, in the order in which they run on `batch`.

    Args:
        model: any module.
        weights: the weights to be pruned by parameter name, as `prunus.layers.prunable_weights` gives them.
        batch: a few samples that the model can run on, as `prunus.adapters.as_batch` makes them.
        skip: leave out what the batch never reaches, instead of refusing it.

    Returns:
        Module names; each of these modules runs exactly once in a forward pass.

    Raises:
        BadInput: the batch never reaches a weight, without `skip`.

    Example:
        >>> from prunus.adapters import as_batch
        >>> from prunus.layers import prunable_weights
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> prunus.recovery.blocks(model, prunable_weights(model), as_batch(torch.zeros(2, 8)))
        ['0', '2']
    """
    holders = {id(weight.module) for weight in weights.values()}
    names = _split(model, "", holders)
    order, counts = _order(model, batch)
    lost: list[str] = []
    while True:
        wrong = next((name for name in names if name and counts.get(name, 0) != 1), None)
        if wrong is None:
            break
        if not _is_reached(model, wrong, counts):
            lost.append(wrong)
            names.remove(wrong)
            continue
        above = wrong.rpartition(".")[0]  # runs several times: the module around it is the unit
        while above and not counts.get(above) and isinstance(model.get_submodule(above), _LISTS):
            above = above.rpartition(".")[0]
        names = [name for name in names if not _inside(name, above)] + [above]
    if lost and not skip:
        inside = {id(module) for name in lost for module in model.get_submodule(name).modules()}
        raise missed(weight.name for weight in weights.values() if id(weight.module) in inside)
    return sorted(names, key=lambda name: order.get(name, 0))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, a model runs as in evaluation; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _inside(name: str, above: str) -> bool:
    return not above or name == above or name.startswith(f"{above}.")


def _holds(module: nn.Module, holders: set[int]) -> int:
    return sum(id(inner) in holders for inner in module.modules())


def _split(module: nn.Module, name: str, holders: set[int]) -> list[str]:
    if id(module) in holders:
        return [name]
    if not _holds(module, holders):
        return []
    lists = [inner for inner in module.modules() if isinstance(inner, (nn.ModuleList, nn.Sequential))]
    runs = bool(name) and not isinstance(module, _LISTS)
    if runs and not any(sum(bool(_holds(child, holders)) for child in inner.children()) > 1 for inner in lists):
        return [name]
    parts = ((child, f"{name}.{key}" if name else key) for key, child in module.named_children())
    return [unit for child, path in parts for unit in _split(child, path, holders)]


def _order(model: nn.Module, batch: Batch) -> tuple[dict[str, int], dict[str, int]]:
    """When each module first runs, and how often."""
    order: dict[str, int] = {}
    counts: dict[str, int] = {}

    def seen(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            order.setdefault(name, len(order))
            counts[name] = counts.get(name, 0) + 1

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(seen(name)).remove)
        stack.enter_context(evaluating(model))
        with torch.no_grad():
            call(model, batch)
    return order, counts


def runs(model: nn.Module, batch: Batch) -> dict[str, int]:
    """How often each module runs in a forward pass."""
    return _order(model, batch)[1]


def _is_reached(model: nn.Module, name: str, counts: Mapping[str, int]) -> bool:
    attention = isinstance(model.get_submodule(name), nn.MultiheadAttention)
    return bool(counts.get(name)) or attention or _runs_unseen(model, name)


def missed(names: Iterable[str]) -> BadInput:
    """What is said of weights that the data do not reach and that are needed."""
    found = [repr(name) for name in names]
    them = "it" if len(found) == 1 else "them"
    return BadInput(
        f"The data never reach {listing(found, 20)}: the model does not use {them} on the first batch; exclude {them}, "
        "or give other data or larger batches."
    )


def _runs_unseen(model: nn.Module, name: str) -> bool:
    """Attention calls its output projection as a function, past the module's hooks."""
    above = name.rpartition(".")[0]
    return isinstance(model.get_submodule(above), nn.MultiheadAttention)


# ---------------------------------------------------------------------------------------------------------------- walk


class UnitWalk:
    """A model's activations on their way through its units; `outputs[i]` is what the last unit gave for batch i.

    `fixed` says that the model does not change on the way.
    """

    def __init__(
        self, model: nn.Module, units: Sequence[str], batches: Sequence[Batch], memory: float = 2e9, fixed: bool = False
    ) -> None:
        self.model, self.units, self.batches = model, list(units), batches
        self.modules = [model.get_submodule(name) for name in units]
        self.room = Room(memory)
        self.outputs = Shelf(self.room)
        self.fixed = fixed
        self.kept: dict[int, Shelf] = {}
        self.forms: list[dict[int, Any]] = []
        self.here = 0
        self.keep_all = False
        self.coming: Shelf | None = None
        self.counts: dict[str, int] | None = None
        self.parts = SettledParts(self.room)
        self.unread = Unread()

    @property
    def module(self) -> nn.Module:
        """The unit to be run next."""
        return self.modules[self.here]

    def inputs(self, index: int) -> Inputs:
        """What batch number `index` brings to the present unit."""
        found: list[Inputs] = []

        def catch(*args: Any, **kwargs: Any) -> Any:
            found.append((args, kwargs))
            raise Stop

        with ExitStack() as stack:
            for number in range(self.here):
                stack.enter_context(replaced_forward(self.modules[number], self._replay(number, index)))
            stack.enter_context(replaced_forward(self.module, catch))
            with suppress(Stop):
                call(self.model, self.batches[index])
        if not found:
            raise BadInput(
                f"The data never reach {self.units[self.here]!r}: the model does not run it on every batch; exclude it."
            )
        return found[0]

    def _replay(self, number: int, index: int) -> Callable[..., Any]:
        if number == self.here - 1 and not self.keep_all:
            return lambda *args, **kwargs: self.outputs.copy(index)  # a model may work in place
        if number in self.kept:
            return lambda *args, **kwargs: self.kept[number].copy(index)
        return lambda *args, **kwargs: map_tensors(self.forms[number][index], self.unread)

    def run(self, index: int) -> Any:
        """The output of the present unit on batch number `index`."""
        args, kwargs = self.inputs(index)
        return self.call(index, args, kwargs)

    def call(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of the present unit for inputs of batch number `index`; settled parts run once for each batch."""
        with self.parts.replaced(index):
            return self.module(*args, **kwargs)

    def to_end(self, index: int) -> Any:
        """What the whole model gives for batch number `index`; it runs from the present unit on."""
        with ExitStack() as stack:
            for number in range(self.here):
                stack.enter_context(replaced_forward(self.modules[number], self._replay(number, index)))
            return call(self.model, self.batches[index])

    def settle(self, done: Iterable[Tensor], waiting: Iterable[Tensor]) -> None:
        """Parts of the present unit with weights that are `done`, none `waiting` and no batch norm change no more.

        From now on they run once for each batch and their outputs are kept, as far as there is room.
        """
        self.parts.settle(self._fixed(done, waiting))

    def close(self, layer: nn.Module, done: Iterable[Tensor], waiting: Iterable[Tensor]) -> None:
        """The same for parts that are settled once `layer` has its new weight, and that end with it.

        Until then the layer's inputs are kept, so that `finish` needs the layer alone to make the part's outputs.
        """
        around = [part for part in self._fixed(done, waiting) if any(inner is layer for inner in part.modules())]
        self.parts.ending = (around[0], layer) if around and around[0] is not layer else None

    def finish(self) -> None:
        """Run the layer named in `close` on the inputs kept, now that it has its new weight."""
        self.parts.finish()

    def _fixed(self, done: Iterable[Tensor], waiting: Iterable[Tensor]) -> list[nn.Module]:
        """The largest parts of the present unit with weights that are done, none waiting and no batch norm."""
        ready, open_ = {id(weight) for weight in done}, {id(weight) for weight in waiting}
        if self.counts is None:
            self.counts = runs(self.model, self.batches[0])
        unit, chosen = self.units[self.here], dict[str, nn.Module]()
        for name, part in self.module.named_modules(prefix=unit):
            holds = {id(parameter) for parameter in part.parameters()}
            fixed = holds & ready and not holds & open_ and not any(map(is_batch_norm, part.modules()))
            if name != unit and fixed and self.counts.get(name) == 1 and not any(_inside(name, up) for up in chosen):
                chosen[name] = part
        return list(chosen.values())

    def advance(self) -> None:
        """Run the present unit on all batches and move on to the next."""
        for index in range(len(self.batches)):
            self.store(index, self.run(index))
        self.move_on()

    def store(self, index: int, output: Any) -> None:
        """Keep what the present unit gave for batch number `index`; its input for that batch is not needed any more."""
        if self.coming is None:
            self.coming = Shelf(self.room) if self.keep_all else self.outputs
            self.forms.append({})
        self.forms[-1][index] = map_tensors(output, _form)
        self.coming[index] = output
        self.parts.forget(index)

    def move_on(self) -> None:
        """Go to the next unit: the output of the present one is stored for every batch."""
        assert self.coming is not None
        self.kept[self.here] = self.outputs = self.coming
        if not self.keep_all:
            self.kept = {}
        self.coming = None
        self.parts.clear()
        self.here += 1


def _form(tensor: Tensor) -> Tensor:
    """What is kept of an output that no unit to come reads: its form; of lengths and places the numbers too."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.empty_like(tensor, device="meta")
    return tensor.detach().clone()


class Unread:
    """Makes what stands for outputs that no unit to come reads (`looks_back` has seen to it): NaN.

    The model may work on them in place, so each is a real tensor. All share memory until one was written to.
    """

    def __init__(self) -> None:
        self.filled: dict[torch.dtype, tuple[Tensor, int]] = {}

    def __call__(self, form: Tensor) -> Tensor:
        if not form.is_meta:
            return form.clone()
        values, version = self.filled.get(form.dtype, (form.new_empty(0, device="cpu"), 0))
        if values._version != version or len(values) < form.numel():
            values = torch.full((form.numel(),), torch.nan, dtype=form.dtype)
            self.filled[form.dtype] = values, values._version
        return values.as_strided(form.shape, form.stride())
