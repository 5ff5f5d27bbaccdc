"""Data, models and outputs of other libraries, read in one way.

    for batch in batches(data, size=32):          # a Dataset, DataLoader, list, dict of tensors, numpy array, ...
        output = call(model, batch)               # as the model wants it: positional or by name, labels left out
        logits = main_output(output)              # one tensor, whatever the model returns

`Batch` is what all readers of data work with. `example_input` makes one input for a model whose inputs can be known.
"""

from __future__ import annotations

from prunus.adapters._calls import (
    arguments,
    as_inputs,
    as_weights,
    batch_loss,
    call,
    check_finite,
    forward_names,
    main_output,
    output_tensors,
)
from prunus.adapters._data import IGNORED, LABELS, Batch, IndexedSamples, as_batch, batches, unpadded
from prunus.adapters._examples import example_input

__all__ = [
    "IGNORED",
    "LABELS",
    "Batch",
    "IndexedSamples",
    "arguments",
    "as_batch",
    "as_inputs",
    "as_weights",
    "batch_loss",
    "batches",
    "call",
    "check_finite",
    "example_input",
    "forward_names",
    "main_output",
    "output_tensors",
    "unpadded",
]
