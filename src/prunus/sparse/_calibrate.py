"""Between which numbers the inputs of each layer lie, measured on data: the spans of integer products.

Seven bits over the whole range spend steps on a few large numbers. So each end is moved to where the squared error of a
sample of the inputs is least; what lies outside is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, batches, call
from prunus.errors import BadInput
from prunus.sparse._copies import as_example, layer_by_layer
from prunus.sparse._integer import quantise

SAMPLES = 512  # of the data that are read
KEPT = 1 << 16  # numbers by which the ends are chosen
SHARES = [1 - 0.05 * number for number in range(17)]  # of the range that are tried


class _Seen:
    """The range of a layer's inputs, and a sample of them."""

    def __init__(self) -> None:
        self.low, self.high, self.parts = 0.0, 0.0, list[Tensor]()

    def add(self, name: str, x: Tensor) -> None:
        values = x.detach().float().reshape(-1)
        if not values.numel():
            return
        low, high = (float(end) for end in torch.aminmax(values))
        if not (low > -torch.inf and high < torch.inf):
            raise BadInput(f"The inputs of layer {name!r} hold NaN or infinity on the calibration data.")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.parts.append(values[:: max(1, values.numel() // 4096)])  # the same ones every time

    def span(self) -> Tensor:
        sample = torch.cat(self.parts)
        sample = sample[:: max(1, sample.numel() // KEPT)][None]
        found, least = (self.low, self.high), _error(sample, (self.low, self.high))
        for end in (1, 0, 1):
            for share in SHARES:
                ends = (found[0], share * self.high) if end else (share * self.low, found[1])
                error = _error(sample, ends)
                if error < least:
                    found, least = ends, error
        return torch.tensor(found, dtype=torch.float32)


def _error(sample: Tensor, ends: tuple[float, float]) -> float:
    q, step, zero = quantise(sample, ends)
    return float(((q - zero) * step - sample).square().mean())


def find_spans(model: nn.Module, layers: Mapping[str, nn.Module], data: Any) -> dict[str, Tensor]:
    """The span of each of these layers of the model that the data reach.

    Args:
        model: The dense model, in evaluation mode.
        layers: Layers of it, by name.
        data: An example as `compress` takes it, or anything that `prunus.adapters.batches` reads.

    Returns:
        Two numbers for each layer that saw a tensor.
    """
    seen: dict[str, _Seen] = {name: _Seen() for name in layers}

    def note(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            first = inputs[0] if inputs else named.get("input")
            if isinstance(first, Tensor) and first.is_floating_point():
                seen[name].add(name, first)

        return hook

    handles = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with torch.no_grad(), layer_by_layer():
            _run(model, data)
    finally:
        for handle in handles:
            handle.remove()
    return {name: one.span() for name, one in seen.items() if one.parts}


def _run(model: nn.Module, data: Any) -> None:
    count = 0
    for batch in _batches(data):
        if isinstance(batch, Batch):
            call(model, batch)
            count += max(1, batch.size)
        else:
            batch.run(model)
            count += SAMPLES
        if count >= SAMPLES:
            break
    if not count:
        raise BadInput("The calibration data are empty: give some samples like those the model will meet.")


def _batches(data: Any) -> Iterator[Any]:
    if isinstance(data, Tensor):  # a batch of inputs, as an example is
        yield as_example(data)
        return
    yield from batches(data, size=64)
