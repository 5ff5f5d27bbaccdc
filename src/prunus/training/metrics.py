"""How good a model is on data, as one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from prunus._by_path import import_object, is_import_path
from prunus.adapters import IGNORED, Batch, IndexedSamples, batches, call, forward_names, main_output
from prunus.errors import BadInput, UnknownName
from prunus.settings.study import METRICS
from prunus.training.objective import accuracy, evaluate

__all__ = ["accuracy", "embed", "fitting", "lower_is_better", "measure", "perplexity", "spearman"]


def perplexity(model: nn.Module, data: Any, batch_size: int = 8) -> float:
    """exp of the mean loss of each predicted token, as the model itself computes it.

    Args:
        model: a language model whose forward takes labels.
        data: samples with input_ids and labels; texts with nothing to predict, as of a single token, are left out.
        batch_size: samples at a time.

    Returns:
        The perplexity; smaller is better.

    Raises:
        BadInput: The model cannot be run on the data, or no text has a token to predict.

    Example:
        >>> from types import SimpleNamespace
        >>> class Uniform(torch.nn.Module):
        ...     def forward(self, input_ids, labels=None):
        ...         logits = torch.zeros(*input_ids.shape, 7)
        ...         loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        ...         return SimpleNamespace(loss=loss, logits=logits)
        >>> ids = torch.tensor([1, 2, 3])
        >>> round(prunus.training.perplexity(Uniform(), [{"input_ids": ids, "labels": ids}] * 4), 3)
        7.0
    """
    return math.exp(min(700.0, evaluate(model, _predicting(model, data), batch_size)[0]))


def _predicting(model: nn.Module, data: Any) -> Any:
    """The data without texts of which the model predicts nothing, as of a single token, which has none before it."""
    samples = IndexedSamples(data)
    short = [place for place in range(len(samples)) if _is_short(samples.take(torch.tensor([place])))]
    if not short:
        return data
    named = samples.columns
    rows: Any = [dict(zip(named, row)) for row in zip(*named.values())] if isinstance(named, dict) else samples.data

    def those(places: list[int]) -> Any:
        return DataLoader(Subset(rows, places), collate_fn=samples.collate)

    empty = {place for place in short if math.isnan(evaluate(model, those([place]))[0])}
    if len(empty) == len(samples):
        raise BadInput("No text has a token to predict, as each has a single one or no labels: give longer texts.")
    return those([place for place in range(len(samples)) if place not in empty]) if empty else data


def _is_short(batch: Batch) -> bool:
    """Is no token but the first labelled?"""
    labels = batch.labels if "input_ids" in batch.kwargs else None
    if labels is None or labels.dim() != 2 or labels.is_floating_point():
        return False
    return not bool((labels[:, 1:] != IGNORED).any())


@torch.no_grad()
def embed(model: nn.Module, data: Any, batch_size: int = 32) -> Tensor:
    """One vector for each sample: the mean of the last hidden state over the tokens, or the output as it is.

    Args:
        model: an encoder, or any model whose output is the embedding; its mode is put back afterwards.
        data: a data set or batches.
        batch_size: samples at a time.

    Returns:
        A tensor with one row for each sample.

    Example:
        >>> prunus.training.embed(torch.nn.Linear(8, 3), torch.zeros(5, 8)).shape
        torch.Size([5, 3])
    """
    training = model.training
    model.eval()
    found = []
    try:
        for batch in batches(data, batch_size):
            output = main_output(call(model, batch))
            found.append(_pooled(output, batch))
    finally:
        model.train(training)
    return torch.cat(found)


def _pooled(output: Tensor, batch: Batch) -> Tensor:
    if output.dim() < 3:
        return output
    mask = batch.kwargs.get("attention_mask")
    if mask is None:
        return output.mean(1)
    weight = mask.to(output.dtype).unsqueeze(-1)
    return cast("Tensor", (output * weight).sum(1) / weight.sum(1).clamp_min(1e-9))


def spearman(model: nn.Module, data: Any, batch_size: int = 32) -> float:
    """Rank correlation between the cosine similarity of two texts' embeddings and the similarity that was given.

    Args:
        model: an encoder.
        data: samples (tokens of one text, tokens of the other, similarity).
        batch_size: texts at a time.

    Returns:
        Spearman's correlation, in [-1, 1].

    Raises:
        BadInput: if the data are no such pairs.

    Example:
        >>> class Encoder(torch.nn.Embedding):
        ...     def forward(self, input_ids):
        ...         return super().forward(input_ids)
        >>> def tokens(*numbers):
        ...     return {"input_ids": torch.tensor(numbers)}
        >>> given = [(tokens(1, 2), 1.0), (tokens(1, 3), 0.5), (tokens(4, 5), 0.1)]
        >>> pairs = [(tokens(1, 2), other, similarity) for other, similarity in given]
        >>> -1.0 <= prunus.training.spearman(Encoder(8, 4), pairs) <= 1.0
        True
    """
    from scipy.stats import spearmanr

    rows = [data[number] for number in range(len(data))]
    if not rows or not all(isinstance(row, tuple) and len(row) == 3 and isinstance(row[0], Mapping) for row in rows):
        raise BadInput("Spearman's correlation needs pairs of texts with a similarity: name two columns of a file.")
    one, two = (embed(model, [row[side] for row in rows], batch_size) for side in (0, 1))
    found = nn.functional.cosine_similarity(one.double(), two.double())
    given = [float(row[2]) for row in rows]
    if len(set(given)) < 2:
        raise BadInput("Every pair has the same similarity, so there is no correlation: give them in a column, score.")
    return float(spearmanr(found.numpy(), given).statistic)


_KNOWN: dict[str, Callable[[nn.Module, Any], float]] = dict(zip(METRICS, (accuracy, perplexity, spearman), strict=True))


def measure(metric: str, model: nn.Module, data: Any) -> float:
    """The quality of a model on data, by the metric's name.

    Args:
        metric: "accuracy", "perplexity", "spearman", or "package.module:function" of (model, data).
        model: the model.
        data: what the metric reads.

    Returns:
        One number; `lower_is_better` says which way is good.

    Raises:
        BadInput: The metric is not known, or cannot be imported.

    Example:
        >>> data = (torch.eye(3), torch.arange(3))
        >>> prunus.training.metrics.measure("accuracy", torch.nn.Identity(), data)
        1.0
    """
    function = _function(metric)
    require_fit(metric, model, data)
    return float(function(model, data))


def fitting(data: Any) -> str:
    """The metric that fits samples.

    Args:
        data: a data set.

    Returns:
        "spearman" for pairs of texts, "perplexity" for texts without labels, else "accuracy".

    Example:
        >>> prunus.training.metrics.fitting([{"input_ids": [5, 7], "labels": [5, 7]}])
        'perplexity'
    """
    first = _first(data)
    if isinstance(first, tuple) and len(first) == 3 and isinstance(first[0], Mapping):
        return "spearman"
    if not isinstance(first, Mapping):
        return "accuracy"
    labels, ids = cast("Any", first.get("labels")), first.get("input_ids")
    if ids is None or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) != 1 or len(labels) != len(ids):
        return "accuracy"
    same = [bool(label == token) for label, token in zip(labels, ids) if label != IGNORED]
    return "perplexity" if same and all(same) else "accuracy"


def _first(data: Any) -> Any:
    listed = isinstance(data, Sequence) or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
    return data[0] if listed and not isinstance(data, Mapping) and len(data) else None


def require_fit(metric: str, model: nn.Module, data: Any) -> None:
    """Refuse a number that would mean nothing: hidden states taken for scores, or tokens compared with themselves.

    Args:
        metric: as in `measure`.
        model: the model.
        data: what the metric would read.

    Raises:
        BadInput: The metric does not fit the data or the model.

    Example:
        >>> require_fit("accuracy", torch.nn.Identity(), (torch.eye(3), torch.arange(3)))
    """
    if metric not in ("accuracy", "perplexity"):
        return
    fits = fitting(data)
    if fits == "spearman":
        raise BadInput(f"The data are pairs of texts, which have no {metric}: choose the metric spearman.")
    if metric == "accuracy" and fits == "perplexity":
        raise BadInput(
            "The data are texts without labels, which have no accuracy: choose the metric perplexity, as in "
            "--metric perplexity."
        )
    transformer = hasattr(getattr(model, "config", None), "model_type")
    if transformer and fits == "perplexity" and "Classification" in type(model).__name__:
        raise BadInput(
            f"{type(model).__name__} tells classes apart, so it has no perplexity: give texts with the number of their "
            "class in a column named label."
        )
    if transformer and isinstance(_first(data), Mapping) and "labels" not in forward_names(model)[0]:
        raise BadInput(
            f"{type(model).__name__} gives hidden states and no scores, so it has no {metric}: give pairs of texts, "
            "for the metric spearman, or a metric of your own."
        )


def lower_is_better(metric: str) -> bool:
    """Whether smaller values of a metric are better: perplexity, or a function with `lower_is_better = True`.

    Args:
        metric: as in `measure`.

    Returns:
        True or False.

    Raises:
        BadInput: The metric is not known, or cannot be imported.

    Example:
        >>> prunus.training.metrics.lower_is_better("perplexity")
        True
    """
    return metric == "perplexity" or bool(getattr(_function(metric), "lower_is_better", False))


def _function(metric: str) -> Callable[[nn.Module, Any], float]:
    if metric in _KNOWN:
        return _KNOWN[metric]
    if not is_import_path(metric):
        raise UnknownName("metric", metric, _KNOWN)
    return cast("Callable[[nn.Module, Any], float]", import_object(metric, "metric"))
