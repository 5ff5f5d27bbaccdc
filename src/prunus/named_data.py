"""Data sets as commands and studies name them, read as the model at hand needs them."""

from __future__ import annotations

import functools
from typing import Any


@functools.lru_cache(maxsize=4)
def read_data(name: str, split: str, folder: str | None, model: str) -> Any:
    """A data set by name, or the user's own: "package.module:dataset", a file of text, or a folder of images.

    Where the model is named as hf:FOLDER, text is read with its tokenizer, and images are sized as the folder says.
    """
    from prunus.data import load, names
    from prunus.data.own import decoder_start_of, is_own, is_text, load_own, pictures_of
    from prunus.models.hf import PREFIX, tokenizer_of

    if name in names() or not is_own(name):
        return load(name, split=split, folder=folder)
    if not model.startswith(PREFIX):
        return load_own(name)
    place = model.removeprefix(PREFIX)
    if is_text(name):
        return load_own(name, tokenizer_of(place), decoder_start=decoder_start_of(place))
    return load_own(name, pictures=pictures_of(place))
