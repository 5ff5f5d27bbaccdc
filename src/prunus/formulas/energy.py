"""Share of energy that magnitude pruning removes, in one bank and in a very large layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from prunus.formulas import domain, laws, quadrature
from prunus.formulas.binding import claim

LARGEST_BANK = 10**9


@claim("B-2a")
def limit_energy(sparsity: ArrayLike, law: str = "normal") -> dict[str, Any]:
    """B-2a: share of energy removed by magnitude pruning of a very large layer, with its threshold.

    e(s) = int_0^s Q(u)^2 du, Q the quantile function of |w|; for normal weights gammainc(3/2, a^2/2) with
    a = sqrt(2) erfinv(s). `sparsity` may be an array; every return then has its shape. At sparsity 1 the threshold of
    an unbounded law is infinite, at 0 the decibels are.
    """
    shape = laws.find(law)
    level = domain.reals("sparsity", sparsity, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = shape.quantile(level)
        energy = np.where(level == 1.0, 1.0, shape.energy(threshold))
        mean_square = np.where(level > 0.0, energy / level, 0.0)
        decibels = -10.0 * np.log10(energy)
    values = {"threshold": threshold, "energy": energy, "mean_square": mean_square, "decibels": decibels + 0.0}
    return {name: domain.plain(value) for name, value in (values | {"slope": np.square(threshold)}).items()}


@claim("B-3")
def bank_energy(n: int, r: int, law: str = "normal") -> float:
    """B-3: share of weight energy removed when the r smallest magnitudes of every n are pruned.

    e(n, r) = E H(V), V ~ Beta(r, n-r), H(v) = int_0^v Q(u)^2 du; exact for any bank up to n = 10^9.
    """
    return energy_split(n, r, law)[0]


def energy_split(n: int, r: int, law: str = "normal") -> tuple[float, float]:
    """Removed and kept share of the energy (B-3); the kept share keeps its digits where nearly all is removed."""
    shape = laws.find(law)
    n = domain.whole("n", n, 1, LARGEST_BANK)
    r = domain.whole("r", r, 0, n)
    if r in (0, n):
        return float(r == n), float(r == 0)
    threshold, over = bank_excess(n, r, shape)
    return float(shape.energy(threshold)) + over, float(shape.kept(threshold)) - over


def bank_excess(n: int, r: int, shape: laws.Law) -> tuple[float, float]:
    """Threshold at sparsity r/n, and the excess of the bank's energy over that of a very large layer."""
    threshold = magnitude_quantile(shape, r, n - r)
    over = quadrature.excess(shape, float(r), float(n - r), threshold, lambda x: np.square(x) * shape.density(x))
    return threshold, over


def magnitude_quantile(shape: laws.Law, below: float, above: float) -> float:
    """Quantile of |w| at below/(below + above), taken from the shorter side."""
    total = below + above
    return float(shape.quantile(below / total) if below <= above else shape.tail_quantile(above / total))
