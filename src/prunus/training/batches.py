"""Batches in an order that is a pure function of (seed, epoch): a run may start again at any step and see the same."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from prunus.adapters import IGNORED, Batch, IndexedSamples, as_batch
from prunus.adapters import check_finite as check_batch
from prunus.data import Labelled, augment
from prunus.errors import BadInput, UnknownName
from prunus.storage import digest, digest_of

Inputs = Tensor | Batch
"""What a model is called with: one tensor, or a batch of several or named ones."""

AUGMENTS = ("none", "crop-flip", "resized-crop-flip")
SHA = "sha256 "
"""Stands before the digest in a fingerprint; those of the first versions have nothing there."""


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

    def __init__(self, data: Any, batch_size: int, seed: int, augment: Any = "none", workers: int = 0) -> None:
        self.data = data
        self.size = length(data)
        self.batch_size = min(batch_size, self.size)
        self.seed = seed
        self.augment = augmentation(augment, data)
        self.workers = workers
        self.per_epoch = math.ceil(self.size / self.batch_size)
        self.read = reader(data)

    def order(self, epoch: int) -> Tensor:
        """The permutation of an epoch."""
        return torch.randperm(self.size, generator=generator(self.seed, "order", epoch))

    def from_step(self, step: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Inputs, Tensor, float]]:
        """(inputs, labels, share of the whole batch) from `step` to the end of its epoch."""
        epoch, position = divmod(step, self.per_epoch)
        wholes = self.order(epoch).split(self.batch_size)[position:]
        parts = [whole[rank::world] for whole in wholes]
        slow = self.workers and self.read is None
        loaded = iter(self._workers(parts)) if slow else None
        for offset, (whole, part) in enumerate(zip(wholes, parts)):
            seed_everything(derive(self.seed, "step", step + offset, rank))
            inputs, labels = parts_of(as_batch(next(loaded))) if loaded is not None else self._take(part)
            if self.augment is not None and len(labels):
                if not isinstance(inputs, Tensor):
                    raise BadInput("Augmentation needs inputs that are one tensor: use augment='none'.")
                inputs = self.augment(inputs, generator(self.seed, "augment", step + offset, rank))
            yield inputs, labels, len(part) / len(whole)

    def _take(self, part: Tensor) -> tuple[Inputs, Tensor]:
        return self.read(part) if self.read is not None else collate(self.data, part.tolist())

    def _workers(self, parts: Sequence[Tensor]) -> DataLoader[Any]:
        samples = IndexedSamples(self.data)
        order = [part.tolist() for part in parts]
        return DataLoader(samples.data, batch_sampler=order, num_workers=self.workers, collate_fn=samples.collate)


class Prepared:
    """Batches that stay as they are, as a data set of which one is read at a time; they carry no labels."""

    def __init__(self, found: Sequence[Batch]) -> None:
        self.found = list(found)

    def __len__(self) -> int:
        return len(self.found)

    def batch(self, part: Tensor) -> tuple[Any, Tensor]:
        """One batch, and as many empty labels as it has samples."""
        batch = self.found[int(part[0])]
        return batch, torch.zeros(batch.size)


def length(data: Any) -> int:
    """How many samples; refuses an empty data set and one without a length."""
    count = len(data) if isinstance(data, Prepared) else len(IndexedSamples(data))
    if count == 0:
        raise BadInput("The data is empty: give a data set with at least one sample.")
    return count


def parts_of(batch: Batch) -> tuple[Inputs, Tensor]:
    """(inputs, labels) of a batch: the inputs are one tensor where there is one, else the batch itself."""
    if batch.labels is None:
        raise BadInput("Training needs labels: give data of (input, label), or dicts with labels.")
    single = len(batch.args) == 1 and not batch.kwargs and isinstance(batch.args[0], Tensor)
    return batch.args[0] if single else batch, batch.labels


def in_parts(inputs: Inputs, labels: Tensor, count: int) -> Iterator[tuple[Inputs, Tensor, float]]:
    """A batch in `count` parts, each with its share of the labels: the losses times their shares are the batch's."""
    if count == 1:
        yield inputs, labels, 1.0
        return
    size = len(labels) if isinstance(inputs, Tensor) else inputs.size
    whole = max(1, int((labels != IGNORED).sum())) if labels.dim() > 1 else len(labels)
    for part in torch.arange(size, device=labels.device).chunk(count):
        some = labels[part]
        number = int((some != IGNORED).sum()) if labels.dim() > 1 else len(some)
        if number:
            yield (inputs[part] if isinstance(inputs, Tensor) else inputs.rows(part.tolist())), some, number / whole


