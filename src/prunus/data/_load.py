"""Data sets by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

from torch.utils.data import Dataset

from prunus._by_path import describe as describe_error
from prunus._by_path import import_object, is_import_path
from prunus.data import images, tables, text
from prunus.data.files import data_folder
from prunus.data.labelled import Labelled
from prunus.errors import BadInput, UnknownName


@dataclass(frozen=True)
class DataSource:
    """One data set: how to read it and what to expect of it.

    `expected` says which files are looked for, as part of a sentence; None where the set travels with the package.
    `input` is the shape of one example.

    Example:
        >>> prunus.data.describe("digits").classes
        10
    """

    name: str
    title: str
    read: Callable[..., Labelled]
    splits: tuple[str, ...]
    input: tuple[int, ...]
    classes: int
    expected: str | None = None


_TWO, _THREE = ("train", "test"), ("train", "validation", "test")
_IDX = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the two t10k files in {} (plain or .gz)"
_digit_images = partial(images.digits, shape=(1, 8, 8))
_mnist = partial(images.idx_set, name="mnist", mean=0.1307, std=0.3081, classes=images.DIGIT_CLASSES)
_fashion = partial(images.idx_set, name="fashion-mnist", mean=0.2860, std=0.3530, classes=images.FASHION_CLASSES)
_SOURCES = {
    source.name: source
    for source in (
        DataSource("digits", "The digits", images.digits, _TWO, (64,), 10),
        DataSource("digits-images", "The digits as images", _digit_images, _TWO, (1, 8, 8), 10),
        DataSource("mnist", "MNIST", _mnist, _TWO, (1, 28, 28), 10, _IDX.format("mnist/")),
        DataSource("fashion-mnist", "Fashion-MNIST", _fashion, _TWO, (1, 28, 28), 10, _IDX.format("fashion-mnist/")),
        DataSource(
            "cifar10",
            "CIFAR-10",
            images.cifar10,
            _TWO,
            (3, 32, 32),
            10,
            "train_1.npz to train_5.npz and test.npz, or the original data_batch_1.bin to data_batch_5.bin and "
            "test_batch.bin, in cifar10/",
        ),
        DataSource(
            "covertype",
            "Covertype",
            tables.covertype,
            _THREE,
            (54,),
            7,
            "covertype.npz, or the original covtype.data, in covertype/",
        ),
        DataSource(
            "imdb",
            "IMDB",
            text.imdb,
            _TWO,
            (256,),
            2,
            "train.jsonl.xz and test.jsonl.xz, or the original folder aclImdb, in imdb/",
        ),
        DataSource("sst2", "SST-2", text.sst2, _THREE, (64,), 2, "train.txt.gz, dev.txt.gz and test.txt.gz in sst2/"),
    )
}

# A set that is still in use is returned again instead of being decoded a second time.
_HELD: WeakValueDictionary[tuple[str, str, str], Labelled] = WeakValueDictionary()


def names() -> tuple[str, ...]:
    """The names `load` knows.

    Returns:
        The names, sorted as they are listed.

    Example:
        >>> "digits" in prunus.data.names()
        True
    """
    return tuple(_SOURCES)


def describe(name: str) -> DataSource:
    """What is known about a data set before it is read.

    Args:
        name: One of `names()`.

    Returns:
        The entry of the data set: title, splits, shape of an input, number of classes.

    Raises:
        UnknownName: There is no such data set.

    Example:
        >>> prunus.data.describe("cifar10").input
        (3, 32, 32)
    """
    if name not in _SOURCES:
        raise UnknownName("data set", name, _SOURCES)
    return _SOURCES[name]


def load(name: str, split: str = "train", folder: str | os.PathLike[str] | None = None) -> Dataset[Any]:
    """Load a data set of (input, label) pairs.

    Args:
        name: One of `names()`, or "package.module:dataset" for a data set of your own: a torch Dataset, or a
            function that returns one and may take `split` and `folder`.
        split: "train" or "test".
        folder: Holds the files of the public sets, each set in a subfolder of its name or directly; the environment
            variable PRUNUS_DATA unless given.

    Returns:
        A torch Dataset of (input, label).

    Raises:
        BadInput: The name or split is unknown, or the folder is not given.
        BadFile: A file is missing or damaged.

    Example:
        >>> train = prunus.data.load("digits", split="train")
        >>> image, label = train[0]
        >>> image.shape, 0 <= label < 10
        (torch.Size([64]), True)
    """
    if name not in _SOURCES and isinstance(name, str) and is_import_path(name):
        return _from_path(name, split, folder)
    source = describe(name)
    if split not in source.splits:
        raise UnknownName(f"split of {name}", split, source.splits)
    if source.expected is None:
        key = (name, split, "")
        held = _HELD.get(key)
        result = source.read(split) if held is None else held
    else:
        place = data_folder(folder, source.title, source.expected)
        key = (name, split, str(place.resolve()))
        held = _HELD.get(key)
        result = source.read(place, split) if held is None else held
    _HELD[key] = result
    return result


def _from_path(path: str, split: str, folder: str | os.PathLike[str] | None) -> Dataset[Any]:
    found = import_object(path, "data set")
    if callable(found) and not isinstance(found, Dataset):
        try:
            found = found(**_accepted(found, {"split": split, "folder": folder}))
        except Exception as error:
            raise BadInput(f"The data set {path} failed with {describe_error(error)}.") from error
    if not (hasattr(found, "__getitem__") and hasattr(found, "__len__")):
        raise BadInput(
            f"{path} gives an object of type {type(found).__name__}: a data set has a length and (input, label) items."
        )
    return cast("Dataset[Any]", found)


def _accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that the function takes by name."""
    parameters = inspect.signature(function).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return {key: value for key, value in offered.items() if anything or key in parameters}
