"""Batches in an order that is a pure function of (seed, epoch): a run may start again at any step and see the same."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from prunus.data import Labelled, augment
from prunus.errors import BadInput, UnknownName, first_line
from prunus.storage import digest

AUGMENTS = ("none", "crop-flip", "resized-crop-flip")


def derive(seed: int, *labels: object) -> int:
    """A 63-bit seed for one purpose, so that no two purposes share a random stream."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *labels: object) -> torch.Generator:
    """A CPU generator seeded by `derive`."""
    return torch.Generator().manual_seed(derive(seed, *labels))


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python: dropout and the random transforms of a data set draw from these."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every backend, which costs a tenth of a ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def isolated() -> Iterator[None]:
    """Inside, the global random states may be seeded at will; on leaving they are what they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


class Batches:
    """A data set cut into batches; the last one of an epoch may be short.

    `step` number i of the run reads batch i mod `per_epoch` of the permutation of epoch i // `per_epoch`. With several
    processes each takes every `world`-th sample of the same batch.
    """

    def __init__(self, data: Dataset, batch_size: int, seed: int, augment: Any = "none", workers: int = 0) -> None:
        self.data = data
        self.size = length(data)
        self.batch_size = min(batch_size, self.size)
        self.seed = seed
        self.augment = _augment(augment, data)
        self.workers = workers
        self.per_epoch = math.ceil(self.size / self.batch_size)
        self.read = reader(data)

    def order(self, epoch: int) -> Tensor:
        """The permutation of an epoch."""
        return torch.randperm(self.size, generator=generator(self.seed, "order", epoch))

    def from_step(self, step: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor, float]]:
        """(inputs, labels, share of the whole batch) from `step` to the end of its epoch."""
        epoch, position = divmod(step, self.per_epoch)
        wholes = self.order(epoch).split(self.batch_size)[position:]
        parts = [whole[rank::world] for whole in wholes]
        slow = self.workers and self.read is None
        loaded = iter(self._workers(parts)) if slow else None
        for offset, (whole, part) in enumerate(zip(wholes, parts)):
            seed_everything(derive(self.seed, "step", step + offset, rank))
            inputs, labels = next(loaded) if loaded is not None else self._take(part)
            if self.augment is not None and len(inputs):
                inputs = self.augment(inputs, generator(self.seed, "augment", step + offset, rank))
            yield inputs, labels, len(part) / len(whole)

    def _take(self, part: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(part) if self.read is not None else collate(self.data, part.tolist())

    def _workers(self, parts: Sequence[Tensor]) -> DataLoader:
        return DataLoader(self.data, batch_sampler=[part.tolist() for part in parts], num_workers=self.workers)


def length(data: Dataset) -> int:
    """How many samples; refuses an empty data set and one without a length."""
    try:
        count = len(data)  # type: ignore[arg-type]
    except TypeError:
        raise BadInput(
            f"The data ({type(data).__name__}) has no length: give a map-style torch Dataset of (input, label)."
        ) from None
    if count == 0:
        raise BadInput("The data is empty: give a data set with at least one sample.")
    return count


def reader(data: Dataset) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Indices to (inputs, labels) for data that lies in memory and can be indexed a batch at a time; None elsewhere."""
    if isinstance(data, Labelled):
        return data.batch
    if isinstance(data, Subset):
        inner, chosen = reader(data.dataset), torch.as_tensor(data.indices)
        return (lambda part: inner(chosen[part])) if inner is not None else None
    tensors = data.tensors if isinstance(data, TensorDataset) else ()
    if len(tensors) == 2:
        return lambda part: (tensors[0][part], tensors[1][part])
    return None


