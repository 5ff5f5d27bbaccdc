"""Inverse problems: the concentration for a wanted number of swaps, error or kept fraction (N-8, N-11)."""

from __future__ import annotations

from prunus.errors import BadInput
from prunus.formulas import domain, laws
from prunus.formulas.binding import claim
from prunus.formulas.swap_errors import ROUNDING, theta_for_swaps
from prunus.papers.balanced import sparsity_for_energy
from prunus.papers.noisy_topk._counts import kept_count
from prunus.papers.noisy_topk._errors import feasible_budget, swap_slope_limit


@claim("N-11b")
def theta_for_error(d: int, k: float, budget: float, sigma: float = 1.0) -> dict[str, float]:
    """N-11b: concentration and mean swaps that meet an error budget, large-dimension constants."""
    d = domain.whole("d", d, 2)
    m = kept_count(d, k)
    limits = feasible_budget(d, k, sigma)
    budget = domain.positive("budget", budget)
    scale = d * sigma**2
    if budget <= limits["lowest"]:
        enough = smallest_k(budget / scale)
        raise BadInput(
            f"No concentration meets the error budget {budget:.6g} with k = {k:.6g}, as exact top-k already costs "
            f"{limits['lowest']:.6g}: keep k > {enough:.6g}, or allow a budget in ({limits['lowest']:.6g}, "
            f"{limits['highest']:.6g}]."
        )
    if budget > limits["highest"] * (1.0 + ROUNDING):
        raise BadInput(
            f"The error budget {budget:.6g} is above {limits['highest']:.6g}, the error of a random index set: "
            f"choose a budget in ({limits['lowest']:.6g}, {limits['highest']:.6g}]."
        )
    swaps = (budget - limits["lowest"]) / (sigma**2 * swap_slope_limit(k))
    most = m * ((d - m) / d)
    return {"swaps": swaps, "theta": theta_for_swaps(m, d - m, min(swaps, most))["theta"]}


@claim("N-11c")
def smallest_k(budget: float) -> float:
    """N-11c: smallest kept fraction whose exact top-k error meets a budget, given as a share of d sigma^2."""
    budget = domain.probability("budget", budget, open_low=True, open_high=True)
    return float(laws.NORMAL.tail(sparsity_for_energy(budget)["threshold"]))


@claim("N-8")
def theta_for_kept(d: int, m: int, kept: float) -> dict[str, float]:
    """N-8: concentration and privacy needed to keep a wanted mean fraction of the true top set."""
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    kept = domain.real("kept", kept, m / d * (1.0 - ROUNDING), 1.0, open_high=True)
    most = m * ((d - m) / d)
    theta = theta_for_swaps(m, d - m, min((1.0 - kept) * m, most))["theta"]
    return {"theta": theta, "epsilon_swap": 2.0 * theta, "epsilon_local": 2.0 * theta * min(m, d - m)}
