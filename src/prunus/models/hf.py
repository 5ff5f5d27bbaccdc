"""Models in Hugging Face folders: `hf:FOLDER`, with a config and weights, or a GGUF file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.errors import BadFile, BadInput, MissingExtra, first_line

PREFIX = "hf:"
PACKED = "prunus.safetensors"


def load_folder(folder: str | os.PathLike[str]) -> nn.Module:
    """The model of a Hugging Face folder, in evaluation mode, in float32 unless its config says otherwise.

    Args:
        folder: holds config.json and safetensors weights, or one GGUF file. Nothing is fetched from a network.

    Returns:
        A model of the class that the config names.

    Raises:
        BadFile: if the folder holds no model, or its weights do not fill the model.
        MissingExtra: if transformers (for GGUF also gguf) is not installed.
    """
    place = _folder(folder)
    transformers = _transformers()
    if (place / PACKED).is_file():
        raise BadInput(f"The folder {place} holds a compressed model: read it with prunus.sparse.load_pretrained.")
    quantised = _gguf(place)
    with quiet(transformers):
        try:
            if quantised is not None:
                options: dict[str, Any] = {"gguf_file": quantised.name, "dtype": torch.float32}
                return _filled(transformers.AutoModelForCausalLM, place, options)
            config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
            return _filled(model_class(config), place, {})
        except ImportError as error:
            raise MissingExtra("gguf and accelerate", "transformers", f"Reading {place}") from error
        except BadFile:
            raise
        except Exception as error:  # transformers raises many kinds for what is wrong with a folder
            raise BadFile(f"The folder {place} cannot be read as a model ({first_line(error).rstrip('.')}).") from error


def model_class(config: Any) -> Any:
    """The class that a config names, or the library's choice for it."""
    transformers = _transformers()
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
        kind = str(getattr(config, "model_type", "")).replace("-", "_")
        try:  # parts of models, such as the encoder of Whisper, stand in the file of their kind alone
            return getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), name)
        except (ImportError, AttributeError):
            continue
    return transformers.AutoModel


def tokenizer_of(folder: str | os.PathLike[str]) -> Any:
    """The tokenizer beside a model.

    Raises:
        BadFile: if there is none.
    """
    place, transformers = _folder(folder), _transformers()
    quantised = _gguf(place)
    options = {"gguf_file": quantised.name} if quantised is not None else {}
    with quiet(transformers):
        try:
            found = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, **options)
        except Exception as error:
            raise BadFile(f"The folder {place} holds no tokenizer that can be read ({first_line(error)}).") from error
    if len(found.get_vocab()) <= len(found.all_special_tokens):  # what transformers makes where no file is there
        raise BadFile(f"The folder {place} holds no tokenizer, which text needs: put its files beside the model's.")
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def _filled(kind: Any, place: Path, options: dict[str, Any]) -> nn.Module:
    model, info = kind.from_pretrained(place, local_files_only=True, output_loading_info=True, **options)
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadFile(
            f"The folder {place} lacks weights of {type(model).__name__}: {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more." if len(missing) > 3 else ".")
        )
    return model.eval()  # type: ignore[no-any-return]


def _folder(folder: str | os.PathLike[str]) -> Path:
    place = Path(folder)
    if place.is_file():
        raise BadFile(f"{place} is a file: give the model's folder, and weights that you wrote as --weights {place}.")
    if not place.is_dir():
        raise BadFile(f"There is no folder {place}: give the folder of a model, with config.json or a GGUF file in it.")
    return place


def _gguf(place: Path) -> Path | None:
    if (place / "config.json").is_file():
        return None
    found = sorted(place.glob("*.gguf"))
    if len(found) > 1:
        raise BadFile(f"The folder {place} holds {len(found)} GGUF files: leave one of them in it.")
    if not found:
        raise BadFile(f"The folder {place} holds no config.json and no GGUF file.")
    return found[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "transformers", "A model of Hugging Face") from None
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without the library's progress bars and advice; errors are raised, not printed."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