def collate(data: Dataset, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Samples read one by one and stacked."""
    items = data.__getitems__(list(indices)) if hasattr(data, "__getitems__") else [data[i] for i in indices]
    if not items:
        example, label = data[0]
        return torch.as_tensor(example)[None][:0], torch.as_tensor(label)[None][:0]
    try:
        inputs, labels = items_of(items)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"The samples cannot be stacked to a batch ({first_line(error)}): give (input, label) pairs of one shape."
        ) from error
    return inputs, labels


def first_inputs(data: Dataset, count: int = 1) -> Tensor:
    """The inputs of the first samples, stacked: finite, and at least one."""
    inputs = collate(data, range(min(count, length(data))))[0]
    check_finite(inputs)
    return inputs


def check_finite(inputs: Tensor) -> None:
    """Refuse data that holds NaN or infinity: whatever is computed from it says nothing."""
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        count = int((~torch.isfinite(inputs)).sum())
        raise BadInput(f"The data holds {count} NaN or infinite values in one batch: repair it or leave it out.")


def items_of(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Samples (input, label) stacked; anything else is refused."""
    first = items[0]
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        about = f"{type(first).__name__} of {len(first)}" if hasattr(first, "__len__") else type(first).__name__
        raise BadInput(f"A sample of the data is a {about}; (input, label) pairs are expected.")
    inputs, labels = default_collate(list(items))
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        names = f"{type(inputs).__name__} and {type(labels).__name__}"
        raise BadInput(f"The samples of the data are stacked to {names}; inputs and labels must be tensors or numbers.")
    return inputs, labels


def in_order(data: Dataset, batch_size: int = 256, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in the data's own order, for evaluation."""
    read = reader(data)
    for index, part in enumerate(torch.arange(length(data)).split(batch_size)):
        if limit is not None and index >= limit:
            return
        yield read(part) if read is not None else collate(data, part.tolist())


def fingerprint(data: Dataset, samples: int = 256) -> str:
    """A hash of the data: all of it where it lies in memory, else `samples` evenly spaced items."""
    count, state = length(data), hashlib.blake2b(digest_size=16)
    if reader(data) is not None:
        for inputs, labels in in_order(data, 4096):
            state.update(digest({"inputs": inputs, "labels": labels}).encode())
        return f"{count} samples, {state.hexdigest()[:16]}"
    with isolated():
        for index in sorted({round(i * (count - 1) / max(1, samples - 1)) for i in range(min(samples, count))}):
            seed_everything(derive(0, "fingerprint", index))
            inputs, labels = collate(data, [index])
            state.update(digest({"inputs": inputs, "labels": labels}).encode())
    return f"{count} samples, {state.hexdigest()[:16]}"


def _augment(choice: Any, data: Dataset) -> Callable[[Tensor, torch.Generator], Tensor] | None:
    if callable(choice):
        return choice
    border = data.black if isinstance(data, Labelled) else 0.0
    if choice == "crop-flip":
        return lambda inputs, source: augment(inputs, source, fill=border)
    if choice == "resized-crop-flip":
        return resized_crop_flip
    if choice == "none":
        return None
    raise UnknownName("augmentation", choice, AUGMENTS)


def resized_crop_flip(inputs: Tensor, source: torch.Generator, pad: int = 4) -> Tensor:
    """Padded, then a random part (8 to 100 % of the area, sides 3:4 to 4:3) scaled back to the size, then mirrored."""
    count, _, height, width = _images(inputs)
    area = torch.empty(count).uniform_(0.08, 1.0, generator=source)
    ratio = torch.empty(count).uniform_(math.log(3 / 4), math.log(4 / 3), generator=source).exp()
    tall, wide = (area / ratio).sqrt().clamp(max=1.0), (area * ratio).sqrt().clamp(max=1.0)
    up = (2.0 * torch.rand(count, generator=source) - 1.0) * (1.0 - tall)
    left = (2.0 * torch.rand(count, generator=source) - 1.0) * (1.0 - wide)
    mirror = torch.where(torch.rand(count, generator=source) < 0.5, -1.0, 1.0)
    zero = torch.zeros(count)
    theta = torch.stack([torch.stack([wide * mirror, zero, left], 1), torch.stack([zero, tall, up], 1)], 1)
    padded = F.pad(inputs, (pad, pad, pad, pad))
    grid = F.affine_grid(theta, [count, inputs.shape[1], height, width], align_corners=False)
    return F.grid_sample(padded, grid.to(inputs.dtype), align_corners=False)


def _images(inputs: Tensor) -> tuple[int, int, int, int]:
    if inputs.dim() != 4:
        raise BadInput(
            f"This augmentation needs images of shape (channels, height, width), but a batch has shape "
            f"{tuple(inputs.shape)}: use augment='none'."
        )
    count, channels, height, width = inputs.shape
    return count, channels, height, width
