"""Noise on the released values, and how privacy adds up (N-10). "DP delta" is the delta of (epsilon, delta)-privacy."""

from __future__ import annotations

import math

from scipy import optimize, special

from prunus.formulas import domain
from prunus.formulas.binding import claim

_LOG_OF_NOTHING = -1e6  # tolerance

_ROOT2 = math.sqrt(2.0)


@claim("N-10a")
def composed_message(epsilon_index: float, epsilon_values: float, delta: float = 0.0) -> dict[str, float]:
    """N-10a: privacy of indices and values released together; values are drawn for the indices already released."""
    index = domain.real("epsilon_index", epsilon_index, 0.0)
    values = domain.real("epsilon_values", epsilon_values, 0.0)
    return {"epsilon": index + values, "delta": domain.probability("delta", delta, open_high=True)}


@claim("N-10b")
def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> dict[str, float]:
    """N-10b: standard deviation of the analytic Gaussian mechanism, and the classical one (proven for epsilon < 1)."""
    epsilon = domain.positive("epsilon", epsilon)
    delta = domain.probability("delta", delta, open_low=True, open_high=True)
    sensitivity = domain.positive("sensitivity", sensitivity)
    target = math.log(delta)

    def gap(logarithm: float) -> float:
        value = gaussian_delta(epsilon, math.exp(logarithm))
        return (math.log(value) if value > 0.0 else _LOG_OF_NOTHING) - target

    classical = math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    low = high = math.log(classical)
    while gap(low) <= 0.0:
        low -= 1.0
    while gap(high) > 0.0:
        high += 1.0
    root = float(optimize.brentq(gap, low, high, xtol=1e-15, rtol=1e-14))  # tolerance
    return {"sigma": sensitivity * math.exp(root), "classical": sensitivity * classical}


@claim("N-10c")
def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """N-10c: exact privacy curve of the Gaussian mechanism, Phi(a) - exp(epsilon) Phi(b).

    a, b = +-D/(2 sigma) - epsilon sigma/D. As exp(epsilon) phi(b) = phi(a), the difference is phi(a) times that of two
    Mills ratios, which keeps its digits where both terms are tiny.
    """
    epsilon = domain.real("epsilon", epsilon, 0.0)
    ratio = domain.positive("sensitivity", sensitivity) / domain.positive("sigma", sigma)
    a, b = 0.5 * ratio - epsilon / ratio, -0.5 * ratio - epsilon / ratio
    if a > 0.0:  # tolerance
        return float(special.ndtr(a)) - math.exp(epsilon + float(special.log_ndtr(b)))
    mills = float(special.erfcx(-a / _ROOT2)) - float(special.erfcx(-b / _ROOT2))
    return 0.5 * math.exp(-0.5 * a * a) * mills


@claim("N-10d")
def laplace_scale(clip: float, epsilon: float) -> dict[str, float]:
    """N-10d: Laplace noise for values clipped to a sum of magnitudes `clip`, local model: scale 2 clip / epsilon."""
    scale = 2.0 * domain.positive("clip", clip) / domain.positive("epsilon", epsilon)
    return {"scale": scale, "variance": 2.0 * scale**2}


@claim("N-10e")
def clip_sensitivity(clip: float, m: int) -> dict[str, float]:
    """N-10e: sensitivities of m values clipped one by one, local model: 2 clip m and 2 clip sqrt(m)."""
    clip = domain.positive("clip", clip)
    m = domain.whole("m", m, 1)
    return {"first": 2.0 * clip * m, "second": 2.0 * clip * math.sqrt(m)}


@claim("N-10h")
def composed_rounds(epsilon: float, rounds: int, delta: float = 0.0) -> dict[str, float]:
    """N-10h: basic composition over rounds; Renyi curves give less over many rounds."""
    rounds = domain.whole("rounds", rounds, 1)
    return {
        "epsilon": rounds * domain.real("epsilon", epsilon, 0.0),
        "delta": rounds * domain.real("delta", delta, 0.0),
    }


@claim("N-10i")
def gaussian_renyi(order: float, sigma: float, sensitivity: float = 1.0) -> float:
    """N-10i: Renyi divergence of the Gaussian mechanism, order sensitivity^2 / (2 sigma^2)."""
    order = domain.real("order", order, 1.0, open_low=True)
    ratio = domain.positive("sensitivity", sensitivity) / domain.positive("sigma", sigma)
    return 0.5 * order * ratio**2
