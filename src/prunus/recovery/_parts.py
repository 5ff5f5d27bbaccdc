"""Parts of a unit that change no more: they run once for each batch, and what they gave is kept.

The weights of a unit get their new values one after the other, and for each of them the unit runs on all batches. So
most of what runs would be computed several times. A part may lie inside another: what the inner one gave is kept until
the outer one has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prunus.recovery._record import Stop, storage, unseen
from prunus.recovery._shelf import Room, Shelf, leaves, map_tensors


class SettledParts:
    """What parts of the present unit gave, by part and number of the batch, in a room shared with the unit's inputs.

    `ending` is a part that ends with a layer whose weight is still to change: (part, layer); `waiting` holds the inputs
    of that layer, `forms` what becomes of its outputs.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.known: dict[nn.Module, Shelf] = {}
        self.ending: tuple[nn.Module, nn.Module] | None = None
        self.waiting, self.forms = Shelf(room), dict[int, Any]()
        self.inside: list[tuple[Shelf, Any]] = []  # what parts inside of `ending` gave while it runs
        self.depth = 0
        self.stopping = False

    def settle(self, parts: Sequence[nn.Module]) -> None:
        """These parts change no more; what is known of parts inside of them stays until they have run."""
        old = {part: outputs for part, outputs in self.known.items() if outputs and part not in parts}
        self.known = {part: self.known.get(part, Shelf(self.room)) for part in parts} | old

    @contextmanager
    def replaced(self, index: int) -> Iterator[None]:
        """Inside, settled parts give what they gave before for batch number `index`."""
        self.depth, self.stopping, self.inside = 0, False, []
        try:
            with ExitStack() as stack:
                for part, outputs in self.known.items():
                    again = self._again(part, outputs, index)
                    stack.enter_context(replaced_forward(part, again))
                if self.ending is not None:
                    self._watch(stack, *self.ending, index)
                yield
        finally:  # a forward pass may be stopped
            with unseen():
                for outputs, value in self.inside:
                    outputs[index] = value
            self.inside = []

    def stop(self) -> None:
        """End the forward pass: now, or when the settled part that runs has given its output."""
        if not self.depth:
            raise Stop
        self.stopping = True

    def forget(self, index: int) -> None:
        """The unit has its output for this batch."""
        for outputs in self.known.values():
            outputs.drop(index)

    def clear(self) -> None:
        """Forget everything."""
        for shelf in (*self.known.values(), self.waiting):
            shelf.clear()
        self.known, self.ending, self.forms = {}, None, {}

    def finish(self) -> None:
        """Run the ending layer on the inputs that were kept: the part's outputs, without what comes before in it."""
        if self.ending is None:
            return
        part, layer = self.ending
        outputs = self.known.setdefault(part, Shelf(self.room))
        for index in list(self.waiting.items):
            made = layer(self.waiting.copy(index))
            self.waiting.drop(index)
            outputs[index] = map_tensors(self.forms.pop(index), partial(_instead, made))
        self.ending = None

    def _drop_inside(self, part: nn.Module, index: int) -> None:
        inside = set(part.modules()) - {part}
        for other, outputs in self.known.items():
            if other in inside:
                outputs.drop(index)

    def _again(self, part: nn.Module, outputs: Shelf, index: int) -> Callable[..., Any]:
        """What a settled part computes: what it gave before, where that was kept."""
        if index in outputs:
            return lambda *args, **kwargs: outputs.copy(index)
        forward = part.forward
        within = self.ending is not None and part in set(self.ending[0].modules())

        def first(*args: Any, **kwargs: Any) -> Any:
            given = leaves((args, kwargs))
            versions, places = [tensor._version for tensor in given], set(map(_place, given))
            self.depth += 1
            output = forward(*args, **kwargs)
            self.depth -= 1
            # A part that works in place, or gives what it was given, does more than return new tensors.
            alone = versions == [tensor._version for tensor in given] and places.isdisjoint(map(_place, leaves(output)))
            if alone:
                self._drop_inside(part, index)
                with unseen():
                    if within:  # needed no more if the inputs of the ending layer can be kept
                        self.inside.append((outputs, map_tensors(output, lambda tensor: tensor.detach().clone())))
                    else:
                        outputs[index] = output
            if self.stopping and not self.depth:
                raise Stop
            return output

        return first

    def _watch(self, stack: ExitStack, part: nn.Module, layer: nn.Module, index: int) -> None:
        """Keep the inputs of `layer` if its output is all that `part` gives."""
        caught: list[tuple[Tensor, int, Any]] = []
        whole, single = part.forward, layer.forward

        def catch(*args: Any, **kwargs: Any) -> Any:
            output = single(*args, **kwargs)
            if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs and args[0].layout is torch.strided:
                caught.append((args[0], args[0]._version, output))
            return output

        def ends(*args: Any, **kwargs: Any) -> Any:
            given = leaves((args, kwargs))
            versions = [tensor._version for tensor in given]
            output = whole(*args, **kwargs)
            made = leaves(output)
            if len(caught) != 1 or len(made) != 1 or made[0] is not caught[0][2]:
                return output
            inputs, version, _ = caught[0]
            same = inputs._version == version and versions == [tensor._version for tensor in given]
            if same:
                with unseen():
                    self.waiting[index], self.forms[index] = inputs, map_tensors(output, _empty)
                self.inside = []
                self._drop_inside(part, index)
            return output

        stack.enter_context(replaced_forward(layer, catch))
        stack.enter_context(replaced_forward(part, ends))


def _instead(made: Tensor, _: Tensor) -> Tensor:
    return made


def _empty(tensor: Tensor) -> Tensor:
    return tensor.new_empty(0)


def _place(tensor: Tensor) -> int:
    return storage(tensor) if tensor.layout is torch.strided else id(tensor)


@contextmanager
def replaced_forward(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Inside, `module` computes `function`."""
    own = module.__dict__.get("forward")
    module.forward = function
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
