"""Noisy top-k and the two-level rule: which coordinates of a vector are sent, drawn at random around the true top set.

    mech = NoisyTopK(k=0.01, theta=2.64)
    kept = mech.select(gradient)          # ascending positions, cryptographically random
    print(mech.privacy(d=gradient.numel()))

`select` is the mechanism; everything else says what it costs, in privacy and in error (ledger N-1 to N-15).
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np
import torch
from torch import Tensor

from prunus import select as selection
from prunus.errors import BadInput, UnknownName
from prunus.formulas import swap_counts, swap_errors, swap_privacy, two_level
from prunus.private import integer_weights
from prunus.private.exact_sampling import Table
from prunus.private.exchange import exchange, in_groups, top_set
from prunus.private.privacy import Energies, Privacy, energies, privacy_record
from prunus.private.randomness import Integers, Source, source

SCOPES = ("global", "layer")
_LARGEST_THETA = 1000.0
_LARGEST_EPSILON = 5000.0


class Rounded(UserWarning):
    """k times d was not a whole number.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", prunus.private.Rounded)
        ...     prunus.private.NoisyTopK(k=0.25, theta=1.0).count(10)
        Traceback (most recent call last):
        prunus.private.mechanism.Rounded: k d = 2.5 is not whole: 2 of 10 coordinates are kept, a fraction of 0.2.
    """


@dataclass(frozen=True)
class IndexMechanism:
    """What the mechanisms share: k is a fraction of the coordinates (float in (0, 1]) or a count (int)."""

    k: float

    def __post_init__(self) -> None:
        k = self.k
        if isinstance(k, bool) or not isinstance(k, numbers.Real) or not math.isfinite(k):
            raise BadInput(f"k must be a fraction in (0, 1] or a whole count of at least 1, got {k!r}.")
        if isinstance(k, numbers.Integral):
            if k < 1:
                raise BadInput(f"At least 1 coordinate must be kept, got k = {k}; give a larger count or a fraction.")
        elif not 0.0 < k <= 1.0:
            raise BadInput(f"k as a fraction must lie in (0, 1], got {k}; give a whole number for a count.")

    def count(self, d: int, quiet: bool = False) -> int:
        """Coordinates kept of d: k d rounded, with a warning where it is not whole."""
        if isinstance(self.k, numbers.Integral):
            if self.k > d:
                raise BadInput(f"Cannot keep {self.k} of {d} coordinates; give k as a fraction, or a smaller count.")
            return int(self.k)
        if d < 1:
            raise BadInput("The vector to select from is empty.")
        exact = float(self.k) * d
        m = round(exact)
        if m < 1:
            raise BadInput(f"k = {self.k} of {d} coordinates keeps none; k must be at least {1 / d:.3g}.")
        if not quiet and abs(exact - m) > 1e-9 * max(exact, 1.0):
            message = f"k d = {exact:.6g} is not whole: {m} of {d} coordinates are kept, a fraction of {m / d:.6g}."
            warnings.warn(message, Rounded, stacklevel=3)
        return m

    def count_in_group(self, n: int) -> int:
        """Coordinates kept of a group of n: at least one, at most all."""
        if isinstance(self.k, numbers.Integral):
            return min(int(self.k), n)
        return min(max(round(float(self.k) * n), 1), n)

    def _kept_of(self, n: int, group: int | None) -> int:
        return self.count(n, quiet=True) if group is None else self.count_in_group(n)

    # ------------------------------------------------------------------------------------------------- the mechanism

    def table(self, m: int, others: int) -> Table:
        """The exact law of the number of swaps."""
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")

    def swap_moments(self, m: int, others: int) -> tuple[float, float]:
        """Mean and variance of the number of swaps."""
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")

    def _swaps(self, count: int, m: int, others: int, bits: Source) -> Integers:
        if others == 0:
            return np.zeros(count, np.int64)
        return self.table(m, others).draw(count, bits)

    @overload
    def select(
        self, vector: Tensor, group: int | None = None, insecure_seed: int | None = None, *, scope: str = "global"
    ) -> Tensor: ...
    @overload
    def select(
        self,
        vector: Sequence[Tensor],
        group: int | None = None,
        insecure_seed: int | None = None,
        *,
        scope: str = "global",
    ) -> list[Tensor]: ...
    def select(
        self,
        vector: Tensor | Sequence[Tensor],
        group: int | None = None,
        insecure_seed: int | None = None,
        *,
        scope: str = "global",
    ) -> Tensor | list[Tensor]:
        """Draw the index set that is sent.

        Args:
            vector: a tensor, read in row-major order, or a list of tensors (a network's gradients).
            group: draw bank by bank, in groups of so many neighbouring coordinates (N-15; 256 is in use).
                Buckets are groups too: any size will do.
            insecure_seed: a repeatable, fast generator instead of the operating system's; it gives no privacy.
            scope: for a list, "global" ranks all coordinates together, "layer" draws in each tensor on its own.

        Returns:
            (m,) int64 positions, ascending, on the vector's device; for a list one such tensor for each.
        """
        bits = source(insecure_seed)
        if isinstance(vector, Tensor):
            return self._select_one(vector, group, bits)
        tensors = list(vector)
        if scope not in SCOPES:
            raise UnknownName("scope", scope, SCOPES)
        if not tensors:
            raise BadInput("There is no tensor to select from: the list is empty.")
        if scope == "layer" or len(tensors) == 1:
            return [self._select_one(tensor, group, bits) for tensor in tensors]
        if group is not None:
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
            return _split(self._select_one(flat, group, bits), [tensor.numel() for tensor in tensors])
        return self._select_all(tensors, bits)

    def _select_one(self, vector: Tensor, group: int | None, bits: Source) -> Tensor:
        d = vector.numel()
        if group is not None:
            if d == 0:
                raise BadInput("The vector to select from is empty.")
            return in_groups(vector, _checked_group(group), self.count_in_group, self._swaps, bits)
        m = self.count(d)
        top = top_set(vector, m)
        if m == d:
            return top
        number = int(self._swaps(1, m, d - m, bits)[0])
        return torch.from_numpy(exchange(top.cpu().numpy(), d, number, bits)).to(vector.device)

    def _select_all(self, tensors: list[Tensor], bits: Source) -> list[Tensor]:
        """One ranking over all tensors without joining them."""
        sizes = [tensor.numel() for tensor in tensors]
        d = sum(sizes)
        m = self.count(d)
        for number, tensor in enumerate(tensors):
            if not bool(torch.isfinite(tensor).all()):
                raise BadInput(f"Tensor {number} contains NaN or infinite entries; leave the step out, or mend them.")
        masks = selection.drop_smallest(tensors, d - m, absolute=True)
        starts = np.cumsum([0, *sizes[:-1]])
        places = [mask.reshape(-1).nonzero()[:, 0].cpu().numpy() + start for mask, start in zip(masks, starts)]
        top = np.concatenate(places)
        number = int(self._swaps(1, m, d - m, bits)[0])
        kept = torch.from_numpy(exchange(top, d, number, bits))
        return [part.to(tensor.device) for part, tensor in zip(_split(kept, sizes), tensors)]

    def sparsify_(
        self,
        tensors: Sequence[Tensor],
        group: int | None = None,
        insecure_seed: int | None = None,
        *,
        scope: str = "global",
    ) -> list[Tensor]:
        """Zero in place what is not selected; returns the kept positions of each tensor."""
        kept = self.select(list(tensors), group, insecure_seed, scope=scope)
        with torch.no_grad():
            for tensor, places in zip(tensors, kept):
                flat = tensor.detach().reshape(-1)
                values = flat[places]
                tensor.zero_()
                tensor.view(-1)[places] = values
        return kept

    # ---------------------------------------------------------------------------------------------------- the error

    def expected_error(self, vector_or_d: Any, sigma: float = 1.0, group: int | None = None) -> float:
        """Expected squared error ||g - g on the kept coordinates||^2 (N-5, N-15 with groups).

        Args:
            vector_or_d: A vector, for which the result is exact; or a size, for independent normal coordinates.
            sigma: Standard deviation of those coordinates.
            group: Size of the groups that are drawn in.

        Returns:
            The expected squared error.
        """
        if not isinstance(vector_or_d, numbers.Real):
            vector = torch.as_tensor(vector_or_d)
            if vector.dim() > 0:
                return sum(part.mean(self._moments(part)[0]) for part in self._parts(vector, group))
            vector_or_d = vector.item()
        d = int(vector_or_d)
        total = 0.0
        for n, times in _group_sizes(d, group):
            m = self.count(n) if group is None else self.count_in_group(n)
            if m < n:
                mean = self.swap_moments(m, n - m)[0]
                total += times * swap_errors.error_after_swaps(n, m, min(mean, min(m, n - m)), sigma)
        return total

    def error_variance(self, vector: Tensor, group: int | None = None) -> float:
        """Variance of the squared error over the draws, exact for a given vector."""
        return sum(part.variance(*self._moments(part)) for part in self._parts(vector, group))

    def kept_fraction(self, d: int) -> float:
        """Mean share of the true top set that is kept, 1 - E[i] / m."""
        m = self.count(d, quiet=True)
        return 1.0 - (self.swap_moments(m, d - m)[0] / m if m < d else 0.0)

    def _parts(self, vector: Tensor, group: int | None) -> list[Energies]:
        flat = vector.detach().reshape(-1)
        if group is None:
            return [energies(flat, self.count(flat.numel()))]
        return [energies(part, self.count_in_group(part.numel())) for part in flat.split(_checked_group(group))]

    def _moments(self, part: Energies) -> tuple[float, float]:
        return self.swap_moments(part.m, part.others) if part.others else (0.0, 0.0)

    # -------------------------------------------------------------------------------------------------- the privacy

    def worst_epsilon(self, d: int, group: int | None = None) -> float:
        """Pure epsilon of one release between any two vectors (N-7b, N-15)."""
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")


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
        kept = [(n, times, self._kept_of(n, group)) for n, times in _group_sizes(d, group)]
        return 2.0 * self.theta * sum(times * min(m, n - m) for n, times, m in kept)

    def privacy(self, d: int, swaps: int = 1, group: int | None = None) -> Privacy:
        """Both readings of the privacy of one release: per swapped index, and between any two vectors.

        Args:
            d: Coordinates of the vector.
            swaps: Distance of two top sets for `at_distance`.
            group: Size of the groups that are drawn in.
        """
        m = sum(times * self._kept_of(n, group) for n, times in _group_sizes(d, group))
        at_distance = swap_privacy.swap_privacy(self.theta, swaps)["epsilon"]
        local = self.worst_epsilon(d, group)
        return privacy_record(2.0 * self.theta, local, swaps, min(at_distance, local), d, m)

    def delta(self, epsilon: Any, d: int, swaps: int = 1) -> Any:
        """Exact delta(epsilon) between vectors whose top sets differ in `swaps` indices (N-7f)."""
        m = self.count(d, quiet=True)
        return swap_privacy.privacy_delta(m, d - m, self.theta, swaps, epsilon)

    def renyi(self, order: Any, d: int, swaps: int = 1) -> Any:
        """Exact Renyi divergence at that distance (N-7g); `order` may be an array."""
        m = self.count(d, quiet=True)
        return swap_privacy.renyi_divergence(m, d - m, self.theta, swaps, order)

    def divergence(self, d: int, swaps: int = 1) -> float:
        """Kullback-Leibler divergence at that distance, the mean leakage (N-7e)."""
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
        released = sum(times for n, times in _group_sizes(d, group) if self._kept_of(n, group) < n)
        return self.epsilon * released

    def privacy(self, d: int, swaps: int = 1, group: int | None = None) -> Privacy:
        """Privacy of one release: epsilon between any two vectors, and so for a single swapped index too."""
        m = sum(times * self._kept_of(n, group) for n, times in _group_sizes(d, group))
        local = self.worst_epsilon(d, group)
        return privacy_record(min(self.epsilon, local), local, swaps, min(self.epsilon * swaps, local), d, m)


def _group_sizes(d: int, group: int | None) -> list[tuple[int, int]]:
    """(size, how many) of the groups that d coordinates fall into."""
    if isinstance(d, bool) or not isinstance(d, numbers.Integral) or d < 1:
        raise BadInput(f"d must be a whole number of at least 1, got {d!r}.")
    if group is None:
        return [(int(d), 1)]
    size = _checked_group(group)
    sizes = [(size, int(d) // size), (int(d) % size, 1)]
    return [(n, times) for n, times in sizes if n and times]


def _checked_group(group: int) -> int:
    if isinstance(group, bool) or not isinstance(group, numbers.Integral) or group < 1:
        raise BadInput(f"group must be a whole number of at least 1, got {group!r}.")
    return int(group)


def _split(ascending: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Positions in joined tensors as positions in each."""
    ends = torch.tensor([0, *np.cumsum(sizes).tolist()], device=ascending.device)
    edges = torch.searchsorted(ascending, ends).tolist()
    return [ascending[low:high] - end for low, high, end in zip(edges, edges[1:], ends.tolist())]
