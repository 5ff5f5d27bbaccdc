"""Data sets by name: digits travels with the package, the public sets are read from a folder.

    train = prunus.data.load("digits", split="train")
    test = prunus.data.load("cifar10", split="test", folder="data")    # or the environment variable PRUNUS_DATA
    mine = prunus.data.load("package.module:dataset")
    images, labels = test.tensors                                      # everything at once

Each item is (input, label): a float32 tensor, normalised as the set's usual networks expect (token ids, int64, for
text), and an int.
"""

from __future__ import annotations

from prunus.data._augment import augment
from prunus.data._load import DataSource, describe, load, names
from prunus.data.labelled import Labelled

__all__ = ["DataSource", "Labelled", "augment", "describe", "load", "names"]
