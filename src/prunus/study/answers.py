"""How often a pruned network gives the answer of the dense one: its label, the next token, or the nearest text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunus.adapters import batches, main_output
from prunus.adapters import call as run
from prunus.study.grid import Cell
from prunus.study.networks import drawn, first_inputs, quick


def same_answers(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any) -> dict[str, Any]:
    """The share of answers that stay among `held_out` test samples.

    For labels these are drawn from the whole test set, which may be sorted, and there is a bound for all such inputs
    too, with 95 % confidence (ledger P-28). Metrics other than accuracy
    and those of text have no such answers.
    """
    if cell.settings.metric != "accuracy":
        return _texts(cell, dense, pruned, test)
    from prunus.certificates import certify_statistically

    points = first_inputs(drawn(test, cell.settings.held_out), cell.settings.held_out)
    with quick(dense), quick(pruned):
        found = certify_statistically(dense, pruned, points, confidence=0.95)
    labels = {} if found.agreement is None else {"agreement": found.agreement, "agreement_low": found.agreement_low}
    return {
        "held_out_bound": found.bound,
        "held_out_probability": found.probability,
        "held_out_median": found.median,
        **labels,
        "answers": len(next(iter(points.values())) if isinstance(points, Mapping) else points),
    }


@torch.no_grad()
def _texts(cell: Cell, dense: nn.Module, pruned: nn.Module, test: Any) -> dict[str, Any]:
    """The share that stays, and how many answers were asked for.

    Positions of one text, and texts with common neighbours, are not independent: the share is what was seen, without
    a statement on others.
    """
    count, metric = min(cell.settings.held_out, len(test)), cell.settings.metric
    if metric == "perplexity":
        same = torch.cat([_next(dense, pruned, batch) for batch in batches(_first(test, count), 4)])
    elif metric == "spearman":
        texts = [test[number][0] for number in range(count)]
        before, after = nearest(dense, texts), nearest(pruned, texts)
        same = before == after
    else:
        return {}
    return {"agreement": float(same.double().mean()), "answers": same.numel()}


def _first(test: Any, count: int) -> list[Any]:
    return [test[number] for number in range(count)]


def _next(dense: nn.Module, pruned: nn.Module, batch: Any) -> Tensor:
    before, after = (main_output(run(model, batch)).argmax(-1).flatten() for model in (dense, pruned))
    return before == after


def nearest(model: nn.Module, texts: list[Any]) -> Tensor:
    """For each text the place of the other one whose embedding has the largest cosine."""
    from prunus.training import embed

    found = nn.functional.normalize(embed(model, texts), dim=1)
    near = found @ found.T
    near.fill_diagonal_(-2.0)
    return near.argmax(1)
