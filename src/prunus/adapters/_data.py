"""Batches from whatever holds data.

How a list is read. Elements with labels of their own length are batches, those with one label are samples. Elements
without labels are samples if they are vectors, sequences of token ids or images (channels, height, width), and batches
if they have one dimension more. A dict is a batch if all its tensors have the same first side and one of them is a
batch by itself, or vectors stand beside images. A `Dataset` always holds samples and a `DataLoader` always gives
batches, so wrap what would be read wrongly, or pass `collate`, which makes it samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from prunus.errors import BadInput, first_line

LABELS = ("labels", "label", "label_ids", "target", "targets", "y")
_SIDES = ("", "decoder_")  # encoder-decoders name the decoder's inputs so
IGNORED = -100  # the label of padding, as torch's cross-entropy ignores it


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples as a model takes them.

    Attributes:
        args: positional inputs.
        kwargs: inputs by name.
        labels: what the outputs are compared with; None if there is nothing.
        size: how many samples.
        called: the name that the labels had in a dict; None where they stood behind the inputs.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    labels: Tensor | None = None
    size: int = 1
    called: str | None = None

    @property
    def inputs(self) -> Tensor:
        """The first tensor among the inputs."""
        found = next((value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)), None)
        if found is None:
            raise BadInput("The data hold no tensor that a model could take.")
        return found

    def real_positions(self) -> tuple[Tensor, ...]:
        """Masks (samples, positions), True where a sequence has a token, False where it is padded; none for other data.

        Data for an encoder and a decoder have one for each. Where both are of one shape, nothing tells whose
        activations a tensor of that shape holds: then one mask is True where either sequence has a token.
        """
        found: dict[torch.Size, Tensor] = {}
        given = [self.kwargs.get(f"{side}attention_mask") for side in _SIDES]
        if not any(isinstance(mask, Tensor) and mask.dim() == 2 for mask in given):
            return ()
        for side, mask in zip(_SIDES, given):
            inputs = (self.kwargs.get(f"{side}{name}") for name in ("input_ids", "inputs_embeds"))
            there = next((value for value in inputs if isinstance(value, Tensor) and value.dim() > 1), None)
            if not isinstance(mask, Tensor) or mask.dim() != 2:
                if there is None:
                    continue
                mask = torch.ones(there.shape[:2], device=there.device)
            own = mask.bool()
            found[own.shape] = found[own.shape] | own if own.shape in found else own
        return tuple(found.values())

    def rows(self, chosen: list[int]) -> Batch:
        """Some of the samples, by their positions; what is not a tensor with a row for each sample stays as it is."""

        def pick(value: Any) -> Any:
            return value[chosen] if isinstance(value, Tensor) and value.shape[:1] == (self.size,) else value

        named = {name: pick(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(pick, self.args)), kwargs=named, labels=pick(self.labels), size=len(chosen))

    @classmethod
    def joined(cls, parts: list[Batch]) -> Batch:
        """Batches of one kind as one; inputs that are not tensors are those of the first."""

        def join(values: Iterable[Any]) -> Any:
            found = list(values)
            return torch.cat(found) if isinstance(found[0], Tensor) else found[0]

        parts = [part for part in parts if part.size] or parts[:1]
        args = tuple(join(values) for values in zip(*(part.args for part in parts)))
        named = {name: join(part.kwargs[name] for part in parts) for name in parts[0].kwargs}
        labels = None if parts[0].labels is None else join(part.labels for part in parts)
        return cls(args, named, labels, sum(part.size for part in parts), parts[0].called)

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return self._each(lambda value: value.to(device))

    def every(self, start: int, step: int) -> Batch:
        """The samples number `start`, `start + step`, ..."""
        size = self.size
        part = self._each(lambda value: value[start::step] if value.dim() and len(value) == size else value)
        return replace(part, size=len(range(start, size, step)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        named = {name: changed(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(changed, self.args)), kwargs=named, labels=changed(self.labels))


def unpadded(values: Tensor, keep: tuple[Tensor, ...]) -> Tensor:
    """Activations (samples, positions, columns) without padded positions, and other values as they are.

    `keep` are the masks of `Batch.real_positions`.
    """
    fitting = next((mask for mask in keep if values.dim() == 3 and values.shape[:2] == mask.shape), None)
    return values if fitting is None else values[fitting]


def batches(
    data: Any,
    size: int = 128,
    *,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Iterator[Batch]:
    """Batches from whatever holds data.

    Args:
        data: a torch Dataset of (x, y), of dicts or of tensors; a DataLoader or other iterable of batches; a tensor or
            numpy array of inputs; a tuple (inputs, labels); a dict of tensors, as tokenizers give; a list of samples.
        size: samples in a batch, where the data do not come in batches already.
        limit: at most so many batches.
        shuffle: take samples in a random order; data that come in batches keep their own.
        seed: of the order.
        collate: makes one batch from a list of samples, as a `DataLoader` would be given.

    Returns:
        An iterator of `Batch`.

    Raises:
        BadInput: if the data are empty or cannot be read.

    Example:
        >>> import torch
        >>> [batch.size for batch in batches((torch.zeros(5, 3), torch.arange(5)), size=2)]
        [2, 2, 1]
        >>> words = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [3], "labels": 1}]
        >>> next(batches(words)).kwargs["attention_mask"].tolist()
        [[1, 1], [1, 0]]
    """
    if size < 1:
        raise BadInput(f"A batch needs at least one sample, not {size}.")
    found = False
    for item in itertools.islice(_raw(data, size, shuffle, seed, collate), limit):
        found = True
        yield item if isinstance(item, Batch) else as_batch(item)
    if not found and limit != 0:
        raise BadInput("The data are empty: give at least one sample.")


def as_batch(item: Any) -> Batch:
    """One batch as loaders give them: a tensor, (x, y), (x1, x2, ..., y), ({name: x}, y), or {name: x, "labels": y}.

    A dataclass counts as the dict of its fields. What is taken for labels here may be an input that the model's forward
    asks for: `as_inputs` knows.
    """
    if isinstance(item, Batch):
        return item
    item = _named_parts(item)
    if isinstance(item, Mapping):
        named = {str(name): _tensor(value) for name, value in item.items()}
        label = next((name for name in LABELS if isinstance(named.get(name), Tensor)), None)
        inputs = {name: value for name, value in named.items() if isinstance(value, Tensor) and name not in LABELS}
        return _sized(Batch((), inputs, named[label] if label else None, called=label))
    if isinstance(item, (tuple, list)) and item:
        parts: list[Any] = [part if isinstance(part, Mapping) else _tensor(part) for part in item]
        labels: Tensor | None = parts.pop() if len(parts) > 1 and isinstance(parts[-1], Tensor) else None
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            inner = as_batch(parts[0])
            return replace(inner, labels=inner.labels if labels is None else labels)
        if len(parts) == 1 and isinstance(parts[0], (tuple, list)):
            parts = [_tensor(part) for part in parts[0]]
        return _sized(Batch(tuple(parts), {}, labels))
    return _sized(Batch((_tensor(item),)))


def _named_parts(item: Any) -> Any:
    """The fields of a record (a dataclass) by name; other things as they are."""
    if not is_dataclass(item) or isinstance(item, (type, Mapping)):
        return item
    return {part.name: getattr(item, part.name) for part in fields(item)}


def _sized(batch: Batch) -> Batch:
    first = batch.inputs
    return replace(batch, size=int(first.shape[0]) if first.dim() else 1)


def _tensor(value: Any) -> Any:
    """Tensors from numpy arrays, numbers and lists of numbers; other things as they are."""
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(value) if value.dtype.kind in "biuf" else value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (str, Mapping, Tensor)):
        try:
            return torch.as_tensor(value) if not isinstance(value[0], np.ndarray) else torch.as_tensor(np.stack(value))
        except (ValueError, TypeError):
            return value
    return value


def _raw(data: Any, size: int, shuffle: bool, seed: int, collate: Any) -> Iterator[Any]:
    if isinstance(data, (Batch, DataLoader)):
        yield from [data] if isinstance(data, Batch) else data
    elif isinstance(data, IterableDataset):
        yield from DataLoader(data, batch_size=size, collate_fn=collate or _stack)
    elif _by_position(data, collate):
        samples = IndexedSamples(data, collate)
        for chosen in _parts(len(samples), size, shuffle, seed):
            yield samples.take(chosen)
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        yield from data
    else:
        raise BadInput(
            f"Data of type {type(data).__name__} cannot be read: give a torch Dataset or DataLoader, a list of "
            "samples, a dict of tensors, or a tensor."
        )


def _by_position(data: Any, collate: Any) -> bool:
    whole = isinstance(data, (Tensor, np.ndarray, Mapping, Dataset)) or _is_columns(data)
    return whole or _is_samples(data, collate)


class IndexedSamples:
    """Data whose samples can be taken by position, whatever holds them: `take(indices)` gives a `Batch`.

    Args:
        data: as for `batches`, but for streams; of a DataLoader its data set and collator are used, in any order.
        collate: makes one batch from a list of samples.

    Raises:
        BadInput: if the data have no length.
    """

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        if isinstance(data, DataLoader):
            own = None if data.collate_fn is default_collate else data.collate_fn
            data, collate = data.dataset, collate or own
        if isinstance(data, IterableDataset) or not _by_position(data, collate):
            raise BadInput(
                f"The data ({type(data).__name__}) has no length, or comes in batches: give a map-style torch Dataset "
                "of (input, label), a DataLoader, or a list of samples."
            )
        self.data, self.collate = data, collate or _stack
        self.columns: Any = None
        if isinstance(data, Mapping):
            self.columns = _named_columns(data)
        elif isinstance(data, (Tensor, np.ndarray)):
            self.columns = torch.as_tensor(data)
        elif _is_columns(data):
            self.columns = tuple(torch.as_tensor(part) for part in data)

    def __len__(self) -> int:
        if isinstance(self.columns, (tuple, dict)):
            return len(next(iter(self.columns.values() if isinstance(self.columns, dict) else self.columns)))
        held = self.data if self.columns is None else self.columns
        try:
            return len(held)
        except TypeError:
            raise BadInput(f"The data ({type(held).__name__}) have no length: give a map-style Dataset.") from None

    def take(self, indices: Tensor) -> Batch:
        """The samples at these positions as one batch."""
        columns = self.columns
        if isinstance(columns, dict):
            return as_batch({name: value[indices] for name, value in columns.items()})
        if columns is not None:
            return as_batch(
                tuple(part[indices] for part in columns) if isinstance(columns, tuple) else columns[indices]
            )
        whole = getattr(self.data, "batch", None)  # data in memory that can be indexed a batch at a time
        if callable(whole) and self.collate is _stack:
            return as_batch(whole(indices))
        many = getattr(self.data, "__getitems__", None)
        places = indices.tolist()
        try:
            items = many(places) if callable(many) else [self.data[place] for place in places]
        except KeyError as error:
            raise BadInput(f"The data ({type(self.data).__name__}) cannot be read by position: {error}.") from error
        return as_batch(self.collate(items))


def _is_columns(data: Any) -> bool:
    """Whether these are all inputs and all labels, rather than some samples."""
    if not isinstance(data, (tuple, list)) or len(data) < 2:
        return False
    if not all(isinstance(part, (Tensor, np.ndarray)) and part.ndim for part in data):
        return False
    same = len({len(part) for part in data}) == 1
    return same and (isinstance(data, tuple) or (len(data) == 2 and data[0].ndim != data[1].ndim))


def _is_samples(data: Any, collate: Any) -> bool:
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(data, (str, bytes)):
        return False
    if not isinstance(data, (list, tuple)) or not data or collate is not None:
        return True
    return _one_sample(data[0])


def _one_sample(item: Any) -> bool:
    """Whether an element of a list is one sample, not a batch; see the top of this file."""
    if isinstance(item, Batch):
        return False
    item = _named_parts(item)
    if isinstance(item, Mapping):
        inputs = [value for value in map(_tensor, item.values()) if isinstance(value, Tensor) and value.dim()]
        return len({len(value) for value in inputs}) > 1 or not _stacked(inputs)
    if isinstance(item, (tuple, list)) and item and not isinstance(_tensor(item), Tensor):
        first, last = (_tensor(part) for part in (item[0], item[-1]))
        if isinstance(first, Mapping):
            return _one_sample(first)
        if len(item) > 1 and isinstance(last, Tensor) and isinstance(first, Tensor):
            return last.dim() == 0 or first.dim() < 2 or last.shape[0] != first.shape[0]
        return not isinstance(first, Tensor) or _single(first)
    value = _tensor(item)
    return not isinstance(value, Tensor) or _single(value)


def _stacked(inputs: Sequence[Tensor]) -> bool:
    """Whether tensors with the same first side are a batch: one of them is, or vectors stand beside images."""
    sides = {value.dim() for value in inputs}
    return not all(map(_single, inputs)) or (1 in sides and max(sides) > 2)


def _single(value: Tensor) -> bool:
    return value.dim() < 2 if not value.is_floating_point() else value.dim() % 2 == 1 or not value.dim()


def _parts(count: int, size: int, shuffle: bool, seed: int) -> Sequence[Tensor]:
    """Which samples make each batch."""
    if not count:
        return ()
    if not shuffle:
        return cast("Sequence[Tensor]", torch.arange(count).split(size))
    return cast("Sequence[Tensor]", torch.randperm(count, generator=torch.Generator().manual_seed(seed)).split(size))


def _named_columns(data: Mapping[Any, Any]) -> dict[str, Tensor]:
    columns = {str(name): _tensor(value) for name, value in data.items()}
    tensors = {name: value for name, value in columns.items() if isinstance(value, Tensor) and value.dim()}
    if len({len(value) for value in tensors.values()}) != 1:
        sides = ", ".join(f"{name}: {tuple(value.shape)}" for name, value in tensors.items()) or "no tensors"
        raise BadInput(f"A dict of data must hold tensors with one entry for each sample, but has {sides}.")
    return tensors


def _stack(items: list[Any]) -> Any:
    """Samples as one batch; token sequences of unequal length are padded, with an attention mask that says where."""
    first = items[0]
    if isinstance(first, Batch):
        raise BadInput("A list of Batch objects holds batches already: pass it without collate.")
    items = [_named_parts(item) for item in items]
    first = items[0]
    try:
        if isinstance(first, Mapping):
            return _stack_named(items)
        if isinstance(first, (tuple, list)) and first and isinstance(first[0], Mapping):
            labels = [torch.as_tensor(item[-1]) for item in items] if len(first) > 1 else None
            named = _stack_named([item[0] for item in items])
            return named if labels is None else (named, torch.stack(labels))
        if isinstance(first, tuple):
            items = [tuple(_numbers(part) for part in item) for item in items]
        return default_collate(items)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise BadInput(
            f"The samples cannot be stacked to a batch ({first_line(error)}): pass a DataLoader with a collate_fn."
        ) from error


def _numbers(part: Any) -> Any:
    """A list of numbers as a tensor: torch would take it for so many inputs."""
    plain = isinstance(part, list) and part and all(isinstance(number, (int, float)) for number in part)
    return torch.tensor(part) if plain else part


def _stack_named(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    stacked: dict[str, Any] = {}
    padded = False
    for name in items[0]:
        values = [_tensor(item[name]) for item in items]
        if not all(isinstance(value, Tensor) for value in values):
            continue  # text, file names
        if len({value.shape for value in values}) > 1:
            if any(value.dim() != 1 for value in values):
                raise BadInput(f"The samples' {name!r} differ in shape: pass a DataLoader with a collate_fn.")
            filler = IGNORED if name in LABELS else 0
            stacked[name] = nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=filler)
            padded = padded or name == "input_ids"
            if name == "input_ids":
                lengths = torch.tensor([len(value) for value in values])
        else:
            stacked[name] = torch.stack(values)
    if padded and "attention_mask" not in stacked:
        stacked["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return stacked
