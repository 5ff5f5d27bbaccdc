"""Laws of a weight or gradient coordinate, each scaled to variance 1, seen through the magnitude |w|.

All methods take arrays or scalars. `quantile` and `tail_quantile` invert `cdf` and `tail`: both exist because a
probability close to 1 is only known well through its complement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from prunus.formulas import domain

Function = Callable[[Any], Any]

_ROOT2 = math.sqrt(2.0)

_ROOT3 = math.sqrt(3.0)


@dataclass(frozen=True)
class Law:
    """Law of |w| for a symmetric w of variance 1.

    `energy(x)` is the integral of x^2 over magnitudes up to x, `kept(x)` the rest of the total energy 1, and
    `energy_quantile` inverts `energy`.
    """

    name: str
    density: Function
    cdf: Function
    tail: Function
    quantile: Function
    tail_quantile: Function
    energy: Function
    kept: Function
    energy_quantile: Function


def normal_density(x: Any) -> Any:
    """Density of the standard normal law."""
    return np.exp(-0.5 * np.square(x)) / math.sqrt(2.0 * math.pi)


NORMAL = Law(
    name="normal",
    density=lambda x: 2.0 * normal_density(x),
    cdf=lambda x: special.erf(x / _ROOT2),
    tail=lambda x: special.erfc(x / _ROOT2),
    quantile=lambda p: _ROOT2 * special.erfinv(p),
    tail_quantile=lambda p: _ROOT2 * special.erfcinv(p),
    # The elementary form s - 2 a phi(a) cancels for small s and may even turn negative.
    energy=lambda x: special.gammainc(1.5, 0.5 * np.square(x)),
    kept=lambda x: special.gammaincc(1.5, 0.5 * np.square(x)),
    energy_quantile=lambda e: np.sqrt(2.0 * special.gammaincinv(1.5, e)),
)

UNIFORM = Law(
    name="uniform",
    density=lambda x: np.full_like(np.asarray(x, dtype=np.float64), 1.0 / _ROOT3),
    cdf=lambda x: np.asarray(x) / _ROOT3,
    tail=lambda x: 1.0 - np.asarray(x) / _ROOT3,
    quantile=lambda p: _ROOT3 * np.asarray(p),
    tail_quantile=lambda p: _ROOT3 * (1.0 - np.asarray(p)),
    energy=lambda x: (np.asarray(x) / _ROOT3) ** 3,
    kept=lambda x: 1.0 - (np.asarray(x) / _ROOT3) ** 3,
    energy_quantile=lambda e: _ROOT3 * np.cbrt(e),
)

# |w| of a Laplace law of variance 1 is exponential with rate sqrt(2).
LAPLACE = Law(
    name="laplace",
    density=lambda x: _ROOT2 * np.exp(-_ROOT2 * np.asarray(x)),
    cdf=lambda x: -np.expm1(-_ROOT2 * np.asarray(x)),
    tail=lambda x: np.exp(-_ROOT2 * np.asarray(x)),
    quantile=lambda p: -np.log1p(-np.asarray(p)) / _ROOT2,
    tail_quantile=lambda p: -np.log(p) / _ROOT2,
    energy=lambda x: special.gammainc(3.0, _ROOT2 * np.asarray(x)),
    kept=lambda x: special.gammaincc(3.0, _ROOT2 * np.asarray(x)),
    energy_quantile=lambda e: special.gammaincinv(3.0, e) / _ROOT2,
)

LAWS = {law.name: law for law in (NORMAL, UNIFORM, LAPLACE)}


def find(name: str) -> Law:
    """The law of this name; the error lists the known ones."""
    return LAWS[domain.choice("law", name, LAWS)]
