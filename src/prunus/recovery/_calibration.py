"""The samples that reconstruction looks at."""

from __future__ import annotations

import numbers
from typing import Any

from torch import Tensor, nn

from prunus.adapters import Batch, as_inputs, batches, check_finite
from prunus.errors import BadInput

FOLDS = 5
"""One batch of so many is held aside where chance plays a part."""
IMAGES = 4
"""Sides of a batch of images."""
USUAL = 64
"""Samples in a batch unless something else is asked for."""
LARGE = 1_600_000
"""Numbers in a batch of images beyond which it is cut: what a layer makes of more no longer stays in the caches."""


def calibrate_on(model: nn.Module, data: Any, samples: int, batch_size: int | None, seed: int) -> list[Batch]:
    """The batches that hold the first `samples` of the data in random order, as the model takes them; no labels."""
    if data is None:
        raise BadInput("Reconstruction needs data: give some samples like those the model will meet, without labels.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadInput(f"samples is {samples!r}; give a whole number of at least 1.")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise BadInput(f"seed is {seed!r}; give a whole number.")
    found: list[Batch] = []
    count = 0
    for batch in batches(data, size=min(batch_size or USUAL, samples), shuffle=True, seed=seed):
        batch = batch if count + batch.size <= samples else head(batch, samples - count)
        batch = as_inputs(model, batch)
        found.append(check_finite(Batch(batch.args, batch.kwargs, None, batch.size)))
        count += batch.size
        if count >= samples:
            break
    if batch_size is None and found[0].inputs.dim() == IMAGES:
        most = max(1, LARGE // found[0].inputs[0].numel())
        found = [part for batch in found for part in (_pieces(batch, most) if batch.size > most else [batch])]
    # The fifth batch is held aside: where it is the last, it may be a single sample.
    short = len(found) < FOLDS or (len(found) == FOLDS and found[-1].size < found[0].size)
    return split(found, 2 * FOLDS) if short and found[0].inputs.dim() == IMAGES else found


def split(found: list[Batch], parts: int) -> list[Batch]:
    """About so many smaller batches of the same samples in the same order, so that some of them can be held aside."""
    size = -(-sum(batch.size for batch in found) // parts)
    return [part for batch in found for part in _pieces(batch, size)]


def _pieces(batch: Batch, size: int) -> list[Batch]:
    return [_cut(batch, slice(start, start + size)) for start in range(0, batch.size, size)]


def head(batch: Batch, count: int) -> Batch:
    """The first samples of a batch."""
    return _cut(batch, slice(0, count))


def _cut(batch: Batch, part: slice) -> Batch:
    """Some samples of a batch as a view; what has no line for each sample is the same for all."""

    def cut(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == batch.size
        return value[part] if fits else value

    kwargs = {name: cut(value) for name, value in batch.kwargs.items()}
    return Batch(tuple(map(cut, batch.args)), kwargs, None, len(range(batch.size)[part]))
