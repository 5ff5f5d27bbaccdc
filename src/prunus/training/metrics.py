"""How good a model is on data, as one number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import Batch, batches, call, main_output
from prunus.errors import BadInput
from prunus.training.objective import accuracy, evaluate

__all__ = ["accuracy", "embed", "perplexity", "spearman"]


def perplexity(model: nn.Module, data: Any, batch_size: int = 8) -> float:
    """exp of the mean loss of each predicted token, as the model itself computes it.

    Args:
        model: a language model whose forward takes labels.
        data: samples with input_ids and labels.
        batch_size: samples at a time.

    Returns:
        The perplexity; smaller is better.
    """
    return math.exp(min(700.0, evaluate(model, data, batch_size)[0]))


@torch.no_grad()
def embed(model: nn.Module, data: Any, batch_size: int = 32) -> Tensor:
    """One vector for each sample: the mean of the last hidden state over the tokens, or the output as it is."""
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
    return (output * weight).sum(1) / weight.sum(1).clamp_min(1e-9)


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
    """
    from scipy.stats import spearmanr

    rows = [data[number] for number in range(len(data))]
    if not rows or not all(isinstance(row, tuple) and len(row) == 3 and isinstance(row[0], Mapping) for row in rows):
        raise BadInput("Spearman's correlation needs pairs of texts with a similarity: name two columns of a file.")
    one, two = (embed(model, [row[side] for row in rows], batch_size) for side in (0, 1))
    found = nn.functional.cosine_similarity(one.double(), two.double())
    return float(spearmanr(found.numpy(), [float(row[2]) for row in rows]).statistic)
