"""One random input for a model, where its shape can be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters._calls import forward_names
from prunus.errors import BadInput


def example_input(
    model: nn.Module,
    *,
    batch: int = 1,
    shape: Sequence[int] | None = None,
    tokens: int | None = None,
    seed: int = 0,
) -> Any:
    """One random input that the model can run on.

    Args:
        model: a network of the zoo, a model of transformers, or any that begins with a linear layer; for others give
            `shape` or `tokens`.
        batch: how many samples.
        shape: the shape of one sample, as (3, 224, 224).
        tokens: so many token ids for each sample.
        seed: of the numbers.

    Returns:
        A tensor, or {name: tensor} for models that take their inputs by name.

    Raises:
        BadInput: if the shape is not given and cannot be known.

    Example:
        >>> import torch
        >>> example_input(torch.nn.Sequential(torch.nn.Linear(4, 2)), batch=3).shape
        torch.Size([3, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    if batch < 1 or (tokens is not None and tokens < 1) or (shape is not None and min(shape, default=0) < 1):
        raise BadInput("The sizes of an example input must be at least 1.")
    if shape is not None and tokens is not None:
        raise BadInput("An example input is either numbers of a shape or token ids, not both: give one of them.")
    config = getattr(model, "config", None)
    if hasattr(config, "model_type"):
        return _of_transformers(model, config, batch, shape, tokens, generator)
    if tokens is not None:
        return torch.randint(_vocabulary(model), (batch, tokens), generator=generator)
    if shape is None:
        shape = getattr(model, "input_shape", None)
    leaf = _first_layer(model)
    if shape is None and isinstance(leaf, nn.Linear):
        shape = (leaf.in_features,)
    if shape is None:
        raise BadInput(
            f"The shape of the inputs of {type(model).__name__} cannot be known: give an example, or its shape "
            "(--input 3x224x224, or --input-ids 128 on the command line)."
        )
    if isinstance(leaf, nn.Embedding) and len(shape) == 1:
        return torch.randint(leaf.num_embeddings, (batch, *shape), generator=generator)
    return torch.randn((batch, *shape), generator=generator)


def _first_layer(model: nn.Module) -> nn.Module | None:
    """The first module that holds weights, in the order in which they were defined."""
    return next((module for module in model.modules() if any(True for _ in module.parameters(recurse=False))), None)


def _vocabulary(model: nn.Module) -> int:
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not sizes:
        raise BadInput(f"{type(model).__name__} has no embedding, so it takes no token ids: give a shape instead.")
    return max(sizes)


def _of_transformers(
    model: nn.Module, config: Any, batch: int, shape: Sequence[int] | None, tokens: int | None, generator: Any
) -> dict[str, Tensor]:
    name = getattr(model, "main_input_name", "input_ids")
    names = forward_names(model)[0]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def numbers(*sides: int) -> Tensor:
        return torch.randn((batch, *sides), generator=generator).to(dtype)

    if name == "pixel_values":
        return {name: numbers(*(shape if shape is not None else _pixels(config)))}
    vocabulary = getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None)
    length = tokens if tokens is not None else shape[0] if shape is not None and name == "input_ids" else 16
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if tokens is None and isinstance(most, int):
        length = min(length, most)

    def ids() -> Tensor:
        if vocabulary is None:
            raise BadInput(f"The vocabulary of {type(model).__name__} is not in its config: give an example.")
        return torch.randint(1, max(2, vocabulary), (batch, length), generator=generator)

    if name == "input_ids":
        first = ids()
        found = {name: first, "attention_mask": torch.ones_like(first)}
        if hasattr(model, "logit_scale") and hasattr(config, "vision_config"):  # compares texts with pictures
            found["pixel_values"] = numbers(*_pixels(config.vision_config))
    elif shape is not None:
        found = {name: numbers(*shape)}
    else:
        raise BadInput(
            f"{type(model).__name__} takes {name}, of a shape that only you know: give it (--input 80x3000 on the "
            "command line)."
        )
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        found["decoder_input_ids"] = ids()
    return {key: value for key, value in found.items() if key in names}


def _pixels(config: Any) -> tuple[int, ...]:
    side = getattr(config, "image_size", None) or 224
    sides = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    return (getattr(config, "num_channels", 3), *sides)
