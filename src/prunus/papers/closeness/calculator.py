"""What can I prune? The proved answers for a network of square layers, and what to expect of it.

Theorem 1' (magnitude) and Theorem 2' (random) have explicit constants throughout, so their answers are guarantees for
independent uniform weights. The recursion with the norms that such layers really have is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prunus.formulas.domain import delta_in, positive, whole
from prunus.papers.closeness._norms import uniform_norm_limit
from prunus.papers.closeness._recursion import equal_norm_error
from prunus.papers.closeness._theorem1 import difference_norm_heuristic, theorem1_prime_pruned
from prunus.papers.closeness._theorem2 import random_difference_heuristic, theorem2_prime_pruned


@dataclass(frozen=True)
class Allowed:
    """One answer: how many weights of each inner layer may go, and what kind of statement that is."""

    method: str
    basis: str
    width: int
    layers: int
    pruned: int
    sparsity: float
    guaranteed: bool


def what_can_i_prune(
    width: int, layers: int, error: float, failure: float = 0.05, spread: float = 1.0, lipschitz: float = 1.0
) -> list[Allowed]:
    """Weights of each inner layer that may be pruned while the output stays within `error` on the unit ball.

    Args:
        width: side of the square layers.
        layers: weight layers, the first and the last unpruned; 3 or more.
        error: allowed distance of the outputs.
        failure: allowed failure probability of the guarantees.
        spread: weights are uniform on +-spread / sqrt(width).
        lipschitz: of every activation.

    Returns:
        Four answers: Theorem 1' and 2' (guaranteed), and the recursion with the norms to expect, for magnitude and for
        random pruning (estimates).

    Raises:
        BadInput: if an argument is out of range.

    Example:
        >>> [row.pruned > 0 for row in what_can_i_prune(1024, 3, 0.1)]
        [True, True, True, True]
    """
    width, layers, error = whole("width", width, 2), whole("layers", layers, 3), positive("error", error)
    delta_in(failure)
    weights = width * width
    magnitude = int(theorem1_prime_pruned(width, layers, error, failure, spread, lipschitz)["pruned"])
    draws = int(theorem2_prime_pruned(width, layers, error, failure, spread, lipschitz)["count"])
    norm = float(uniform_norm_limit(width, width, spread))

    def largest(difference_of: Callable[[int], float]) -> int:
        low, high = 0, weights - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = equal_norm_error(norm, difference_of(middle), layers, lipschitz) <= error
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    sigma = spread / (3.0 * width) ** 0.5
    by_size = largest(lambda count: float(difference_norm_heuristic(width, width, count, spread)))
    by_chance = largest(lambda count: float(random_difference_heuristic(width, count / weights, sigma)))
    rows = (
        ("magnitude", "Theorem 1'", magnitude, True),
        ("random", "Theorem 2'", min(draws, weights), True),
        ("magnitude", "recursion, norms to expect", by_size, False),
        ("random", "recursion, norms to expect", by_chance, False),
    )
    return [Allowed(method, basis, width, layers, count, count / weights, sure) for method, basis, count, sure in rows]
