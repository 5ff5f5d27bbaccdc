"""Noise on the values that are sent (N-10): integers on a grid, discrete Gaussian or Laplace, after clipping.

Floating-point noise leaks through its rounding, so values are clipped, put on a grid (towards zero: the norm only
falls), and integer noise drawn exactly is added. Privacy is that of the discrete mechanism itself, for any two vectors
within the clipping norm (sensitivity twice the clip).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from prunus.errors import BadInput, UnknownName
from prunus.private import integer_weights
from prunus.private.exact_sampling import Table
from prunus.private.randomness import source

KINDS = ("gaussian", "laplace")


@dataclass(frozen=True)
class ValueNoise:
    """Clip to `clip` (2-norm for Gaussian, sum of magnitudes for Laplace) and add noise of the given scale.

    scale: standard deviation (gaussian) or scale (laplace), in units of the values. steps: grid points in one scale.

    Example:
        >>> noise = prunus.private.ValueNoise.laplace(clip=1.0, epsilon=2.0)
        >>> noise.kind, noise.scale
        ('laplace', 1.0)
    """

    clip: float
    scale: float
    kind: str = "gaussian"
    steps: int = 512

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("kind of noise", self.kind, KINDS)
        for name in ("clip", "scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
                raise BadInput(f"{name} must be a finite number above 0, got {value!r}.")

    @classmethod
    def gaussian(cls, clip: float, epsilon: float, delta: float) -> ValueNoise:
        """The least discrete Gaussian noise with (epsilon, delta) for one release, on its own Renyi curve.

        Args:
            clip: the largest norm of what is sent.
            epsilon: the privacy of one release.
            delta: probability with which it may fail.

        Returns:
            The noise.

        Raises:
            BadInput: if epsilon or delta is out of its range.
        """
        if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
            raise BadInput(f"epsilon must be above 0 and delta between 0 and 1, got {epsilon!r} and {delta!r}.")

        def gap(logarithm: float) -> float:
            return math.log(max(concentrated_delta(math.exp(logarithm), epsilon), 1e-300)) - math.log(delta)

        low, high = -60.0, 0.0
        while gap(high) < 0.0:
            high += 2.0
        rho = math.exp(float(optimize.brentq(gap, low, high, xtol=1e-12)))
        # Slightly more noise than the root: the guarantee must hold after rounding.
        return cls(clip, 2.0 * clip / math.sqrt(2.0 * rho) * (1.0 + 1e-9))

    @classmethod
    def laplace(cls, clip: float, epsilon: float) -> ValueNoise:
        """Discrete Laplace noise with pure epsilon for one release: scale 2 clip / epsilon (N-10d).

        Args:
            clip: the largest norm (sum of magnitudes) of what is sent.
            epsilon: the privacy of one release.

        Returns:
            The noise.

        Raises:
            BadInput: if epsilon is out of its range.
        """
        if not 0.0 < epsilon < math.inf:
            raise BadInput(f"epsilon must be a finite number above 0, got {epsilon!r}.")
        return cls(clip, 2.0 * clip / epsilon, "laplace")

    @property
    def grid(self) -> float:
        """Distance of neighbouring grid points."""
        return self.scale / self.steps

    @property
    def variance(self) -> float:
        """Noise variance for each value sent, of the discrete law."""
        table = self._table()
        total = sum(table.weights)
        squares = sum(weight * int(x) ** 2 for weight, x in zip(table.weights, table.positions))
        return float(Fraction(squares, total)) * self.grid**2

    @property
    def rho(self) -> float:
        """Concentrated privacy of one release (Canonne, Kamath, Steinke 2020, for integer vectors)."""
        ratio = 2.0 * self.clip / self.scale
        return 0.5 * ratio**2 if self.kind == "gaussian" else 0.5 * self.pure_epsilon**2

    @property
    def pure_epsilon(self) -> float:
        """Pure epsilon of one release: 2 clip / scale for Laplace, infinite for Gaussian."""
        return 2.0 * self.clip / self.scale if self.kind == "laplace" else math.inf

    def delta(self, epsilon: float) -> float:
        """A delta at which one release is (epsilon, delta)-private.

        Args:
            epsilon: the privacy of one release.

        Returns:
            The probability with which it may fail.
        """
        if self.kind == "laplace" and epsilon >= self.pure_epsilon:
            return 0.0
        return concentrated_delta(self.rho, epsilon)

    def _table(self) -> Table:
        steps = Fraction(self.steps)
        return (
            integer_weights.gaussian_table(steps) if self.kind == "gaussian" else integer_weights.laplace_table(steps)
        )

    def clipped(self, values: Tensor) -> np.ndarray:
        """Values clipped and on the grid, as integers; the norm in grid units is at most clip / grid, exactly.

        Args:
            values: a tensor of any shape.

        Returns:
            A flat array of whole numbers.

        Raises:
            BadInput: if a value is NaN or infinite.
        """
        numbers = values.detach().reshape(-1).to("cpu", torch.float64).numpy()
        if not np.isfinite(numbers).all():
            raise BadInput("The values to send contain NaN or infinite entries; leave the step out, or mend them.")
        limit = self.clip / self.grid
        scaled = numbers / self.grid
        # Halves of the largest entry first: squares of huge numbers must not overflow.
        largest = float(np.abs(scaled).max(initial=0.0))
        size = largest * self._norm(scaled / largest) if largest > 0.0 else 0.0
        if size > limit:
            scaled = scaled * (limit / size)
        whole = np.trunc(scaled)
        while self._norm(whole) > limit:
            scaled = scaled * (1.0 - 1e-12)
            whole = np.trunc(scaled)
        return whole.astype(np.int64)

    def _norm(self, numbers: np.ndarray) -> float:
        return float(np.sqrt(np.square(numbers).sum()) if self.kind == "gaussian" else np.abs(numbers).sum())

    def release(self, values: Tensor, insecure_seed: int | None = None) -> Tensor:
        """What is sent instead of `values`: float32 or float64 numbers on the grid, shaped as given.

        Args:
            values: a tensor of any shape.
            insecure_seed: draws that can be repeated, for tests; None takes those of the operating system.

        Returns:
            The noisy values.
        """
        noisy = self.add(self.clipped(values), insecure_seed)
        return torch.from_numpy(noisy * self.grid).to(values.device, values.dtype).view(values.shape)

    def add(self, whole: np.ndarray, insecure_seed: int | None = None) -> np.ndarray:
        """Noise on integers that are on the grid already, such as a sum of clipped vectors.

        Args:
            whole: whole numbers.
            insecure_seed: as in `release`.

        Returns:
            The noisy whole numbers.
        """
        return whole + self._table().draw(whole.size, source(insecure_seed))


def concentrated_delta(rho: float, epsilon: float) -> float:
    """Smallest delta that rho-concentrated privacy implies at epsilon (Canonne, Kamath, Steinke 2020, Prop. 12)."""

    def logarithm(shifted: float) -> float:
        order = 1.0 + math.exp(shifted)
        return (order - 1.0) * (order * rho - epsilon + math.log1p(-1.0 / order)) - math.log(order)

    best = optimize.minimize_scalar(logarithm, bounds=(-12.0, 25.0), method="bounded", options={"xatol": 1e-9})
    return min(math.exp(min(float(best.fun), 0.0)), 1.0)
