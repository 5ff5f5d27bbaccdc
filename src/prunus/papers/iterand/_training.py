"""Counts, schedules and weight distributions of edge-popup, IteRand and magnitude pruning (I-2 to I-6, I-14)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from prunus.formulas import domain
from prunus.formulas.binding import claim, printed


@claim("I-2a")
def pruned_count(n: int, sparsity: float, rule: str = "exact") -> int:
    """I-2a: weights pruned of n: round(sparsity n) ("exact"), or by the rule of the "iterand" or "hidden" code."""
    n = domain.whole("n", n, 1)
    share = Fraction(repr(domain.probability("sparsity", sparsity)))
    rule = domain.choice("rule of pruned_count", rule, ("exact", "iterand", "hidden"))
    if rule == "hidden":
        return math.floor(share * n)
    return round(share * (n if rule == "exact" else n - 1))


@claim("I-2b")
def cosine_step(step: float, epoch: int, epochs: int) -> float:
    """I-2b: learning rate of the per-epoch cosine schedule, step (1 + cos(pi epoch / epochs)) / 2."""
    step, epochs = domain.positive("step", step), domain.whole("epochs", epochs, 1)
    # cos^2 of the half angle: no cancellation in the last epochs.
    return step * math.cos(math.pi * domain.whole("epoch", epoch, 0, epochs) / (2 * epochs)) ** 2


@claim("I-2c")
def score_bound(fan: int, rule: str = "iterand") -> float:
    """I-2c: initial scores are uniform in [-bound, bound]."""
    fan = domain.whole("fan", fan, 1)
    rule = domain.choice("rule of score_bound", rule, ("iterand", "hidden"))
    return math.sqrt((6 if rule == "iterand" else 1) / fan)


@claim("I-3a")
def signed_constant(fan: int) -> dict[str, float]:
    """I-3a: signed-constant weights, plus or minus sqrt(2 / fan)."""
    variance = 2 / domain.whole("fan", fan, 1)
    return {"value": math.sqrt(variance), "variance": variance}


@claim("I-3b")
def uniform_bound(fan: int) -> dict[str, float]:
    """I-3b: Kaiming-uniform weights in [-bound, bound], bound^2 = 6 / fan, variance bound^2 / 3."""
    fan = domain.whole("fan", fan, 1)
    return {"bound": math.sqrt(6 / fan), "variance": 2 / fan}


@claim("I-3c")
def fan_in(channels: int, kernel: int = 1) -> int:
    """I-3c: fan-in of a layer, channels kernel^2 (kernel 1: linear)."""
    return domain.whole("channels", channels, 1) * domain.whole("kernel", kernel, 1) ** 2


@claim("I-4a")
def expected_resamples(iterations: int, period: int, rate: float) -> dict[str, Any]:
    """I-4a: re-randomisation events, and the mean number of fresh values of a weight that stays pruned."""
    iterations, period = domain.whole("iterations", iterations, 0), domain.whole("period", period, 1)
    return {"events": iterations // period, "resamples": iterations * domain.probability("rate", rate) / period}


@claim("I-4b")
def sign_flip_rate(rate: float) -> float:
    """I-4b: a re-drawn signed constant changes with chance one half only."""
    return domain.probability("rate", rate) / 2


@claim("I-4c")
def iteration_count(samples: int, batch: int, epochs: int = 1) -> int:
    """I-4c: iterations of a run, the last partial batch of each epoch included."""
    samples, batch, epochs = _run(samples, batch, epochs)
    return -(-samples // batch) * epochs


@printed("I-4c")
def iteration_count_printed(samples: int, batch: int, epochs: int = 1) -> int:
    """I-4c as printed: the partial batch forgotten."""
    samples, batch, epochs = _run(samples, batch, epochs)
    return samples // batch * epochs


@claim("I-4d")
def event_overhead(events: int, cost: float) -> float:
    """I-4d: seconds added by the re-randomisations."""
    return domain.whole("events", events, 0) * domain.real("cost", cost, 0.0)


@claim("I-6a")
def imp_density(rounds: int, fraction: float = 0.2) -> dict[str, float]:
    """I-6a: density and sparsity after rounds of iterative magnitude pruning."""
    rounds = domain.whole("rounds", rounds, 0)
    fraction = domain.probability("fraction", fraction, open_high=True)
    exponent = rounds * math.log1p(-fraction)
    return {"density": (1 - fraction) ** rounds, "sparsity": -math.expm1(exponent)}


@claim("I-6b")
def equal_fraction(sparsity: float, rounds: int = 3) -> float:
    """I-6b: fraction per round that reaches `sparsity` in equal rounds."""
    sparsity = domain.probability("sparsity", sparsity, open_high=True)
    return -math.expm1(math.log1p(-sparsity) / domain.whole("rounds", rounds, 1))


@claim("I-6c")
def open_lth_removed(remaining: int, fraction: float = 0.2) -> dict[str, int]:
    """I-6c: weights OpenLTH asks to remove in a round, and those it removes (distinct magnitudes): one more."""
    remaining = domain.whole("remaining", remaining, 2)
    share = Fraction(repr(domain.probability("fraction", fraction, open_low=True, open_high=True)))
    asked = math.ceil(share * remaining)
    return {"asked": asked, "removed": min(asked + 1, remaining)}


@claim("I-14")
def accuracy_error(accuracy: float, count: int) -> dict[str, float]:
    """I-14: binomial standard error of a measured accuracy, and the weight of one sample."""
    accuracy, count = domain.probability("accuracy", accuracy), domain.whole("count", count, 1)
    return {"sigma": math.sqrt(accuracy * (1 - accuracy) / count), "resolution": 1 / count}


def _run(samples: int, batch: int, epochs: int) -> tuple[int, int, int]:
    return domain.whole("samples", samples, 1), domain.whole("batch", batch, 1), domain.whole("epochs", epochs, 0)
