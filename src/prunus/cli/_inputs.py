"""Flags for a model's inputs, data and quality, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Input = Annotated[
    str | None, Parameter(name="--input", help="Shape of one input of a model of your own, as `3x224x224`.")
]
InputIds = Annotated[int | None, Parameter(help="So many token ids as the input of a language model.")]
Metric = Annotated[
    str | None,
    Parameter(
        help="accuracy, perplexity, spearman, or `package.module:function` of (model, data); what fits the data "
        "unless given."
    ),
]


def example_for(network: Any, batch: int = 1, shape: str | None = None, tokens: int | None = None) -> Any:
    """An input of the shape that the flags or the model give; refused where neither does."""
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


def real_example(network: Any, shape: str | None = None, tokens: int | None = None) -> Any:
    """One input as a tensor of real numbers, for statements about all inputs around it; None where it is not known."""
    from prunus.errors import BadInput

    example = example_or_none(network, 1, shape, tokens)
    if isinstance(example, dict):  # a model of transformers
        example = next(iter(example.values()))
    if example is not None and not example.is_floating_point():
        raise BadInput(
            f"{type(network).__name__} takes token ids, which have no surroundings: this works for networks that take "
            "real numbers, such as images."
        )
    return example


def _sides(text: str) -> tuple[int, ...]:
    from prunus.errors import BadInput

    parts = text.lower().replace("*", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise BadInput(f"{text!r} is not the shape of an input: write its sides as 3x224x224.")
    return tuple(int(part) for part in parts)


def data_for(name: str, split: str, folder: Path | None, model: str) -> Any:
    """A data set by name, or the user's own: "package.module:dataset", a file of text, or a folder of images."""
    from prunus.named_data import read_data

    return read_data(name, split, None if folder is None else str(folder), model)


def own_pair(name: str, folder: Path | None, model: str) -> tuple[Any, Any] | None:
    """(samples to look at, samples to measure on) of data that come without parts; None for others.

    A fifth is held aside for measuring, if there are ten samples or more: `named_data` says which. Of pairs of texts
    in a file each text is a sample to look at.
    """
    from prunus.data.own import is_own
    from prunus.named_data import has_parts

    if has_parts(name):
        return None
    looked, measured = (data_for(name, split, folder, model) for split in ("train", "test"))
    if is_own(name) and isinstance(looked[0], tuple) and len(looked[0]) == 3:
        looked = [text for pair in looked for text in pair[:2]]
    return looked, measured


def fitting_example(network: Any, data: Any) -> Any:
    """One input of the data as a batch; refused where the network cannot run on it."""
    from prunus.training.batches import first_inputs
    from prunus.training.objective import check_fits

    example = first_inputs(data, 1)
    check_fits(network, example)
    return example


def data_pair(name: str, folder: Path | None, model: str = "") -> tuple[Any, Any]:
    """Training and test data; the test data may be missing for a user's own set.

    `model` is how the command names it: its folder holds the tokenizer for texts of the user's own.
    """
    from prunus.data import load
    from prunus.errors import BadInput

    own = own_pair(name, folder, model)
    if own is not None:
        return own
    if name == "imagenet":
        raise BadInput(
            "ImageNet does not come with Prunus: give your own data set with --data package.module:dataset, a function "
            "of (split) that returns a torch Dataset of (image, label)."
        )
    train = load(name, split="train", folder=folder)
    try:
        return train, load(name, split="test", folder=folder)
    except BadInput:
        if ":" in name:
            return train, None
        raise


def data_sets(name: str | None, folder: Path | None, model: str, look: bool) -> tuple[Any, Any]:
    """(samples to look at, samples to measure on): the first only where the command needs to `look`."""
    if name is None:
        return None, None
    return data_pair(name, folder, model) if look else (None, data_for(name, "test", folder, model))


def points_of(data: Any, count: int) -> Any:
    """The first inputs of a data set, stacked: points for certificates of their neighbourhoods."""
    from prunus.adapters import batches
    from prunus.errors import BadInput

    found = next(batches(data, count)).inputs
    if not found.is_floating_point():
        raise BadInput(
            "The data hold token ids or other whole numbers, which have no surroundings: give data of real numbers, "
            "such as images."
        )
    return found[:count]


def metric_for(metric: str | None, data: Any) -> str:
    """The metric that was asked for, or the one that fits the samples."""
    from prunus.training import metrics

    return metrics.fitting(data) if metric is None else metric


def measure(metric: str, network: Any, data: Any) -> float:
    """The quality of a model on data."""
    from prunus.training import metrics

    return metrics.measure(metric, network, data)


def quality(network: Any, test: Any, metric: str | None, when: str) -> dict[str, Any]:
    """{"metric": name, "name_before": value}; empty where there is nothing to measure, unless a metric was named."""
    from prunus.errors import BadInput

    if test is None:
        return {}
    name = metric_for(metric, test)
    try:
        return {"metric": name, f"{name}_{when}": measure(name, network, test)}
    except BadInput:  # numbers as labels, or an encoder without a head
        if metric is not None:
            raise
        return {}


def quality_line(record: dict[str, Any]) -> str:
    """The metric before and after, as a line of text; empty where nothing was measured."""
    name = record.get("metric")
    if name is None:
        return ""
    form = "{:.2%}" if name == "accuracy" else "{:.4g}"
    before, after = (form.format(record[f"{name}_{when}"]) for when in ("before", "after"))
    return f"{name} {before} before, {after} after"
