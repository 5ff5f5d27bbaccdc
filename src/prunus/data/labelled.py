"""The type every loader returns: a data set held in memory in its compact form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Labelled(Dataset[tuple[Tensor, int]]):
    """(input, label) pairs in memory.

    `data[i]` is (float32 tensor, int). `data.tensors` holds all inputs and labels, made once on first use;
    `data.batch(indices)` converts only what is asked for.

    Args:
        raw: (n, ...): pixels as bytes, columns as integers, or token ids.
        labels: (n,), int64.
        classes: Their names, in the order of the labels.
        scale: An input is `(raw * scale - mean) / std` in float32.
        mean: One number, or one per channel or column; None leaves the raw values (token ids) as int64.
        std: The same.

    Example:
        >>> test = prunus.data.load("digits", split="test")
        >>> inputs, labels = test.tensors
        >>> inputs.shape[1:], len(test.classes)
        (torch.Size([64]), 10)
    """

    def __init__(
        self,
        raw: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        *,
        scale: float = 1.0,
        mean: Tensor | None = None,
        std: Tensor | None = None,
    ) -> None:
        self.raw = raw
        self.labels = labels.long()
        self.classes = tuple(classes)
        self.scale, self.mean, self.std = scale, mean, std

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} examples")
        if "tensors" in self.__dict__:
            return self.tensors[0][index], int(self.labels[index])
        return self._convert(self.raw[index]), int(self.labels[index])

    def batch(self, indices: Tensor | slice | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and labels (int64) of these examples.

        Args:
            indices: which examples.

        Returns:
            Inputs (n, *shape) and labels (n,).
        """
        return self._convert(self.raw[indices]), self.labels[indices]

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All inputs (n, ...) and all labels (n,), kept from the first use on."""
        return self._convert(self.raw), self.labels

    @property
    def black(self) -> Tensor:
        """What a raw zero becomes in each channel: the border for `augment`."""
        if self.mean is None or self.std is None:
            return torch.zeros(1)
        return (-self.mean / self.std).flatten()

    def _convert(self, raw: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return raw.long()
        return (raw.to(torch.float32) * self.scale).sub_(self.mean).div_(self.std)

    def __repr__(self) -> str:
        return f"Labelled({len(self)} examples of shape {tuple(self.raw.shape[1:])}, {len(self.classes)} classes)"
