"""Sets of images: digits, MNIST, Fashion-MNIST, CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from prunus.data.files import find, read_bytes, reading
from prunus.data.labelled import Labelled
from prunus.errors import BadFile, BadInput

DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}

_DIGITS = Path(__file__).with_name("digits.npz")
_DIGITS_TRAIN = 1297


def digits(split: str, shape: tuple[int, ...] = (64,)) -> Labelled:
    """The 8x8 digits (UCI), flat or in another shape: 64 numbers in 0..1 (ink counts 0..16 divided by 16).

    The 1,797 images are shuffled once by `numpy.random.RandomState(0).permutation`, a stream numpy keeps fixed; the
    first 1,297 are for training, the other 500 for testing (sizes of ledger I-14).
    """
    with reading(_DIGITS), np.load(_DIGITS) as archive:
        images, labels = archive["images"], archive["labels"]
    order = np.random.RandomState(0).permutation(len(images))
    chosen = order[:_DIGITS_TRAIN] if split == "train" else order[_DIGITS_TRAIN:]
    raw = torch.from_numpy(images[chosen].reshape(-1, *shape))
    return Labelled(
        raw,
        torch.from_numpy(labels[chosen]),
        DIGIT_CLASSES,
        scale=1 / 16,
        mean=torch.zeros(1),
        std=torch.ones(1),
    )


def idx_set(folder: Path, split: str, *, name: str, mean: float, std: float, classes: Sequence[str]) -> Labelled:
    """MNIST or Fashion-MNIST in the idx format, plain or gzipped: (1, 28, 28), pixels 0..1 minus mean, over std."""
    places = [name, f"{_TORCHVISION[name]}/raw"]
    stem = "train" if split == "train" else "t10k"
    images = _read_idx(_idx_file(folder, places, f"{stem}-images-idx3-ubyte", name), dimensions=3)
    file = _idx_file(folder, places, f"{stem}-labels-idx1-ubyte", name)
    labels = _read_idx(file, dimensions=1)
    if len(labels) != len(images) or labels.max(initial=0) >= len(classes):
        raise BadFile(
            f"The data file {file} does not fit its images ({len(labels)} labels up to {labels.max(initial=0)} for "
            f"{len(images)} images of {len(classes)} classes): fetch both again."
        )
    return Labelled(
        torch.from_numpy(images[:, None]),
        torch.from_numpy(labels),
        classes,
        scale=1 / 255,
        mean=torch.tensor([mean]),
        std=torch.tensor([std]),
    )


def _idx_file(folder: Path, places: Sequence[str], stem: str, name: str) -> Path:
    # Some distributions write t10k-images.idx3-ubyte.
    dotted = stem.replace("-idx", ".idx")
    path = find(folder, places, [f"{stem}.gz", stem, f"{dotted}.gz", dotted])
    if path is None:
        raise BadInput(f"There is no file {stem}.gz (or {stem}) in {folder / name} or in {folder}: put it there.")
    return path


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes: two zero bytes, type 8, the number of dimensions, each as big-endian int32, then the bytes."""
    content = read_bytes(path)
    header = 4 + 4 * dimensions
    with reading(path):
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it does not begin as an idx file of bytes with {dimensions} dimensions")
        shape = np.frombuffer(content, ">i4", dimensions, offset=4)
        if len(content) - header != math.prod(shape.tolist()):
            raise ValueError(
                f"{len(content) - header} bytes follow a header that announces {math.prod(shape.tolist())}"
            )
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def cifar10(folder: Path, split: str) -> Labelled:
    """CIFAR-10: (3, 32, 32), RGB 0..1, normalised with the constants of the trained ResNets.

    Read are the batches as npz with decorrelated differences (train_1.npz ... train_5.npz, test.npz) and the original
    binary version (data_batch_1.bin ... data_batch_5.bin, test_batch.bin). The original Python version is pickled, and
    a pickle can run code: it is never opened.
    """
    numbers = range(1, 6) if split == "train" else range(1)
    parts = []
    for number in numbers:
        ours, original = (
            (f"train_{number}.npz", f"data_batch_{number}.bin") if number else ("test.npz", "test_batch.bin")
        )
        path = find(folder, ["cifar10", "cifar-10-batches-bin"], [ours, original])
        if path is None:
            pickled = find(folder, ["cifar10"], ["cifar-10-batches-py"])
            also = (
                ""
                if pickled is None
                else " (the pickled Python version that lies there is not read, as it may run code)"
            )
            raise BadInput(
                f"There is no file {ours} or {original} (CIFAR-10, binary version) in {folder / 'cifar10'} or in "
                f"{folder}{also}: put it there."
            )
        parts.append(_cifar_npz(path) if path.suffix == ".npz" else _cifar_bin(path))
    return Labelled(
        torch.from_numpy(np.concatenate([images for images, _ in parts])),
        torch.from_numpy(np.concatenate([labels for _, labels in parts])),
        CIFAR10_CLASSES,
        scale=1 / 255,
        mean=torch.tensor([0.485, 0.456, 0.406])[:, None, None],
        std=torch.tensor([0.229, 0.224, 0.225])[:, None, None],
    )


def _cifar_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Undo the packing: differences along both sides, red and blue as differences to green, all modulo 256."""
    with reading(path), np.load(path) as archive:
        planes, labels = archive["residual"], archive["labels"]
        if planes.dtype != np.uint8 or planes.shape != (3, len(labels), 32, 32):
            raise ValueError(f"its images have the shape {planes.shape} instead of (3, {len(labels)}, 32, 32)")
        _check_labels(labels)
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 0, 2, 3)), labels


def _cifar_bin(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3072 pixel bytes."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    with reading(path):
        if not len(content) or len(content) % 3073:
            raise ValueError(f"its {len(content)} bytes are not whole records of 3073")
        records = content.reshape(-1, 3073)
        _check_labels(records[:, 0])
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy()


def _check_labels(labels: np.ndarray) -> None:
    if labels.ndim != 1 or not len(labels) or labels.max() >= len(CIFAR10_CLASSES):
        raise ValueError("its labels are not numbers from 0 to 9")
