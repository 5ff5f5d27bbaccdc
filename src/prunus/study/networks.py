"""The network and the data of a cell, as a worker builds and reads them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from prunus import __version__
from prunus.adapters import batches, main_output
from prunus.errors import BadInput
from prunus.named_data import read_data
from prunus.study.grid import Cell

_BATCH = 64
"""Examples of a batch when networks are evaluated: activations of a batch should fit into the cache."""


def build(cell: Cell) -> nn.Module:
    """A new network of the cell's name, width and seed."""
    from prunus import models

    if cell.model.partition(":")[0] in models.names():
        return models.make(cell.model, width=cell.width, seed=cell.seed)
    if cell.width != 1:
        raise BadInput(f"The model {cell.model!r} is not of the zoo and has no width factor: leave width at 1.")
    return models.resolve(cell.model)


def restored(cell: Cell, weights: bytes) -> nn.Module:
    """The dense network with the weights that `train_base` returned."""
    from prunus.storage import read_tensors

    model = build(cell)
    tensors, _ = read_tensors(weights, "weights", f"The dense network of {cell.network}")
    model.load_state_dict(tensors)
    return model.eval()


def load(cell: Cell, split: str) -> Any:
    """One part of the cell's data; a worker reads it once."""
    return read_data(cell.data, split, cell.settings.data_dir or None, cell.model)


def stored_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that a file of this model holds, each once."""
    tensors = {id(value): value for value in model.state_dict(keep_vars=True).values()}
    return sum(value.nbytes for value in tensors.values())


def versions() -> dict[str, str]:
    return {
        "prunus": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": ", ".join(filter(None, (_processor(), _instructions()))),
        "threads": str(torch.get_num_threads()),
    }


@functools.cache
def _processor() -> str:
    """The processor's name where the system gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def _instructions() -> str:
    """Those that the integer kernels use here, which decide how fast int8 is: "AVX2", "AVX512-VNNI"."""
    from prunus.sparse.machine import integer_instructions

    return integer_instructions().upper()


def settle(seed: int) -> None:
    """One thread, so that sums are taken in the same order however many cells run side by side."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)


@contextlib.contextmanager
def quick(model: nn.Module) -> Iterator[None]:
    """Images with the channels last while a network of plain convolutions is evaluated or trained: a third faster."""
    fits = all(parameter.dim() <= 4 for parameter in model.parameters())
    if fits:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        if fits:
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def measure_quality(metric: str, model: nn.Module, data: Any) -> dict[str, float | None]:
    """The study's metric as "quality"; loss and accuracy beside it where the metric is the accuracy."""
    from prunus.training import evaluate
    from prunus.training.metrics import measure, require_fit

    if metric != "accuracy":
        return {"quality": measure(metric, model, data), "loss": None, "accuracy": None}
    require_fit(metric, model, data)
    loss, accuracy = evaluate(model, data, batch_size=_BATCH)
    return {"quality": accuracy, "loss": loss, "accuracy": accuracy}


def chance(metric: str, data: Any) -> float | None:
    """The accuracy that a network without any skill may show: the largest class, and three standard errors more."""
    if metric != "accuracy":
        return None
    some = batches(drawn(data, 2048), 256)
    labels = torch.cat([b.labels for b in some if b.labels is not None] or [torch.empty(0)])
    if not len(labels) or labels.is_floating_point() or labels.dim() > 1:
        return None
    share = float(labels.bincount().max()) / len(labels)
    return share + 3 * math.sqrt(share * (1 - share) / len(labels))


def drawn(data: Any, count: int) -> Any:
    """So many samples from anywhere in the data, which may be sorted; always the same ones, in their order."""
    if count >= len(data):
        return data
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count]
    return Subset(data, sorted(chosen.tolist()))


def first_inputs(data: Any, count: int) -> Tensor | Mapping[str, Tensor]:
    """The first inputs of a data set: one tensor, or tensors by name for models of text. Of pairs, the first texts."""
    rows = list(itertools.islice((data[place] for place in range(min(count, len(data)))), count))
    if rows and isinstance(rows[0], tuple) and isinstance(rows[0][0], Mapping):
        rows = [row[0] for row in rows]
    if not rows or not isinstance(rows[0], Mapping):
        from prunus.training.batches import first_inputs

        return first_inputs(data, count)
    return dict(next(batches(rows, count)).kwargs)


def call(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """The output of a model as one tensor."""
    return main_output(model(inputs) if isinstance(inputs, Tensor) else model(**inputs))
