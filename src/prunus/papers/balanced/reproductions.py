"""Tables of the balanced-sparsity paper again: energies by bank size, times of one matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from prunus.papers import balanced
from prunus.papers.reproducing import reproduction

_BALANCED = "Yao et al. 2019, Balanced Sparsity for Efficient DNN Inference on GPU"

# Language model on PTB: perplexity after pruning, dense about 78.8; by bank size and sparsity.
_PERPLEXITY = {
    25: {0.6: 78.3, 0.7: 78.6, 0.8: 79.4},
    50: {0.6: 78.4, 0.7: 78.7, 0.8: 79.2},
    100: {0.6: 78.4, 0.7: 78.6, 0.8: 79.2},
}


@reproduction(
    "energy-by-bank",
    "Energy removed by bank size, beside the published perplexities",
    f"{_BALANCED}, perplexity by bank size; energies by ledger B-3 and B-6",
    minutes=0.1,
)
def energy_by_bank(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Exact energies of normal weights, the same drawn at random, and the published perplexity."""
    generator = np.random.default_rng(seed)
    for bank, published in _PERPLEXITY.items():
        for sparsity, perplexity in published.items():
            removed = round(sparsity * bank)
            exact = balanced.bank_energy(bank, removed)
            free = float(balanced.limit_energy(removed / bank)["energy"])
            drawn = np.sort(np.square(generator.standard_normal((20_000, bank))), axis=1)
            shares = drawn[:, :removed].sum(1) / bank
            error = float(shares.std(ddof=1) / math.sqrt(len(shares)))
            yield {
                "bank": bank,
                "sparsity": sparsity,
                "published perplexity": perplexity,
                "energy, free choice": free,
                "energy, banks": exact,
                "excess, %": 100 * (exact / free - 1),
                "drawn": float(shares.mean()),
                "standard errors": (float(shares.mean()) - exact) / error,
            }


# Published microseconds: dense, unstructured, balanced; the matrices stand for one layer of these recurrent networks.
_TIMES = (
    ("PTB LSTM 1500", 0.8, 294.1, 370.9, 120.2, (6000, 3000)),
    ("TIMIT BiLSTM 1024", 0.875, 117.9, 190.5, 83.9, (4096, 2048)),
)


@reproduction(
    "balanced-times",
    "Dense, unstructured and balanced times: their GPU, this CPU",
    f"{_BALANCED}, headline times (batch 1)",
    minutes=0.5,
)
def balanced_times(seed: int = 0) -> Iterator[dict[str, Any]]:
    """One matrix of each network's size on one example: what this machine's kernels make of the same sparsity."""
    import torch

    import prunus
    from prunus.study.timing import in_turn

    for name, sparsity, dense, unstructured, ours, (rows, columns) in _TIMES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(columns, rows)).eval()
            example = torch.randn(1, columns)
        for pattern, published in (("unstructured", unstructured), ("balanced:16", ours)):
            masks = prunus.find_masks(model, sparsity, pattern=pattern, seed=seed)
            fast = prunus.compress(model, masks, example=example, select="always")
            with torch.no_grad():
                pair = in_turn(lambda: model(example), lambda: fast(example))  # noqa: B023 - called at once
            yield {
                "network": name,
                "sparsity": sparsity,
                "pattern": pattern,
                "published, us": published,
                "published, times faster": dense / published,
                "ours, us": 1e6 * pair.second,
                "ours, times faster": pair.ratio,
                "if every saved product saved time": 1 / balanced.ideal_time(1.0, 0.0, sparsity),
            }
