"""Noisy top-k and the two-level rule: which coordinates of a vector are sent, drawn at random around the true top set.

    mech = NoisyTopK(k=0.01, theta=2.64)
    kept = mech.select(gradient)          # ascending positions, cryptographically random
    print(mech.privacy(d=gradient.numel()))

`select` is the mechanism; everything else says what it costs, in privacy and in error (ledger N-1 to N-15).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from prunus.errors import BadInput
from prunus.formulas import swap_counts, swap_errors, swap_privacy, two_level
from prunus.private import integer_weights
from prunus.private.exact_sampling import Table
from prunus.private.index_mechanism import IndexMechanism, group_sizes

_LARGEST_THETA = 1000.0
_LARGEST_EPSILON = 5000.0


@dataclass(frozen=True)
class NoisyTopK(IndexMechanism):
    """P(I) proportional to exp(-theta Hamming(I, top set)): optimal under metric privacy (N-9a).

    theta = 0 draws a random set; the larger theta, the closer to the true top set, and the less private.

    Example:
        >>> mech = prunus.private.NoisyTopK(k=0.1, theta=2.0)
        >>> len(mech.select(torch.randn(100), insecure_seed=0))
        10
        >>> mech.privacy(d=100).per_swap
        4.0
    """

    theta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        theta = self.theta
        if isinstance(theta, bool) or not isinstance(theta, numbers.Real) or not 0.0 <= theta < math.inf:
            raise BadInput(f"theta must be a finite number of at least 0, got {theta!r}.")
        if theta > _LARGEST_THETA:
            raise BadInput(
                f"theta = {theta:g} leaves no privacy at all, as one swapped index costs {2 * theta:g}: "
                f"use exact top-k, or a theta up to {_LARGEST_THETA:g}."
            )

    @classmethod
    def from_swap_epsilon(cls, k: float, epsilon: float) -> Self:
        """Metric privacy for each swapped index: theta = epsilon / 2 (N-7d).

        Args:
            k: A fraction of the coordinates, or a count.
            epsilon: The epsilon of one swapped index.

        Returns:
            The mechanism.
        """
        return cls(k, swap_privacy.theta_for_swap_epsilon(epsilon))

    @classmethod
    def from_local_epsilon(cls, k: float, epsilon: float, d: int) -> Self:
        """Pure local privacy between any two vectors: theta = epsilon / (2 min(m, d - m)) (N-7c).

        Args:
            k: A fraction of the coordinates, or a count; m is the number kept.
            epsilon: The epsilon between any two vectors.
            d: Coordinates of the vectors.

        Returns:
            The mechanism.
        """
        m = IndexMechanism(k).count(d)
        return cls(k, swap_privacy.theta_for_local_epsilon(d, m, epsilon))

    @classmethod
    def from_error(cls, k: float, error: float, d: int, sigma: float = 1.0) -> Self:
        """The most private mechanism with a given expected squared error for normal coordinates (N-11), exact in d.

        Args:
            k: A fraction of the coordinates, or a count.
            error: The expected squared error.
            d: Coordinates of the vectors.
            sigma: Standard deviation of a coordinate.

        Returns:
            The mechanism.

        Raises:
            BadInput: No theta gives this error; the sentence names the possible ones.
        """
        m = IndexMechanism(k).count(d)
        if m == d:
            raise BadInput("Keeping every coordinate has no error to choose: give k below 1.")
        lowest = swap_errors.topk_error(d, m, sigma)["squared_error"]
        highest = (d - m) * sigma**2
        if not lowest < error <= highest * (1.0 + 1e-12):
            raise BadInput(
                f"No theta gives an expected squared error of {error:.6g} with {m} of {d} coordinates: exact top-k "
                f"costs {lowest:.6g} and a random set {highest:.6g}; choose an error between, or keep more."
            )
        wanted = (error - lowest) / (sigma**2 * swap_errors.swap_slope(d, m))
        most = m * ((d - m) / d)
        return cls(k, swap_errors.theta_for_swaps(m, d - m, min(wanted, most))["theta"])

    @property
    def published_theta(self) -> float:
        """The theta really used: exp(-2 theta) is rounded up to an integer fraction, so never less private (N-12c)."""
        return integer_weights.used_odds(float(self.theta))[2]

    def table(self, m: int, others: int) -> Table:
        return integer_weights.swap_table(m, others, float(self.theta))

    def swap_moments(self, m: int, others: int) -> tuple[float, float]:
        law = swap_counts.swap_law(m, others, self.theta)
        return law["mean"], law["variance"]

    def worst_epsilon(self, d: int, group: int | None = None) -> float:
        kept = [(n, times, self.kept_of(n, group)) for n, times in group_sizes(d, group)]
        return 2.0 * self.theta * sum(times * min(m, n - m) for n, times, m in kept)

    def swap_epsilons(self, swaps: int, local: float) -> tuple[float, float]:
        return 2.0 * self.theta, float(swap_privacy.swap_privacy(self.theta, swaps)["epsilon"])

    def delta(self, epsilon: Any, d: int, swaps: int = 1) -> Any:
        """Exact delta(epsilon) between vectors whose top sets differ in `swaps` indices (N-7f).

        Args:
            epsilon: a number, or an array of them.
            d: coordinates of the vector.
            swaps: in how many indices the two top sets differ.

        Returns:
            delta, or an array of them.
        """
        m = self.count(d, quiet=True)
        return swap_privacy.privacy_delta(m, d - m, self.theta, swaps, epsilon)

    def renyi(self, order: Any, d: int, swaps: int = 1) -> Any:
        """Exact Renyi divergence at that distance (N-7g); `order` may be an array.

        Args:
            order: a number above 1, or an array of them.
            d: coordinates of the vector.
            swaps: in how many indices the two top sets differ.

        Returns:
            The divergence, or an array.
        """
        m = self.count(d, quiet=True)
        return swap_privacy.renyi_divergence(m, d - m, self.theta, swaps, order)

    def divergence(self, d: int, swaps: int = 1) -> float:
        """Kullback-Leibler divergence at that distance, the mean leakage (N-7e).

        Args:
            d: coordinates of the vector.
            swaps: in how many indices the two top sets differ.

        Returns:
            The divergence.
        """
        m = self.count(d, quiet=True)
        return swap_privacy.leakage(m, d - m, self.theta, swaps)["divergence"]


@dataclass(frozen=True)
class TwoLevelTopK(IndexMechanism):
    """A random set, exp(epsilon) times likelier where it shares enough with the true one: optimal under pure local
    privacy (N-9b). With groups every group spends epsilon.

    Example:
        >>> mech = prunus.private.TwoLevelTopK(k=0.1, epsilon=2.0)
        >>> len(mech.select(torch.randn(100), insecure_seed=0))
        10
        >>> mech.privacy(d=100).local
        2.0
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real) or not 0.0 < epsilon < math.inf:
            raise BadInput(f"epsilon must be a finite number above 0, got {epsilon!r}.")
        if epsilon > _LARGEST_EPSILON:
            raise BadInput(f"epsilon = {epsilon:g} leaves no privacy: choose one up to {_LARGEST_EPSILON:g}.")

    def table(self, m: int, others: int) -> Table:
        return integer_weights.two_level_table(m, others, float(self.epsilon))

    def swap_moments(self, m: int, others: int) -> tuple[float, float]:
        low, probabilities = two_level.two_level_law(m + others, m, self.epsilon)
        swaps = low + np.arange(len(probabilities))
        mean = float((swaps * probabilities).sum())
        return mean, float((np.square(swaps - mean) * probabilities).sum())

    def worst_epsilon(self, d: int, group: int | None = None) -> float:
        released = sum(times for n, times in group_sizes(d, group) if self.kept_of(n, group) < n)
        return self.epsilon * released

    def swap_epsilons(self, swaps: int, local: float) -> tuple[float, float]:
        return min(self.epsilon, local), self.epsilon * swaps
