"""Inverse problems: the concentration for a wanted number of swaps, error or kept fraction (N-8, N-11)."""

from __future__ import annotations

import math

from prunus.errors import BadInput
from prunus.theory import _domain, _laws
from prunus.theory.order_statistics import sparsity_for_energy
from prunus.theory.swaps._counts import kept_count, law_of
from prunus.theory.swaps._errors import feasible_budget, swap_slope_limit

_ROUNDING = 1e-12  # accuracy only
_SLACK = 1e-9  # accuracy only


def theta_for_swaps(m: int, others: int, swaps: float) -> dict[str, float]:
    """N-11a: concentration with a wanted mean number of swaps; unique, as the mean falls in theta (N-6).

    Newton's method on the logarithm of the mean, held in a bracket: E[i] <= m others q bounds theta from above.
    """
    m = _domain.whole("m", m, 1)
    others = _domain.whole("others", others, 1)
    most = float(m) * others / (m + others)
    wanted = _domain.real("swaps", swaps, 0.0, most * (1.0 + _ROUNDING), open_low=True)
    if wanted >= most * (1.0 - _ROUNDING):
        return {"theta": 0.0, "start": 0.0}
    start = -0.5 * (math.log(wanted / (m - wanted)) + math.log(wanted / (others - wanted)))
    low, high = 0.0, 0.5 * math.log(float(m) * others / wanted) + _SLACK
    theta = min(max(start, low), high)
    for _ in range(100):  # accuracy only
        law = law_of(m, others, theta)
        near = law.gain < 0.5 * most  # accuracy only
        gap = most - wanted - law.gain if near else law.mean - wanted
        low, high = (theta, high) if gap > 0.0 else (low, theta)
        # Newton on log E[i] for a relative gap, on E[i] for a small one: the same to first order.
        step = math.log1p(gap / wanted) * law.mean / (2.0 * law.variance) if law.variance > 0.0 else math.inf
        moved = theta + step
        if not low <= moved <= high:
            moved = 0.5 * (low + high)
        if abs(moved - theta) <= 1e-15 * max(abs(theta), 1e-300):  # accuracy only
            return {"theta": moved, "start": start}
        theta = moved
    return {"theta": theta, "start": start}


def theta_for_error(d: int, k: float, budget: float, sigma: float = 1.0) -> dict[str, float]:
    """N-11b: concentration and mean swaps that meet an error budget, large-dimension constants."""
    d = _domain.whole("d", d, 2)
    m = kept_count(d, k)
    limits = feasible_budget(d, k, sigma)
    budget = _domain.positive("budget", budget)
    scale = d * sigma**2
    if budget <= limits["lowest"]:
        enough = smallest_k(budget / scale)
        raise BadInput(
            f"No concentration meets the error budget {budget:.6g} with k = {k:.6g}, as exact top-k already costs "
            f"{limits['lowest']:.6g}: keep k > {enough:.6g}, or allow a budget in ({limits['lowest']:.6g}, "
            f"{limits['highest']:.6g}]."
        )
    if budget > limits["highest"] * (1.0 + _ROUNDING):
        raise BadInput(
            f"The error budget {budget:.6g} is above {limits['highest']:.6g}, the error of a random index set: "
            f"choose a budget in ({limits['lowest']:.6g}, {limits['highest']:.6g}]."
        )
    swaps = (budget - limits["lowest"]) / (sigma**2 * swap_slope_limit(k))
    most = m * ((d - m) / d)
    return {"swaps": swaps, "theta": theta_for_swaps(m, d - m, min(swaps, most))["theta"]}


def smallest_k(budget: float) -> float:
    """N-11c: smallest kept fraction whose exact top-k error meets a budget, given as a share of d sigma^2."""
    budget = _domain.probability("budget", budget, open_low=True, open_high=True)
    return float(_laws.NORMAL.tail(sparsity_for_energy(budget)["threshold"]))


def theta_for_kept(d: int, m: int, kept: float) -> dict[str, float]:
    """N-8: concentration and privacy needed to keep a wanted mean fraction of the true top set."""
    d = _domain.whole("d", d, 2)
    m = _domain.whole("m", m, 1, d - 1)
    kept = _domain.real("kept", kept, m / d * (1.0 - _ROUNDING), 1.0, open_high=True)
    most = m * ((d - m) / d)
    theta = theta_for_swaps(m, d - m, min((1.0 - kept) * m, most))["theta"]
    return {"theta": theta, "epsilon_swap": 2.0 * theta, "epsilon_local": 2.0 * theta * min(m, d - m)}
