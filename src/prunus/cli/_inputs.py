"""What a command is told about a model's inputs, data and quality."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Input = Annotated[
    str | None, Parameter(name="--input", help="Shape of one input of a model of your own, as `3x224x224`.")
]
InputIds = Annotated[int | None, Parameter(help="So many token ids as the input of a language model.")]
Metric = Annotated[
    str, Parameter(help="accuracy, perplexity, spearman, or `package.module:function` of (model, data).")
]


def example_for(network: Any, batch: int = 1, shape: str | None = None, tokens: int | None = None) -> Any:
    """An input of the shape that the flags give, or the model tells; refused where neither does."""
    from prunus.adapters import example_input

    return example_input(network, batch=batch, shape=None if shape is None else _sides(shape), tokens=tokens)


def example_or_none(network: Any, batch: int = 1, shape: str | None = None, tokens: int | None = None) -> Any:
    """The same, or None for a model whose input shape was not given."""
    from prunus.errors import BadInput

    try:
        return example_for(network, batch, shape, tokens)
    except BadInput:
        if shape is not None or tokens is not None:
            raise
        return None


def _sides(text: str) -> tuple[int, ...]:
    from prunus.errors import BadInput

    parts = text.lower().replace("*", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise BadInput(f"{text!r} is not the shape of an input: write its sides as 3x224x224.")
    return tuple(int(part) for part in parts)


def data_for(name: str, split: str, folder: Path | None, model: str) -> Any:
    """A data set by name, or the user's own: "package.module:dataset", a file of text, or a folder of images."""
    from prunus.study.networks import read_data

    return read_data(name, split, None if folder is None else str(folder), model)


def measure(metric: str, network: Any, data: Any) -> float:
    """The quality of a model on data."""
    from prunus.training import metrics

    return metrics.measure(metric, network, data)
