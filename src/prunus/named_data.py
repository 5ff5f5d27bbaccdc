"""Data sets as commands and studies name them, read as the model at hand needs them."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, Subset

from prunus._by_path import import_object, is_import_path


@functools.lru_cache(maxsize=4)
def read_data(name: str, split: str, folder: str | None, model: str) -> Any:
    """One part of a data set by name, or of the user's own: "package.module:dataset", a text file, a folder of images.

    Where the model is named as hf:FOLDER, text is read with its tokenizer, and images are sized as the folder says.
    What has no parts of its own is parted here, always in the same way: see `aside`.
    """
    from prunus.data import load

    if has_parts(name):
        return load(name, split=split, folder=folder)
    rows = _whole(name, folder, model)
    held = set(aside(rows))
    if not held:
        return rows
    places = [place for place in range(len(rows)) if (place in held) == (split != "train")]
    return [rows[place] for place in places] if isinstance(rows, list) else Subset(rows, places)


def has_parts(name: str) -> bool:
    """Whether a data set brings its own training and test part: not files, nor what takes no `split`."""
    from prunus.data import names
    from prunus.data.own import is_own

    if name in names():
        return True
    if is_own(name):
        return False
    if not is_import_path(name):
        return True  # no data set at all, as reading it will say
    found = import_object(name, "data set")
    if isinstance(found, Dataset) or not callable(found):
        return False
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return True
    return "split" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def aside(rows: Any) -> list[int]:
    """The places of the fifth to measure on, of ten samples or more; none of fewer, which are trained and measured on.

    The fifth is drawn once and for all from the whole, of each class alike where samples in a list say theirs; of
    running text, whose neighbours belong together, it is the last.
    """
    count = len(rows)
    if count < 10 or isinstance(rows, Mapping):
        return []
    if _is_running(rows[0]):
        return list(range(count - count // 5, count))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    if isinstance(rows, list):
        order.sort(key=lambda place: _class(rows[place]))
    return sorted(order[4::5])


@functools.lru_cache(maxsize=2)
def _whole(name: str, folder: str | None, model: str) -> Any:
    from prunus.data import load
    from prunus.data.own import decoder_start_of, is_own, is_text, load_own, pictures_of
    from prunus.models.hf import PREFIX, tokenizer_of

    if not is_own(name):
        return load(name, folder=folder)
    if not model.startswith(PREFIX):
        return load_own(name)
    place = model.removeprefix(PREFIX)
    if is_text(name):
        return load_own(name, tokenizer_of(place), decoder_start=decoder_start_of(place))
    return load_own(name, pictures=pictures_of(place))


def _is_running(sample: Any) -> bool:
    """Whether a sample is text without a label of its own: what a language model is to predict is the text itself."""
    if isinstance(sample, Mapping):
        label = _label(sample)
        return "input_ids" in sample and (label is None or numpy.shape(label) == numpy.shape(sample["input_ids"]))
    return isinstance(sample, torch.Tensor) and sample.dim() == 1 and not sample.is_floating_point()


def _label(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return sample.get("labels", sample.get("label"))
    return sample[-1] if isinstance(sample, tuple) else None


def _class(sample: Any) -> int:
    """The class of a sample; 0 where its label is no whole number."""
    try:
        return operator.index(_label(sample))
    except TypeError:
        return 0
