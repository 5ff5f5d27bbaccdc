"""Privacy over many rounds, composed through dp-accounting (extra `private`).

One round releases indices and values computed on the same sampled records. Amplification by sampling may not be used
twice as if the two had been sampled apart: seeing the indices, an observer's odds that a record was in the batch rise.
So both are composed first, for a batch that holds the record, and the pair is sampled once: no release that keeps to
the two numbers spends more, and some spends as much. Where that distribution would be too wide (little noise, large
epsilons), the indices are amplified at the true rate and the values at the raised rate
rate' = rate e^eps / (1 - rate + rate e^eps), which is sound too and larger.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from prunus.errors import BadInput, MissingExtra, RunFailed
from prunus.formulas.swap_privacy import subsampled_privacy

_INTERVAL = 1e-3  # of a privacy loss, rounded upwards: half a percent of epsilon over a thousand steps
# Beyond this a privacy loss distribution of the indices would only cost memory: basic composition gives the same.
_LARGE = 4.0
# Largest loss of one joint release that is put on the grid: 60,000 places.
_WIDEST = 60.0
_ORDERS = np.concatenate((1.0 + np.logspace(-3, 0, 40), np.arange(2.5, 64.0, 0.5), np.logspace(1.81, 4.0, 60)))


class BudgetSpent(RunFailed):
    """The privacy budget does not allow another release; nothing was sent.

    Example:
        >>> meter = prunus.private.Meter(epsilon=1.0, delta=1e-5)
        >>> try:
        ...     meter.spend(prunus.private.Release(index_epsilon=5.0))
        ... except prunus.private.BudgetSpent:
        ...     print("refused", meter.epsilon)
        refused 0.0
    """


@dataclass(frozen=True)
class Release:
    """What one round reveals about one unit (a record, or a client's vector).

    index_epsilon: pure epsilon of the index release. noise_multiplier: Gaussian noise over sensitivity (None: no such
    release). sampling: Poisson rate, 1 without amplification. rho: concentrated privacy of discrete Gaussian values.
    value_epsilon: pure epsilon of Laplace values. Values sent without noise are infinite.

    Example:
        >>> whole = prunus.private.Release(index_epsilon=1.0)
        >>> sampled = prunus.private.Release(index_epsilon=1.0, sampling=0.01)
        >>> sampled.amplified_index < whole.amplified_index
        True
    """

    index_epsilon: float = 0.0
    noise_multiplier: float | None = None
    sampling: float = 1.0
    rho: float = 0.0
    value_epsilon: float = 0.0

    def __post_init__(self) -> None:
        if not self.index_epsilon >= 0.0 or not self.rho >= 0.0 or not self.value_epsilon >= 0.0:
            raise BadInput("The privacy parameters of a release must be numbers of at least 0.")
        # Squares and ratios of these must be numbers that a computer can hold.
        if not all(number == 0.0 or number >= 1e-100 for number in self._numbers()) or any(
            1e100 < number < math.inf for number in self._numbers()
        ):
            raise BadInput("The privacy parameters of a release must be 0, infinite, or between 1e-100 and 1e100.")
        if not 0.0 < self.sampling <= 1.0:
            raise BadInput(f"The sampling rate must lie in (0, 1], got {self.sampling!r}.")
        if self.noise_multiplier is not None and not self.noise_multiplier >= 0.0:
            raise BadInput(f"The noise multiplier must be at least 0, got {self.noise_multiplier!r}.")
        if self.sampling < 1.0 and (self.rho or self.value_epsilon):
            raise BadInput("Sampling amplifies the trusted trainer's releases only: give rho and value_epsilon rate 1.")

    def _numbers(self) -> tuple[float, ...]:
        noise = () if self.noise_multiplier is None else (self.noise_multiplier,)
        return self.index_epsilon, self.rho, self.value_epsilon, self.sampling, *noise

    @property
    def amplified_index(self) -> float:
        """Pure epsilon of the indices after sampling."""
        if self.index_epsilon == 0.0:
            return 0.0
        return subsampled_privacy(self.index_epsilon, self.sampling)["epsilon"]

    @property
    def raised_sampling(self) -> float:
        """Largest chance that a record was sampled, given the indices."""
        odds = self.sampling * math.exp(min(self.index_epsilon, 700.0))
        return min(odds / (1.0 - self.sampling + odds), 1.0)


class Accountant:
    """Adds up releases; epsilon at a delta never less than what was spent.

    Example:
        >>> accountant = prunus.private.Accountant()
        >>> accountant.add(prunus.private.Release(value_epsilon=0.5), count=3)
        >>> accountant.epsilon(delta=0.0)
        1.5
    """

    def __init__(self, releases: dict[Release, int] | None = None) -> None:
        self.releases: Counter[Release] = Counter(releases or {})

    def add(self, release: Release, count: int = 1) -> None:
        """Count a release; call it before anything is sent.

        Args:
            release: what is sent.
            count: how often.
        """
        self.releases[release] += count

    def with_more(self, release: Release, count: int) -> Accountant:
        """A copy with `count` more releases.

        Args:
            release: what is sent.
            count: how often.

        Returns:
            The copy; this one is unchanged.
        """
        other = Accountant(dict(self.releases))
        other.add(release, count)
        return other

    def epsilon(self, delta: float) -> float:
        """Total epsilon at `delta`: loss distributions, Renyi curves for discrete noise, sums for what is large.

        Args:
            delta: probability with which the guarantee may fail, at least 0 and below 1.

        Returns:
            The epsilon of everything counted so far.

        Raises:
            BadInput: if delta is out of its range.
        """
        if not 0.0 <= delta < 1.0:
            raise BadInput(f"delta must lie in [0, 1), got {delta!r}.")
        return _composed(frozenset(self.releases.items()), float(delta))

    def fits(self, release: Release, count: int, epsilon: float, delta: float) -> bool:
        """Whether `count` more releases stay within (epsilon, delta).

        Args:
            release: what would be sent.
            count: how often.
            epsilon: the budget.
            delta: probability with which the guarantee may fail.

        Returns:
            True if the total is within the budget.
        """
        return self.with_more(release, count).epsilon(delta) <= epsilon


@lru_cache(maxsize=4096)
def _composed(releases: frozenset[tuple[Release, int]], delta: float) -> float:
    """Epsilon of the releases; remembered, as many clients share a history."""
    pure, distribution, curve = 0.0, [], np.zeros(len(_ORDERS))
    for release, count in releases:
        pure += count * release.value_epsilon
        index = release.amplified_index
        if release.noise_multiplier == 0.0 or math.isinf(index) or math.isinf(release.rho):
            return math.inf
        curve = curve + count * release.rho * _ORDERS
        if _joint(release):
            both = _joint_distribution(release.index_epsilon, release.noise_multiplier or 0.0, release.sampling)
            distribution.append((both, count))
            continue
        if index > _LARGE or count * index < 1e-3:
            pure += count * index
        elif index > 0.0:
            distribution.append((_pure_distribution(index, count), 1))
        if release.noise_multiplier is not None:
            distribution.append((_gaussian_distribution(release.noise_multiplier, release.raised_sampling), count))
    return pure + _joined(distribution, curve, delta)


def _joined(distribution: list[tuple[Any, int]], curve: np.ndarray, delta: float) -> float:
    """Epsilon of both parts; each gets half of delta where both are there."""
    parts = bool(distribution) + bool(curve.any())
    if parts == 0:
        return 0.0
    share = delta / parts
    total = 0.0
    if distribution:
        joined = None
        for single, count in distribution:
            several = single if count == 1 else single.self_compose(count)
            joined = several if joined is None else joined.compose(several)
        assert joined is not None
        total += float(joined.get_epsilon_for_delta(share))
    if curve.any():
        total += _renyi_epsilon(curve, share)
    return total


def _renyi_epsilon(curve: np.ndarray, delta: float) -> float:
    """Smallest epsilon over the orders (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    if delta <= 0.0:
        return math.inf
    values = curve + np.log1p(-1.0 / _ORDERS) - np.log(delta * _ORDERS) / (_ORDERS - 1.0)
    return max(float(values.min()), 0.0)


def _distributions() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise MissingExtra("dp-accounting", "private", "Composition of privacy over rounds") from None
    return privacy_loss_distribution


@lru_cache(maxsize=64)
def _pure_distribution(epsilon: float, count: int) -> Any:
    """`count` releases with a pure epsilon: `count` randomised responses are the worst (Kairouz, Oh, Viswanath 2015).

    Their losses add up to a binomial law, which is put on the grid once: rounding each one would add up.
    """
    from scipy import stats

    heads = np.arange(count + 1)
    likely = 1.0 / (1.0 + math.exp(-epsilon))
    upper = stats.binom.logpmf(heads, count, likely)
    lower = stats.binom.logpmf(heads, count, 1.0 - likely)
    finite = np.isfinite(upper) & np.isfinite(lower)
    module = _distributions()
    return module.from_two_probability_mass_functions(
        dict(zip(heads[finite].tolist(), lower[finite].tolist())),
        dict(zip(heads[finite].tolist(), upper[finite].tolist())),
        value_discretization_interval=_INTERVAL,
    )


@lru_cache(maxsize=64)
def _gaussian_distribution(noise_multiplier: float, sampling: float) -> Any:
    return _distributions().from_gaussian_mechanism(
        standard_deviation=noise_multiplier, sampling_prob=sampling, value_discretization_interval=_INTERVAL
    )


def _joint(release: Release) -> bool:
    """Whether indices and values of a sampled batch go on the grid together."""
    index, noise = release.index_epsilon, release.noise_multiplier
    if noise is None or release.sampling == 1.0 or not 0.0 < index <= _LARGE:
        return False
    return _reach(index, noise) <= _WIDEST


def _reach(index: float, noise: float) -> float:
    """Loss of indices and values together that is passed with a chance of 1e-23 at most."""
    return index + 0.5 / noise**2 + 10.0 / noise


@lru_cache(maxsize=64)
def _joint_distribution(index: float, noise: float, sampling: float) -> Any:
    """One sampled release of indices and values: randomised response and a Gaussian, mixed with the same without shift.

    With P the pair without the record and Q with it, in the batch, removing the record compares (1 - q) P + q Q with P
    and adding it the reverse. Both divergences follow from that of Q and P at another level; they are put on the grid
    so that nothing is said too low (Doroshenko et al. 2022).
    """
    from dp_accounting.pld import pld_pmf

    reach = _reach(index, noise)
    top = math.ceil(math.log1p(sampling * math.expm1(reach)) / _INTERVAL)
    low = math.floor(math.log1p(sampling * math.expm1(-reach)) / _INTERVAL)
    removed, added = np.arange(low, top + 1) * _INTERVAL, np.arange(-top, -low + 1) * _INTERVAL
    with np.errstate(divide="ignore", invalid="ignore"):
        level = 1.0 + np.expm1(removed) / sampling
        mixed = sampling * _pair_divergence(np.log(level), index, noise)
        remove = np.where(level > 0.0, mixed, -np.expm1(removed))
        rest = 1.0 - np.exp(added) * (1.0 - sampling)
        add = rest * _pair_divergence(added + math.log(sampling) - np.log(rest), index, noise)
        add = np.where(rest > 0.0, add, 0.0)
    grid = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap
    return _distributions().PrivacyLossDistribution(
        grid(_INTERVAL, low, top, np.clip(remove, 0.0, 1.0)), grid(_INTERVAL, -top, -low, np.clip(add, 0.0, 1.0))
    )


def _pair_divergence(level: np.ndarray, index: float, noise: float) -> np.ndarray:
    """Hockey-stick divergence at exp(level) of randomised response and a Gaussian, with and without the record."""
    from scipy import special

    total = np.zeros_like(level)
    for sign in (1.0, -1.0):
        likely = 1.0 / (1.0 + math.exp(-sign * index))
        place = (sign * index - level) * noise
        half = 0.5 / noise
        total += likely * special.ndtr(place + half)
        total -= (1.0 - likely) * np.exp(level + special.log_ndtr(place - half))
    return total


class Meter:
    """An accountant with a budget: refuses a release before it happens.

    Composing at every step would cost more than the step, so a whole block of steps is checked at once and then counted
    down; near the end blocks shrink to single steps.

    Example:
        >>> meter = prunus.private.Meter(epsilon=2.0, delta=0.0)
        >>> meter.spend(prunus.private.Release(value_epsilon=0.5))
        >>> meter.epsilon
        0.5
    """

    def __init__(self, epsilon: float, delta: float, block: int = 64) -> None:
        if not epsilon > 0.0 or not 0.0 <= delta < 1.0:
            raise BadInput(f"A budget needs epsilon above 0 and delta in [0, 1), got {epsilon!r} and {delta!r}.")
        self.budget, self.delta = epsilon, delta
        self.accountant = Accountant()
        self._block = block
        self._safe: Counter[Release] = Counter()

    def spend(self, release: Release) -> None:
        """Count one release, or raise `BudgetSpent` and count nothing.

        Args:
            release: what is about to be sent.
        """
        if math.isfinite(self.budget) and self._safe[release] == 0:
            self._safe.clear()
            self._safe[release] = self._affordable(release)
        if math.isfinite(self.budget):
            self._safe[release] -= 1
        self.accountant.add(release)

    def _affordable(self, release: Release) -> int:
        count = self._block
        while count and not self.accountant.fits(release, count, self.budget, self.delta):
            count //= 4
        if count == 0:
            raise BudgetSpent(
                f"Another step would pass the privacy budget of epsilon {self.budget:g} at delta {self.delta:g} "
                f"({self.epsilon:.4g} is spent): nothing was released; stop here, or grant a larger budget."
            )
        return count

    @property
    def epsilon(self) -> float:
        """Spent so far."""
        return self.accountant.epsilon(self.delta) if self.accountant.releases else 0.0


def noise_for_budget(epsilon: float, delta: float, steps: int, sampling: float, index_epsilon: float = 0.0) -> float:
    """Smallest noise multiplier (to 1 %) with which `steps` releases stay within (epsilon, delta).

    Args:
        epsilon: the budget, together with `delta`.
        delta: chance that is left out of the guarantee.
        steps: how many releases there will be.
        sampling: chance that a record takes part in a step, in (0, 1].
        index_epsilon: pure epsilon of the indices of one step, before sampling; 0 where they cost nothing.

    Returns:
        The noise multiplier: standard deviation of the noise over the clipping norm.

    Raises:
        BadInput: No noise keeps the steps within the budget, as the indices alone cost more.

    Example:
        >>> strict, loose = (prunus.private.noise_for_budget(eps, 1e-5, 10, 0.01) for eps in (0.5, 2.0))
        >>> strict > loose
        True
    """

    def spent(noise: float) -> float:
        return Accountant({Release(index_epsilon, noise, sampling): steps}).epsilon(delta)

    low, high = 0.2, 1.0
    while spent(high) > epsilon:
        low, high = high, high * 2.0
        if high > 1e4:
            raise BadInput(
                f"No noise keeps {steps} steps within epsilon {epsilon:g}: the indices alone cost "
                f"{Accountant({Release(index_epsilon, None, sampling): steps}).epsilon(delta):.4g}; "
                "use a smaller theta, fewer steps or a random mask."
            )
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high
