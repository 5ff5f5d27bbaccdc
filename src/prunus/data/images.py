"""Sets of images: digits, MNIST, Fashion-MNIST, CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from prunus.data.files import reading
from prunus.data.labelled import Labelled

_DIGITS = Path(__file__).with_name("digits.npz")
_DIGITS_TRAIN = 1297


def digits(split: str) -> Labelled:
    """The 8x8 digits (UCI), flat: 64 numbers in 0..1 (ink counts 0..16 divided by 16).

    The 1,797 images are shuffled once by `numpy.random.RandomState(0).permutation`, a stream numpy keeps fixed; the
    first 1,297 are for training, the other 500 for testing (sizes of ledger I-14).
    """
    with reading(_DIGITS), np.load(_DIGITS) as archive:
        images, labels = archive["images"], archive["labels"]
    order = np.random.RandomState(0).permutation(len(images))
    chosen = order[:_DIGITS_TRAIN] if split == "train" else order[_DIGITS_TRAIN:]
    raw = torch.from_numpy(images[chosen].reshape(-1, 64))
    return Labelled(
        raw,
        torch.from_numpy(labels[chosen]),
        [str(digit) for digit in range(10)],
        scale=1 / 16,
        mean=torch.zeros(1),
        std=torch.ones(1),
    )