def reader(data: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Indices to (inputs, labels) for data that lies in memory and can be indexed a batch at a time; None elsewhere."""
    if isinstance(data, (Labelled, Prepared)):
        return data.batch
    if isinstance(data, Subset):
        inner, chosen = reader(data.dataset), torch.as_tensor(data.indices)
        return (lambda part: inner(chosen[part])) if inner is not None else None
    tensors = data.tensors if isinstance(data, TensorDataset) else ()
    if len(tensors) == 2:
        return lambda part: (tensors[0][part], tensors[1][part])
    return None


def collate(data: Any, indices: Sequence[int]) -> tuple[Inputs, Tensor]:
    """Samples read one by one and stacked."""
    samples = IndexedSamples(data)
    if not indices:  # a process that has no part in a short batch
        inputs, labels = parts_of(samples.take(torch.zeros(1, dtype=torch.long)))
        return (inputs[:0] if isinstance(inputs, Tensor) else inputs), labels[:0]
    return parts_of(samples.take(torch.as_tensor(indices)))


def first_inputs(data: Any, count: int = 1) -> Tensor:
    """The inputs of the first samples, stacked: finite, and at least one."""
    inputs = collate(data, range(min(count, length(data))))[0]
    check_finite(inputs)
    return inputs if isinstance(inputs, Tensor) else inputs.inputs


def check_finite(inputs: Inputs) -> None:
    """Refuse data that holds NaN or infinity."""
    check_batch(Batch((inputs,), {}, None, len(inputs)) if isinstance(inputs, Tensor) else inputs)


def in_order(data: Any, batch_size: int = 256, limit: int | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches in the data's own order, for evaluation."""
    read = reader(data)
    for index, part in enumerate(torch.arange(length(data)).split(batch_size)):
        if limit is not None and index >= limit:
            return
        yield read(part) if read is not None else collate(data, part.tolist())


def fingerprint(data: Any, samples: int = 256, *, earlier: bool = False) -> str:
    """A digest of the data: of all where they lie in memory, else of `samples` evenly spaced items.

    `earlier` gives it as it stands in checkpoints of the first versions, which joined the parts by another hash.
    """
    said = f"{length(data)} {'batches' if isinstance(data, Prepared) else 'samples'}"
    parts = "".join(_digests(data, samples))
    if earlier:
        return f"{said}, {hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()[:16]}"
    return f"{said}, {SHA}{digest_of(parts)[:16]}"


def _digests(data: Any, samples: int) -> Iterator[str]:
    """The digest of each part of the data, in their order."""
    if isinstance(data, Prepared):
        for batch in data.found:
            named = [*((str(place), value) for place, value in enumerate(batch.args)), *batch.kwargs.items()]
            yield digest({name: value for name, value in named if isinstance(value, Tensor)})
    elif reader(data) is not None:
        for inputs, labels in in_order(data, 4096):
            yield digest({"inputs": inputs, "labels": labels})  # type: ignore[dict-item]
    else:
        count = length(data)
        with isolated():
            for index in sorted({round(i * (count - 1) / max(1, samples - 1)) for i in range(min(samples, count))}):
                seed_everything(derive(0, "fingerprint", index))
                inputs, labels = collate(data, [index])
                yield digest({**_named(inputs), "labels": labels})


def _named(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Tensor):
        return {"inputs": inputs}
    return dict(inputs.kwargs) | {f"inputs {number}": value for number, value in enumerate(inputs.args)}


def augmentation(choice: Any, data: Any) -> Callable[[Tensor, torch.Generator], Tensor] | None:
    if callable(choice):
        return cast("Callable[[Tensor, torch.Generator], Tensor]", choice)
    border = data.black if isinstance(data, Labelled) else 0.0
    if choice == "crop-flip":
        return lambda inputs, source: augment(inputs, source, fill=border)
    if choice == "resized-crop-flip":
        return resized_crop_flip
    if choice in ("none", "own"):  # a data set's own: nothing, unless the caller knows better
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
