"""How much the dual activations move with the covariance: the constants of Lemmas 9.15 and 9.17 (K-24b, K-24c)."""

from __future__ import annotations

import math

from prunus.formulas import domain
from prunus.formulas.binding import claim


@claim("K-24b")
def step_change(error: float) -> dict[str, float]:
    """K-24b (Lemma 9.17): entries of a unit-diagonal covariance move by error^2 / 2, kappa 0 by error at most.

    The largest move is 2 asin(error / sqrt 2) / pi, from correlation 1 - error^2 to a singular matrix with all
    entries 1 - error^2 / 2: at most half of what the lemma allows.
    """
    error = domain.real("error", error, 0.0, 1.0)
    return {"bound": error, "worst": 2 * math.asin(error / math.sqrt(2)) / math.pi}


@claim("K-24c")
def relu_lipschitz(deviation: float) -> float:
    """K-24c (Lemma 9.15): Lipschitz constant, in the largest entry, of the doubled ReLU moment near unit diagonal.

    With diagonal entries in [1 - eta, 1 + eta] the gradient's l1 norm is (pi - t + (r + 1/r) sin(t) / 2) / pi with
    r = sqrt of the ratio of the variances; its maximum is 1 + (eta / sqrt(1 - eta^2) - asin eta) / pi, which is
    1 + eta^3 / (3 pi) to first order. At eta = 0 it is 1, attained by parallel inputs.
    """
    eta = domain.probability("deviation", deviation, open_high=True)
    return 1 + (eta / math.sqrt((1 - eta) * (1 + eta)) - math.asin(eta)) / math.pi
