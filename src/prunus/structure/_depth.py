"""Whole residual blocks that leave: the layers of a ModuleList or Sequential without which the outputs change least.

A block may leave if it hands on something like its input when its own weights are zero: that is what a residual
connection does, whatever the class is called. While a choice is made the block's place is held by a `Skip`, so that
all names stay; `compact` takes the places out at the end and numbers the rest anew. The list then has an attribute
`kept_blocks` with the old numbers, which files and distillation read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch
from prunus.errors import BadInput
from prunus.structure._call import Example, outputs
from prunus.structure._recover import answers, distance, first_rows

ROWS = 64  # of the data, for one measurement
_AGAIN = 4  # the best blocks that are measured again after another one has left
_ALIKE = 0.5  # cosine of input and output with the block's own weights at zero


class Skip(nn.Module):
    """Stands where a block was, and hands on what it is given."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self.as_tuple = as_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        value = args[0] if args else next(iter(kwargs.values()))
        return (value,) if self.as_tuple else value


@dataclass(frozen=True)
class Gone:
    """A block that left, and the change of the outputs when it did (relative to their variation)."""

    name: str
    change: float


def residual_blocks(model: nn.Module, example: Example) -> dict[str, bool]:
    """Names of the blocks that may leave -> whether they return a tuple."""
    names = [
        f"{at}.{key}" if at else key
        for at, each in model.named_modules()
        if is_list(each) and len(each._modules) > 1
        for key in each._modules
    ]
    seen: dict[str, list[tuple[Any, Any]]] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            first = args[0] if args else next(iter(kwargs.values()), None)
            seen.setdefault(name, []).append((first, output))

        return hook

    handles = [model.get_submodule(name).register_forward_hook(look(name), with_kwargs=True) for name in names]
    try:
        outputs(model, example)
    finally:
        for handle in handles:
            handle.remove()
    found: dict[str, bool] = {}
    for name, calls in seen.items():
        given, result = calls[0]
        as_tuple = isinstance(result, tuple)
        value = result[0] if as_tuple and len(result) == 1 else result
        same = isinstance(value, Tensor) and isinstance(given, Tensor) and value.shape == given.shape
        if len(calls) == 1 and same and value.is_floating_point() and _hands_on(model, name, example):
            found[name] = as_tuple
    return {name: kind for name, kind in found.items() if not any(other.startswith(f"{name}.") for other in found)}


def is_list(module: nn.Module) -> bool:
    """Whether the members of a module are numbered, so that one may be missing."""
    plain = isinstance(module, (nn.Sequential, nn.ModuleList))
    return plain and all(key == str(number) for number, key in enumerate(module._modules))


def _hands_on(model: nn.Module, name: str, example: Example) -> bool:
    """Whether the block gives about its input when its products are zero."""
    block = model.get_submodule(name)
    own: list[nn.Parameter] = []
    for module in block.modules():
        here = list(module.parameters(recurse=False))
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or any(each.ndim > 1 for each in here):
            own += here
    if not own:
        return False
    before = [parameter.detach().clone() for parameter in own]
    alike: list[float] = []

    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()))
        value = output[0] if isinstance(output, tuple) else output
        alike.append(float(nn.functional.cosine_similarity(given.flatten().double(), value.flatten().double(), 0)))

    handle = block.register_forward_hook(hook, with_kwargs=True)
    try:
        with torch.no_grad():
            for parameter in own:
                parameter.zero_()
        outputs(model, example)
    finally:
        handle.remove()
        with torch.no_grad():
            for parameter, value in zip(own, before):
                parameter.copy_(value)
    return bool(alike) and alike[0] > _ALIKE


def leave(model: nn.Module, name: str, as_tuple: bool) -> nn.Module:
    """Put a `Skip` in a block's place; returns the block."""
    at, _, key = name.rpartition(".")
    parent = model.get_submodule(at)
    block = model.get_submodule(name)
    parent._modules[key] = Skip(as_tuple)
    return block


def _back(model: nn.Module, name: str, block: nn.Module) -> None:
    at, _, key = name.rpartition(".")
    model.get_submodule(at)._modules[key] = block


def remove_blocks(
    model: nn.Module,
    blocks: dict[str, bool],
    prices: dict[str, float],
    spare: float,
    example: Example,
    batches: Sequence[Batch],
    *,
    beyond: bool,
) -> list[Gone]:
    """Take out blocks of `model`, in place, while what they save is within `spare`.

    Args:
        model: A copy that may be changed.
        blocks: What `residual_blocks` found.
        prices: What each block costs.
        spare: How much is to be saved.
        example: What the model is called with.
        batches: Data to measure on; without any, the example.
        beyond: Go on until `spare` is reached or exceeded, because nothing else can be narrowed.
    """
    looked = [first_rows(batches[0], ROWS)] if batches else [_as_batch(example)]
    wanted = answers(model, looked)
    left = dict(blocks)
    gone: list[Gone] = []

    def change(name: str) -> float:
        block = leave(model, name, left[name])
        try:
            return distance(model, wanted, looked)
        finally:
            _back(model, name, block)

    known = {name: change(name) for name in left}
    while True:
        fits = [name for name in left if beyond or prices[name] <= spare]
        if not fits or spare <= 0:
            break
        ranked = sorted(fits, key=lambda name: known[name] / max(prices[name], 1e-300))
        if gone:
            for name in ranked[:_AGAIN]:
                known[name] = change(name)
            ranked[:_AGAIN] = sorted(ranked[:_AGAIN], key=lambda name: known[name] / max(prices[name], 1e-300))
        best = ranked[0]
        leave(model, best, left.pop(best))
        gone.append(Gone(best, known.pop(best)))
        spare -= prices[best]
    if beyond and spare > 0:
        raise BadInput(
            f"The model has {len(blocks)} residual blocks that can leave, too few for this fraction; ask for "
            "a larger one, or exclude less so that widths can do the rest."
        )
    return gone


def _as_batch(example: Example) -> Batch:
    return Batch(example.args, example.kwargs, None, 1)


def compact(model: nn.Module) -> nn.Module:
    """Take the places of blocks that left out of their lists, in place; the rest is numbered anew."""
    for module in list(model.modules()):
        children = list(module._modules.values())
        kept = [at for at, child in enumerate(children) if not isinstance(child, Skip)]
        if len(kept) < len(children):
            shorten(module, kept)
    return model


def shorten(container: nn.Module, kept: Sequence[int]) -> None:
    """Keep some members of a list, by number; they remember where they were."""
    children = [child for child in container._modules.values() if child is not None]
    former = getattr(container, "kept_blocks", tuple(range(len(children))))
    container._modules.clear()
    for new, old in enumerate(kept):
        container._modules[str(new)] = children[old]
        for module in children[old].modules():
            if getattr(module, "layer_idx", None) == old:
                module.layer_idx = new  # type: ignore[assignment]  # the number under which generation keeps this layer's keys and values
    container.kept_blocks = tuple(former[old] for old in kept)  # type: ignore[assignment]
