"""A step of edge-popup and an event of IteRand against a plain SGD step; masks from scores against a full sort.

One thread, Conv6 at batch 128 on random images, momentum 0.9 and weight decay as in the paper (ledger I-5). Bounds: an
edge-popup step at most 1.1 SGD steps; an event at most one step, so that one every 300 steps adds at most a third of a
percent; masks at least five times faster than sorting.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch.utils.data import TensorDataset

import prunus.models
from benchmarks.harness import interleave, median, ratios, spread
from prunus.layers import prunable_weights
from prunus.select import drop_smallest
from prunus.training import FitConfig, Run, TicketOptions
from prunus.training.popup import Popup
from prunus.training.tickets import freeze


def _data(count: int) -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 3, 32, 32, generator=source), torch.randint(10, (count,), generator=source))


def _popup_run(init: str, data: TensorDataset, config: FitConfig) -> tuple[Run, Popup]:
    model = prunus.models.make("conv6", init=init, seed=0)
    weights = prunable_weights(model)
    freeze(model, weights)
    popup = Popup(weights, dict.fromkeys(weights, 0.5), 0, TicketOptions(), period=10**9, rate=0.1)
    run = Run(model, data, "1000it", config, parameters=list(popup.scores.values()), callbacks=[popup])
    popup.start(run)
    return run, popup


def steps(quick: bool) -> list[dict[str, Any]]:
    """SGD step, edge-popup step, IteRand event, on the same batch."""
    data = _data(32 if quick else 128)
    config = FitConfig(lr=0.01, batch_size=128)
    plain = Run(prunus.models.make("conv6", init="kaiming_uniform", seed=0), data, "1000it", config)
    inputs, labels, share = next(plain.batches.from_step(0))
    searches = {name: _popup_run(name, data, config) for name in ("signed_constant", "kaiming_uniform")}
    jobs = {"SGD step": lambda: plain._step(inputs, labels, share)}
    for name, (run, popup) in searches.items():
        jobs[f"edge-popup step, {name}"] = lambda run=run: run._step(inputs, labels, share)  # type: ignore[misc]
        jobs[f"IteRand event, {name}"] = lambda popup=popup: popup.rerandomise(299)  # type: ignore[misc]
    samples = interleave(jobs, repeats=3 if quick else 7)
    rows = []
    for name, values in samples.items():
        share_of_step = statistics.median(mine / other for mine, other in zip(values, samples["SGD step"]))
        row = {"what": name, "milliseconds": round(1e3 * median(values), 2), "spread": round(spread(values), 3)}
        row["SGD steps"] = round(share_of_step, 4)
        if "event" in name:
            row["added to a run, period 300"] = f"{share_of_step / 300:.4%}"
        rows.append(row)
    return rows


def masks(quick: bool) -> list[dict[str, Any]]:
    """Masks from the scores, against sorting them all."""
    rows = []
    for name in ("conv6",) if quick else ("conv6", "resnet18"):
        weights = prunable_weights(prunus.models.make(name, seed=0))
        scores = [weight.parameter.detach() for weight in weights.values()]

        def sort(scores: list[torch.Tensor] = scores) -> list[torch.Tensor]:
            found = []
            for score in scores:
                order = score.reshape(-1).sort(stable=True).indices
                mask = torch.ones(score.numel(), dtype=torch.bool)
                mask[order[: score.numel() // 2]] = False
                found.append(mask.view_as(score))
            return found

        def ours(scores: list[torch.Tensor] = scores) -> list[torch.Tensor]:
            return [drop_smallest(score, score.numel() // 2) for score in scores]

        assert all(torch.equal(one, two) for one, two in zip(sort(), ours()))
        samples = interleave({"full sort": sort, "drop_smallest": ours}, repeats=2 if quick else 5)
        rows.append(
            {
                "what": f"masks of {name}, {sum(score.numel() for score in scores):,} scores",
                "milliseconds": round(1e3 * median(samples["drop_smallest"]), 2),
                "spread": round(spread(samples["drop_smallest"]), 3),
                "full sort ms": round(1e3 * median(samples["full sort"]), 1),
                "times faster": round(ratios(samples, "drop_smallest")["full sort"], 1),
            }
        )
    return rows


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*steps(quick), *masks(quick)]
    finally:
        torch.set_num_threads(threads)
