"""How far the outputs of packed layers are from those of the dense ones, on what the layers really see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.sparse._copies import as_example, layer_by_layer


def output_errors(
    model: nn.Module, packed: Mapping[str, nn.Module], norms: Mapping[str, nn.Module], example: Any
) -> dict[str, float]:
    """For each layer the root mean square of (packed - dense) over that of dense, over all its calls on the example.

    Args:
        model: The dense model.
        packed: What could stand in place of some of its layers, by name.
        norms: Batch norms that are part of the packed layer, by the layer's name.
        example: An input, a tuple of inputs, or a mapping of named ones.

    Returns:
        The errors by layer; a layer that is not called, or gives no tensor, is missing.
    """
    off: dict[str, float] = {}
    size: dict[str, float] = {}

    def compare(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            if not isinstance(output, Tensor):
                return
            expected = norms[name](output) if name in norms else output
            found = packed[name](*inputs, **named)
            off[name] = off.get(name, 0.0) + float((found.double() - expected.double()).square().sum())
            size[name] = size.get(name, 0.0) + float(expected.double().square().sum())

        return hook

    handles = [model.get_submodule(name).register_forward_hook(compare(name), with_kwargs=True) for name in packed]
    try:
        with torch.no_grad(), layer_by_layer():
            as_example(example).run(model)
    finally:
        for handle in handles:
            handle.remove()
    return {name: (off[name] / size[name]) ** 0.5 if size[name] else float(off[name] > 0) for name in off}
