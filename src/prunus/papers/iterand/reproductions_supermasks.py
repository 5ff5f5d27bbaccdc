"""Edge-popup, IteRand, Gem-Miner and multicoated supermasks at equal budget, in small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import Subset

from prunus.models import make
from prunus.papers.reproducing import reproduction
from prunus.papers.runs import digits, summary
from prunus.training import FitConfig, TicketOptions, accuracy, find_ticket

VARIANTS: dict[str, tuple[str, TicketOptions]] = {
    "edge-popup": ("edge-popup", TicketOptions()),
    "iterand": ("iterand", TicketOptions()),
    "gem-miner": ("gem-miner", TicketOptions()),
    "gem-miner, global, not restored": ("gem-miner", TicketOptions(allocation="global", restore=False)),
    "multicoated, 3 uniform": ("multicoated", TicketOptions()),
    "multicoated, 3 linear": ("multicoated", TicketOptions(coating="linear")),
}
"""The second Gem-Miner is the published one: one ranking over all layers, and at least the sparsity asked for."""

FREEZES = 30
"""As often as in the authors' settings, whatever the length."""


@reproduction(
    "ticket-supermasks",
    "Four ways to find a ticket at equal budget, on digits",
    "Ramanujan et al. 2020; Chijiwa et al. 2021; Sreenivasan et al. 2022; Okoshi et al. 2022: none has these settings",
    minutes=2.0,
)
def supermasks(
    seed: int = 0,
    seeds: int = 2,
    rates: Sequence[float] = (0.1, 0.3, 1.0),
    epochs: int = 30,
    networks: Sequence[tuple[str, float]] = (("64-16-16-10", 0.5), ("64-64-64-10", 0.9)),
) -> Iterator[dict[str, Any]]:
    """Same weights, steps and batches for all; each method takes the rate that is best on samples held out.

    These are 297 of the training part, and the rate is chosen with the first seed. There are no norms, so the random
    constants are scaled: the weights that take part have Kaiming's mean square, with each coat counted.
    """
    train, test = digits()
    part, held_out = Subset(train, range(1000)), Subset(train, range(1000, 1297))
    for sizes, sparsity in networks:
        for name, (method, options) in VARIANTS.items():
            run = partial(_found, method=method, options=options, sizes=sizes, sparsity=sparsity, epochs=epochs)
            best = max(rates, key=lambda rate: run((part, held_out), rate=rate, seed=seed + 1)[0])
            found = [run((train, test), rate=best, seed=number) for number in range(seed + 1, seed + 1 + seeds)]
            yield {
                "network": sizes,
                "method": name,
                "learning rate": best,
                "sparsity": round(sum(zeros for _, zeros in found) / seeds, 4),
                **summary([right for right, _ in found]),
                "seeds": seeds,
                "epochs": epochs,
            }


def _found(
    pair: Any, sizes: str, method: str, sparsity: float, epochs: int, rate: float, seed: int, options: TicketOptions
) -> tuple[float, float]:
    """Accuracy in per cent, and the zeros there are."""
    train, test = pair
    model = make(f"fc:{sizes}", init="signed_constant", seed=seed, bias=False)
    coats = options.coats if method == "multicoated" else 1
    with torch.no_grad():
        for weight in model.parameters():
            weight.div_(math.sqrt((1 - sparsity) * (coats + 1) * (2 * coats + 1) / 6))
    config = FitConfig(schedule="cosine-epoch", lr=rate, seed=seed, progress=False)
    steps = epochs * -(-len(train) // config.batch_size)
    period = max(1, steps // (FREEZES + 1)) if method == "gem-miner" else 7
    ticket = find_ticket(model, train, method, sparsity, period, 0.1, f"{epochs}ep", config=config, options=options)
    return 100 * accuracy(ticket.model, test), ticket.masks.sparsity
