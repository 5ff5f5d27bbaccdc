"""DP-SGD with dense gradients, random masks, noisy top-k and the two-level rule at equal total privacy (N-14)."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunus.papers import noisy_topk as theory
from prunus.papers.noisy_topk.simulation import accuracy, without_advice
from prunus.private.accounting import BudgetSpent, noise_for_budget
from prunus.private.dpsgd import PrivateOptions, make_private
from prunus.private.mechanism import NoisyTopK, TwoLevelTopK
from prunus.settings.private import ComparisonOptions

# Share of the privacy that goes to the indices in a public implementation of noisy top-k.
INDEX_SHARE = 0.01


def compare(options: ComparisonOptions, advance: Callable[..., None] | None = None) -> list[dict[str, Any]]:
    """One row for each method: mean and standard error of the accuracy, privacy spent, and what theory predicts."""
    from prunus.data import load

    train: Any = load(options.data, split="train", folder=options.folder)
    test = load(options.data, split="test", folder=options.folder)
    batches = math.ceil(len(train) / options.batch)
    steps, rate = options.epochs * batches, 1.0 / batches
    rows = []
    for name in options.methods:
        index = INDEX_SHARE * options.epsilon / (steps * rate) if name in ("noisy-top-k", "two-level") else 0.0
        noise = noise_for_budget(options.epsilon, options.delta, steps, rate, index)
        runs = []
        for run in range(options.seeds):
            runs.append(_train(name, index, noise, train, test, options, options.seed + run))
            if advance:
                advance()
        rows.append(_row(name, index, noise, runs, options))
    return rows


def _train(
    name: str, index: float, noise: float, train: Any, test: Any, options: ComparisonOptions, seed: int
) -> tuple[float, float, int]:
    """(accuracy, epsilon spent, kept-fraction denominator d) of one run.

    Seeded, so it gives no privacy: for measurements only.
    """
    from prunus.models import make

    torch.manual_seed(seed)
    model = make(options.model_name)
    d = sum(p.numel() for p in model.parameters())
    loader = DataLoader(TensorDataset(*train.tensors), batch_size=options.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    with without_advice():
        private = make_private(
            model,
            optimizer,
            loader,
            _mechanism(name, index, d, options.k),
            noise_multiplier=noise,
            clip=options.clip,
            keep=None if name == "dense" else options.k,
            options=PrivateOptions(options.epsilon, options.delta, insecure_seed=seed),
        )
        # The budget may end a step or two before the last epoch does: that is what it is for.
        with contextlib.suppress(BudgetSpent):
            for _ in range(options.epochs):
                for inputs, labels in private.loader:
                    private.optimizer.zero_grad()
                    nn.functional.cross_entropy(private.model(inputs), labels).backward()
                    private.optimizer.step()
    return accuracy(private.model, test), private.optimizer.epsilon, d


def _mechanism(name: str, index: float, d: int, k: float) -> Any:
    if name == "noisy-top-k":
        return NoisyTopK.from_local_epsilon(k, index, d)
    return TwoLevelTopK(k, index) if name == "two-level" else name


def _row(
    name: str, index: float, noise: float, runs: list[tuple[float, float, int]], options: ComparisonOptions
) -> dict[str, Any]:
    accuracies, d = [run[0] for run in runs], runs[0][2]
    spread = statistics.stdev(accuracies) / math.sqrt(len(runs)) if len(runs) > 1 else None
    mech = _mechanism(name, index, d, options.k) if name in ("noisy-top-k", "two-level") else None
    kept = mech.kept_fraction(d) if mech is not None else 1.0 if name == "dense" else options.k
    share = 1.0 if name == "dense" else options.k
    return {
        "method": name,
        "accuracy": statistics.mean(accuracies),
        "standard error": spread,
        "epsilon spent": max(run[1] for run in runs),
        "noise multiplier": noise,
        "index epsilon per step": index,
        "predicted share of top set": kept,
        "noise energy against dense": share,
        "d": d,
    }


def predictions(k: float, d: int, epsilon_step: float, noise_variance: float) -> dict[str, float]:
    """What theory predicts (N-11d, N-14).

    theta: worst-case calibration. gain: share of the top set beyond a random mask. best_k: share with the least error
    when each kept coordinate gets noise of `noise_variance` times the variance of a coordinate, if the top set were
    known.
    """
    m = max(round(k * d), 1)
    theta = theory.theta_for_local_epsilon(d, m, epsilon_step)
    gain = theory.gain_over_random(d, m, theta)["gain"]
    return {"theta": theta, "gain": gain, "best_k": theory.best_k(noise_variance)["k"]}
