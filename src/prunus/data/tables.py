"""Tables: Covertype."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from prunus.data.files import find, read_bytes, reading
from prunus.data.labelled import Labelled
from prunus.errors import BadInput

COVER_TYPES = (
    "Spruce/Fir",
    "Lodgepole Pine",
    "Ponderosa Pine",
    "Cottonwood/Willow",
    "Aspen",
    "Douglas-fir",
    "Krummholz",
)
_TRAIN, _VALIDATION = 11_340, 3_780
_QUANTITATIVE, _WILDERNESS, _SOIL = 10, 4, 40


def covertype(folder: Path, split: str) -> Labelled:
    """UCI Covertype: 54 columns, 7 classes, in the documented split.

    The first 11,340 rows are for training, the next 3,780 for validation, the rest for test. The ten quantitative
    columns are standardised by mean and standard deviation of the training rows; the 44 indicator columns (4 wilderness
    areas, 40 soil types) stay 0 or 1. Read are covertype.npz and the original covtype.data or covtype.csv, plain or
    gzipped, with or without a header line.
    """
    texts = ["covtype.data", "covtype.data.gz", "covtype.csv", "covtype.csv.gz"]
    path = find(folder, ["covertype"], ["covertype.npz", *texts])
    if path is None:
        raise BadInput(
            f"There is no file covertype.npz or covtype.data (or covtype.data.gz, covtype.csv, covtype.csv.gz) in "
            f"{folder / 'covertype'} or in {folder}: put it there."
        )
    columns, labels = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    training = columns[:_TRAIN, :_QUANTITATIVE].astype(np.float64)
    mean, std = np.zeros(columns.shape[1]), np.ones(columns.shape[1])
    mean[:_QUANTITATIVE], std[:_QUANTITATIVE] = training.mean(0), training.std(0)
    middle = _TRAIN + _VALIDATION
    rows = {"train": slice(_TRAIN), "validation": slice(_TRAIN, middle), "test": slice(middle, None)}[split]
    return Labelled(
        torch.from_numpy(columns[rows].copy()),
        torch.from_numpy(labels[rows].astype(np.int64) - 1),
        COVER_TYPES,
        mean=torch.from_numpy(mean).float(),
        std=torch.from_numpy(np.where(std > 0, std, 1.0)).float(),
    )


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with reading(path), np.load(path) as archive:
        quantitative, labels = archive["quantitative"], archive["label"]
        groups = [(archive["wilderness"], _WILDERNESS), (archive["soil"], _SOIL)]
        indicators = [np.eye(size, dtype=np.int16)[codes] for codes, size in groups]
        columns = np.concatenate([quantitative.T.astype(np.int16, copy=False), *indicators], 1)
        _check(columns, labels)
    return columns, labels


def _read_text(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = read_bytes(path)
    with reading(path):
        if not content.strip():
            raise ValueError("it is empty")
        has_header = not content[:1].isdigit()
        rows = np.loadtxt(io.BytesIO(content), dtype=np.int16, delimiter=",", skiprows=int(has_header), ndmin=2)
        columns, labels = rows[:, :-1], rows[:, -1]
        _check(columns, labels)
    return columns, labels


def _check(columns: np.ndarray, labels: np.ndarray) -> None:
    expected = _QUANTITATIVE + _WILDERNESS + _SOIL
    if columns.ndim != 2 or columns.shape[1] != expected:
        raise ValueError(f"it has {columns.shape[-1]} columns besides the label instead of {expected}")
    if labels.shape != (len(columns),) or len(columns) <= _TRAIN + _VALIDATION:
        raise ValueError(f"it has {len(columns)} rows, too few for the documented split")
    if labels.min() < 1 or labels.max() > len(COVER_TYPES):
        raise ValueError(f"its labels are not numbers from 1 to {len(COVER_TYPES)}")
    areas = columns[:, _QUANTITATIVE:]
    single = (areas[:, :_WILDERNESS].sum(1) == 1) & (areas[:, _WILDERNESS:].sum(1) == 1)
    if areas.min() < 0 or areas.max() > 1 or not single.all():
        raise ValueError("its indicator columns do not name one area and one soil in every row")
