"""Compressed models of transformers in a folder: config and weights beside each other, and a loader of our own."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.errors import BadFile, BadInput, first_line
from prunus.models.hf import PACKED, model_class, quiet
from prunus.sparse._file import load, save


def offer_save_pretrained(model: nn.Module) -> None:
    """Let a compressed model of transformers write itself as `load_pretrained` reads it.

    The library's own method would write packed tensors under names that its loader does not know, and that loader
    would fill the model with random weights.
    """
    if hasattr(type(model), "save_pretrained") and hasattr(model, "config"):
        # Not a bound method: pickle would look that up by its name and find the library's own.
        model.save_pretrained = functools.partial(save_pretrained, model)  # type: ignore[assignment]


def save_pretrained(
    model: nn.Module,
    folder: str | os.PathLike[str],
    tokenizer: Any = None,
    **others: Any,
) -> None:
    """Write a compressed model of transformers to a folder: its config, and the packed weights.

    Args:
        model: as `prunus.compress` returned it.
        folder: is made where it does not exist.
        tokenizer: written beside the model, where given.
        others: options of the library's own method; none applies to packed weights, so they are refused.

    Raises:
        BadInput: if the model is not compressed, has no config, or the folder holds other weights.

    Example:
        >>> import transformers
        >>> sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
        >>> model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes))
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> prunus.sparse.save_pretrained(fast, "small")
        >>> prunus.sparse.load_pretrained("small").config.hidden_size
        32
    """
    if others:
        raise BadInput(f"A compressed model is written in one form only: leave out {', '.join(others)}.")
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        raise BadInput("This model has no config of transformers: write it with prunus.sparse.save.")
    place = Path(folder)
    dense = sorted(file.name for pattern in ("*.safetensors", "*.bin", "*.gguf") for file in place.glob(pattern))
    if any(name != PACKED for name in dense):
        raise BadInput(f"The folder {place} holds other weights ({dense[0]}): choose one of its own for this model.")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"The model cannot be written to {place}, as a file is in the way: name a folder.") from None
    config.architectures = [type(model).__name__]
    config.save_pretrained(place)
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(place)
    if tokenizer is not None:
        tokenizer.save_pretrained(place)
    save(model, place / PACKED)


def load_pretrained(folder: str | os.PathLike[str]) -> nn.Module:
    """The compressed model that `save_pretrained` wrote; dense weights are never built.

    Args:
        folder: with config.json and prunus.safetensors.

    Returns:
        The model, in evaluation mode.

    Raises:
        BadFile: if the folder does not hold such a model.

    Example:
        >>> import transformers
        >>> sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
        >>> model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes))
        >>> fast = prunus.compress(model, prunus.find_masks(model, 0.9), select="always")
        >>> prunus.sparse.save_pretrained(fast, "small")
        >>> again, words = prunus.sparse.load_pretrained("small"), torch.tensor([[1, 2, 3]])
        >>> torch.equal(again(words)[0], fast(words)[0])
        True
    """
    import transformers

    place = Path(folder)
    if not (place / PACKED).is_file():
        raise BadFile(f"The folder {place} holds no {PACKED}: it was not written by a compressed model.")
    with quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
            with torch.device("meta"):
                empty = model_class(config)._from_config(config)
        except Exception as error:
            raise BadFile(f"The folder {place} cannot be read as a model ({first_line(error)}).") from error
    model = load(place / PACKED, empty)
    if (place / "generation_config.json").is_file():
        found = transformers.GenerationConfig.from_pretrained(place, local_files_only=True)
        model.generation_config = found  # type: ignore[assignment]
    offer_save_pretrained(model)
    return model
