"""What all mechanisms share that send some coordinates of a vector: how many, which, and what that costs in error."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from prunus import select as selection
from prunus.errors import BadInput, UnknownName
from prunus.formulas import swap_errors
from prunus.private.exact_sampling import Table
from prunus.private.exchange import exchange, in_groups, top_set
from prunus.private.privacy import Energies, Privacy, energies, privacy_record
from prunus.private.randomness import Integers, Source, source

SCOPES = ("global", "layer")


class Rounded(UserWarning):
    """k times d was not a whole number.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", prunus.private.Rounded)
        ...     prunus.private.NoisyTopK(k=0.25, theta=1.0).count(10)
        Traceback (most recent call last):
        prunus.private.index_mechanism.Rounded: k d = 2.5 is not whole: 2 of 10 coordinates are kept, a fraction of 0.2.
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
        """Coordinates kept of d: k d rounded, with a warning where it is not whole.

        Args:
            d: coordinates of the vector.
            quiet: leave the warning out.

        Returns:
            The number of coordinates kept.

        Raises:
            BadInput: if k keeps none of them, or more than there are.
        """
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
        """Coordinates kept of a group of n: at least one, at most all.

        Args:
            n: coordinates of the group.

        Returns:
            The number of coordinates kept.
        """
        if isinstance(self.k, numbers.Integral):
            return min(int(self.k), n)
        return min(max(round(float(self.k) * n), 1), n)

    def kept_of(self, n: int, group: int | None) -> int:
        """Coordinates kept of n: of a whole vector, or of one group where there are groups.

        Args:
            n: coordinates of the vector, or of one group.
            group: the size of groups; None for a whole vector.

        Returns:
            The number of coordinates kept.
        """
        return self.count(n, quiet=True) if group is None else self.count_in_group(n)

    # ------------------------------------------------------------------------------------------------- the mechanism

    def table(self, m: int, others: int) -> Table:
        """The exact law of the number of swaps.

        Args:
            m: coordinates kept.
            others: coordinates not kept.

        Returns:
            A table to draw numbers of swaps from, with whole weights.
        """
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")

    def swap_moments(self, m: int, others: int) -> tuple[float, float]:
        """Mean and variance of the number of swaps.

        Args:
            m: coordinates kept.
            others: coordinates not kept.

        Returns:
            The mean and the variance.
        """
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

        Raises:
            BadInput: if there is nothing to select from, or an entry is NaN or infinite.
            UnknownName: if there is no such scope.
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
        """Zero in place what is not selected; returns the kept positions of each tensor.

        Args:
            tensors: a network's gradients; they are changed.
            group: as in `select`, like the following.
            insecure_seed: a repeatable generator that gives no privacy.
            scope: "global" or "layer".

        Returns:
            The positions kept in each tensor.
        """
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
        for n, times in group_sizes(d, group):
            m = self.count(n) if group is None else self.count_in_group(n)
            if m < n:
                mean = self.swap_moments(m, n - m)[0]
                total += times * swap_errors.error_after_swaps(n, m, min(mean, min(m, n - m)), sigma)
        return total

    def error_variance(self, vector: Tensor, group: int | None = None) -> float:
        """Variance of the squared error over the draws, exact for a given vector.

        Args:
            vector: the vector.
            group: size of the groups that are drawn in.

        Returns:
            The variance.
        """
        return sum(part.variance(*self._moments(part)) for part in self._parts(vector, group))

    def kept_fraction(self, d: int) -> float:
        """Mean share of the true top set that is kept, 1 - E[i] / m.

        Args:
            d: coordinates of the vector.

        Returns:
            A number from 0 to 1.
        """
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
        """Pure epsilon of one release between any two vectors (N-7b, N-15).

        Args:
            d: coordinates of the vector.
            group: size of the groups that are drawn in.

        Returns:
            The epsilon.
        """
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")

    def swap_epsilons(self, swaps: int, local: float) -> tuple[float, float]:
        """Epsilon of one swapped index, and between vectors whose top sets differ in `swaps` indices.

        Args:
            swaps: in how many indices the two top sets differ.
            local: epsilon between any two vectors.

        Returns:
            Both epsilons.
        """
        raise TypeError("Use NoisyTopK or TwoLevelTopK.")

    def privacy(self, d: int, swaps: int = 1, group: int | None = None) -> Privacy:
        """Both readings of the privacy of one release: for each swapped index, and between any two vectors.

        Args:
            d: coordinates of the vector.
            swaps: distance of two top sets for `at_distance`.
            group: size of the groups that are drawn in.

        Returns:
            The epsilons, for reading and as plain data.
        """
        m = sum(times * self.kept_of(n, group) for n, times in group_sizes(d, group))
        local = self.worst_epsilon(d, group)
        one, apart = self.swap_epsilons(swaps, local)
        return privacy_record(one, local, swaps, min(apart, local), d, m)


def group_sizes(d: int, group: int | None) -> list[tuple[int, int]]:
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
