"""The law of the number of swaps of noisy top-k (N-4, N-6, N-12).

m coordinates are kept, `others` are not; the released index set differs from the true top set by i swaps with

    P(i) = C(m, i) C(others, i) q^i / psi,    q = exp(-2 theta),    0 <= i <= min(m, others):

Fisher's non-central hypergeometric law. Everything comes from ratios of neighbouring terms, outwards from the mode;
differences of log-gammas would leave seven digits at d = 10^8. Sums are numpy sums, not products of vectors: those
would start the threads of a linear algebra library for a few microseconds of work.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from prunus.errors import BadInput
from prunus.formulas import domain

Array = NDArray[np.float64]

# Terms below this share of the largest are left out of the window; their sum is far below rounding.
_CUT = 1e-60  # tolerance

_TAIL_CUT = 1e-20  # tolerance

_CHUNK = 1 << 20  # tolerance

# Beyond this exponent exp(-2 theta) is 0 (or infinite) in every product that can occur.
_EXTREME = 800.0  # tolerance

# Standard deviation up to which the law is written out: 17 to each side are half a gigabyte.
_WIDEST = 1e6
_MOST_SWAPS = 2.0**53  # beyond this a float has no room for single swaps


@dataclass(frozen=True)
class SwapLaw:
    """Law of the number of swaps; theta may be any real number (the mechanism itself needs theta >= 0).

    `window` holds the probabilities that matter, `log_probability` any other; both have a relative error below 1e-12
    up to d = 10^8.
    """

    m: int
    others: int
    theta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", domain.whole("m", self.m, 1))
        object.__setattr__(self, "others", domain.whole("others", self.others, 1))
        object.__setattr__(self, "theta", domain.real("theta", self.theta))

    @property
    def most(self) -> int:
        """Largest number of swaps."""
        return min(self.m, self.others)

    @cached_property
    def odds(self) -> tuple[float, float]:
        """q = exp(-2 theta), and the relative error of that rounded q: it counts where q is raised to thousands."""
        exponent = -2.0 * self.theta
        if abs(exponent) > _EXTREME:
            return (0.0 if exponent < 0 else math.inf), 0.0
        with decimal.localcontext() as context:
            context.prec = 40  # tolerance
            exact = decimal.Decimal(exponent).exp()
            q = float(exact)
            if q == 0.0 or math.isinf(q):
                return q, 0.0
            return q, float(exact / decimal.Decimal(q) - 1)

    @cached_property
    def saddle(self) -> tuple[float, float]:
        """N-4d: root i of (m-i)(others-i) q = i^2, and 1/(2/i + 1/(m-i) + 1/(others-i)), without cancellation."""
        q = self.odds[0]
        product = float(self.m) * float(self.others)
        total = float(self.m + self.others)
        if q == 0.0:
            return 0.0, 0.0
        if q <= 1.0:  # tolerance
            root = math.sqrt((q * total) ** 2 + 4.0 * (1.0 - q) * q * product)
            mean = 2.0 * q * product / (q * total + root)
        else:
            root = math.sqrt(max(total**2 + 4.0 * (1.0 / q - 1.0) * product, 0.0))
            mean = 2.0 * product / (total + root)
        left, right = self.m - mean, self.others - mean
        if mean == 0.0 or left <= 0.0 or right <= 0.0:
            return mean, 0.0
        return mean, 1.0 / (2.0 / mean + 1.0 / left + 1.0 / right)

    @cached_property
    def mode(self) -> int:
        """N-4c: largest i with (m-i+1)(others-i+1) q >= i^2."""
        q = self.odds[0]
        if q == 0.0 or math.isinf(q):
            return 0 if q == 0.0 else self.most
        mean, variance = self.saddle
        if not (mean <= _MOST_SWAPS and variance <= _WIDEST**2):
            raise BadInput(
                f"About {mean:.3g} swaps with a standard deviation of {math.sqrt(variance):.3g} are too many to count "
                "one by one: take fewer coordinates, or a larger theta."
            )

        def rises(i: int) -> bool:
            return (self.m - i + 1) * (self.others - i + 1) * q >= i * i

        i = min(int(self.saddle[0]), self.most)
        while i > 0 and not rises(i):
            i -= 1
        while i < self.most and rises(i + 1):
            i += 1
        return i

    def up(self, i: Array) -> Array:
        """N-12a: P(i+1)/P(i); 0 at the end of the support."""
        return (self.m - i) * (self.others - i) * self.odds[0] / np.square(i + 1.0)

    def down(self, i: Array) -> Array:
        """N-12a: P(i-1)/P(i); 0 at i = 0. Call it where q > 0."""
        return np.square(i) / ((self.m - i + 1.0) * (self.others - i + 1.0) * self.odds[0])

    @cached_property
    def _weights(self) -> tuple[int, Array]:
        """First swap count of the window, and the terms there relative to the largest."""
        if self.odds[0] == 0.0:
            return 0, np.ones(1)
        width = int(17.0 * math.sqrt(self.saddle[1])) + 32  # tolerance
        error = self.odds[1]
        above = outward(self.up, self.mode, 1, self.most - self.mode, width, _CUT)
        below = outward(self.down, self.mode, -1, self.mode, width, _CUT)
        above *= np.exp(error * np.arange(1.0, len(above) + 1.0))
        below *= np.exp(-error * np.arange(1.0, len(below) + 1.0))
        return self.mode - len(below), np.concatenate((below[::-1], np.ones(1), above))

    @cached_property
    def window(self) -> tuple[int, Array]:
        """(low, probabilities): P(low), P(low+1), ...; what lies outside is below 1e-60 of the largest."""
        low, weights = self._weights
        return low, weights / weights.sum()

    @cached_property
    def mean(self) -> float:
        """Mean number of swaps."""
        low, weights = self._weights
        away = np.arange(len(weights), dtype=np.float64) - (self.mode - low)
        return self.mode + float((away * weights).sum()) / float(weights.sum())

    @cached_property
    def variance(self) -> float:
        """Variance of the number of swaps."""
        low, probabilities = self.window
        away = np.arange(len(probabilities), dtype=np.float64) - (self.mean - low)
        return float((np.square(away) * probabilities).sum())

    @cached_property
    def gain(self) -> float:
        """Mean swaps of a random index set (theta = 0) minus the mean here; exact where theta is tiny.

        With x = i - E_0[i] the difference is -E_0[x expm1(-2 theta x)] / E_0[exp(-2 theta x)], a sum of terms of one
        sign; it is used while the law at theta = 0 covers this one.
        """
        free = SwapLaw(self.m, self.others, 0.0)
        center = float(self.m) * self.others / (self.m + self.others)
        if abs(2.0 * self.theta) * math.sqrt(free.variance) > 1.0:  # tolerance
            return center - self.mean
        low, probabilities = free.window
        x = np.arange(len(probabilities), dtype=np.float64) + (low - center)
        tilt = np.expm1(-2.0 * self.theta * x)
        return -float((probabilities * x * tilt).sum()) / (1.0 + float((probabilities * tilt).sum()))

    @cached_property
    def log_psi(self) -> float:
        """Logarithm of the normaliser psi, the sum of C(m, i) C(others, i) q^i."""
        weights = self._weights[1]
        if self.mode == 0:
            return math.log1p(float(weights[1:].sum()))
        largest = log_binomial(self.m, self.mode) + log_binomial(self.others, self.mode) - 2.0 * self.theta * self.mode
        return largest + math.log(float(weights.sum()))

    def log_probability(self, swaps: int) -> float:
        """Logarithm of P(swaps), also far outside the window."""
        swaps = domain.whole("swaps", swaps, 0, self.most)
        low, probabilities = self.window
        if low <= swaps < low + len(probabilities):
            return math.log(float(probabilities[swaps - low]))
        if self.odds[0] == 0.0:
            # The largest term is P(0), 1 to all digits.
            return log_binomial(self.m, swaps) + log_binomial(self.others, swaps) - 2.0 * self.theta * swaps
        direction, ratio = (1, self.up) if swaps > self.mode else (-1, self.down)
        parts = [math.log(float(probabilities[self.mode - low]))]
        for start in range(self.mode, swaps, direction * _CHUNK):
            stop = min(start + _CHUNK, swaps) if direction == 1 else max(start - _CHUNK, swaps)
            parts.append(float(np.log(ratio(np.arange(start, stop, direction, dtype=np.float64))).sum()))
        return math.fsum(parts)

    def at_least(self, swaps: int) -> float:
        """P(i >= swaps), with its relative accuracy in the far tail."""
        if swaps <= 0:
            return 1.0
        if swaps > self.most:
            return 0.0
        return self._tail(swaps, 1) if swaps > self.mode else 1.0 - self.at_most(swaps - 1)

    def at_most(self, swaps: int) -> float:
        """P(i <= swaps), with its relative accuracy in the far tail."""
        if swaps < 0:
            return 0.0
        if swaps >= self.most:
            return 1.0
        return self._tail(swaps, -1) if swaps <= self.mode else 1.0 - self.at_least(swaps + 1)

    def _tail(self, start: int, direction: int) -> float:
        ratio = self.up if direction == 1 else self.down
        room = self.most - start if direction == 1 else start
        width = int(10.0 * math.sqrt(self.saddle[1])) + 32  # tolerance
        weights = outward(ratio, start, direction, room, width, _TAIL_CUT)
        return math.exp(self.log_probability(start)) * (1.0 + float(weights.sum()))


def outward(ratio: Callable[[Array], Array], start: int, direction: int, room: int, width: int, cut: float) -> Array:
    """Products of ratios from `start` outwards: terms relative to the one at `start`, at least one, down to `cut`.

    The ratios must fall (a log-concave law); `room` is how many steps the support allows, `width` a first guess.
    """
    while True:
        count = min(width, room)
        steps = start + direction * np.arange(count, dtype=np.float64)
        products = np.asarray(np.cumprod(ratio(steps)), dtype=np.float64)
        if count == room or products[-1] < cut:
            small = np.flatnonzero(products < cut)
            return products[: max(small[0], 1)] if small.size else products
        width *= 2


def log_binomial(n: int, k: int) -> float:
    """Logarithm of C(n, k) to a relative 1e-15: a sum of logarithms, or Stirling's series without cancellation."""
    k = min(k, n - k)
    if k <= 0:
        return 0.0
    if k <= 256:  # tolerance
        steps = np.arange(1.0, k + 1.0)
        return float(np.log((n - k + steps) / steps).sum())
    rest = n - k
    entropy = k * math.log(n / k) + rest * math.log1p(k / rest)
    return entropy - 0.5 * math.log(2.0 * math.pi * k * (rest / n)) + _stirling(n) - _stirling(k) - _stirling(rest)


def _stirling(n: int) -> float:
    """log n! - (n log n - n + log(2 pi n)/2), for n > 256 exact in double precision with three terms."""
    square = 1.0 / (float(n) * float(n))
    return (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0)) / n
