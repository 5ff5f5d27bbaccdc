"""Privacy of the released indices (N-7, N-14, N-15), derived from the swap law.

Two centres (true top sets) at swap distance j differ in j indices each way. For every released set the log ratio of
its probabilities is 2 theta (X_A - X_B), where X_A counts the released ones of the j indices of the first centre and
X_B those of the second: at most 2 theta j, with equality at the first centre itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.swap_privacy import most_swaps


@claim("N-7b")
def local_privacy(d: int, m: int, theta: float) -> dict[str, Any]:
    """N-7b: pure local privacy of the indices, 2 theta min(m, d-m); tight. Sensitivity is in Hamming distance."""
    most = most_swaps(d, m)
    return {"epsilon": 2.0 * domain.real("theta", theta, 0.0) * most, "sensitivity": 2 * most}


@claim("N-14")
def gain_over_random(d: int, m: int, theta: float) -> dict[str, float]:
    """N-14: kept fraction of the true top set to first order in theta, k + 2 theta k (1-k)^2 d/(d-1).

    Calibrated for a whole gradient of a million coordinates at epsilon 1, the gain is lost in rounding.
    """
    most_swaps(d, m)
    k = m / d
    gain = 2.0 * domain.real("theta", theta, 0.0) * k * (1.0 - k) ** 2 * d / (d - 1)
    return {"kept": k + gain, "gain": gain}


@claim("N-15")
def grouped_privacy(sizes: Sequence[int], kept: Sequence[int], theta: float) -> dict[str, float]:
    """N-15: worst-case privacy of independent draws in groups, 2 theta times the sum of min(kept, size - kept)."""
    theta = domain.real("theta", theta, 0.0)
    if len(sizes) != len(kept) or len(sizes) == 0:
        raise BadInput(f"sizes and kept must be equally long and not empty, got {len(sizes)} and {len(kept)} groups.")
    most = 0
    for number, (size, count) in enumerate(zip(sizes, kept)):
        size = domain.whole(f"sizes[{number}]", size, 1)
        count = domain.whole(f"kept[{number}]", count, 0, size)
        most += min(count, size - count)
    return {"epsilon": 2.0 * theta * most, "per_swap": 2.0 * theta}
