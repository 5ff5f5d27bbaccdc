"""Published results on noisy top-k that can be run again: error theorem, monotonicity, a calibration in use."""

from __future__ import annotations

import math
from typing import Any

import torch

from prunus.papers import noisy_topk as theory
from prunus.papers.reproducing import reproduction
from prunus.private.mechanism import NoisyTopK

_SOURCE = "noisy top-k gradient pruning (appendix)"
_ERROR_CASES = [
    (2000, 0.05, 0.0),
    (2000, 0.05, 1.0),
    (2000, 0.05, 2.0),
    (2000, 0.05, 8.0),
    (500, 0.2, 0.8),
    (1000, 0.7, 0.6),
]


@reproduction(
    "noisy-topk-error", "Expected error of noisy top-k: printed, corrected, measured", f"{_SOURCE}, Theorem 3"
)
def expected_error(seed: int = 0, draws: int = 400) -> list[dict[str, Any]]:
    """N-5: error over d sigma^2 for normal gradients, each with its own draw."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for d, k, theta in _ERROR_CASES:
        mech = NoisyTopK(round(k * d), theta)
        errors = []
        for number in range(draws):
            gradient = torch.randn(d, generator=generator, dtype=torch.float64)
            kept = mech.select(gradient, insecure_seed=seed * draws + number)
            errors.append(float(gradient.square().sum() - gradient[kept].square().sum()) / d)
        values = torch.tensor(errors)
        corrected, spread = mech.expected_error(d) / d, float(values.std()) / math.sqrt(draws)
        rows.append(
            {
                "d": d,
                "k": k,
                "theta": theta,
                "printed": theory.expected_error_limit_printed(d, k, theta)["relative"],
                "corrected": corrected,
                "measured": float(values.mean()),
                "standard error": spread,
                "standard errors": (float(values.mean()) - corrected) / spread,
            }
        )
    return rows


@reproduction("noisy-topk-monotone", "The expected error falls in theta, with slope -2 Var", f"{_SOURCE}, Lemma 4")
def monotone(d: int = 2000, k: float = 0.05) -> list[dict[str, Any]]:
    """N-6: mean swaps and its derivative against a difference quotient."""
    m, step = round(k * d), 1e-4
    rows = []
    for theta in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0):
        law = theory.SwapLaw(m, d - m, theta)
        ahead, behind = theory.SwapLaw(m, d - m, theta + step), theory.SwapLaw(m, d - m, theta - step)
        rows.append(
            {
                "theta": theta,
                "mean swaps": law.mean,
                "-2 Var": -2.0 * law.variance,
                "difference quotient": (ahead.mean - behind.mean) / (2.0 * step),
                "expected error": NoisyTopK(m, theta).expected_error(d) / d,
            }
        )
    return rows


@reproduction(
    "noisy-topk-calibration", "What the worst-case calibration keeps beyond a random mask", "a public implementation"
)
def calibration() -> list[dict[str, Any]]:
    """N-14: d = 32,768, k = 10 %, 875 steps of 4,096 of 50,000 records, 1 % of the privacy on the indices."""
    d, m, steps, rate = 32_768, 3277, 875, 4096 / 50_000
    rows = []
    for epsilon in (1.0, 3.0, 8.0, 100.0):
        step = 0.01 * epsilon / (steps * rate)
        theta = theory.theta_for_local_epsilon(d, m, step)
        law = theory.SwapLaw(m, d - m, theta)
        rows.append(
            {
                "total epsilon": epsilon,
                "epsilon of a step": step,
                "theta": theta,
                "gain over a random mask": law.gain / m,
                "first order": theory.gain_over_random(d, m, theta)["gain"],
            }
        )
    return rows
