"""Energy of the smallest magnitudes: what pruning removes from a layer, a bank or a gradient (B-2, B-3, B-8c).

Energies are shares of the total: the sum of the removed squares divided by the sum of all squares, in expectation.
`sparsity` is the fraction removed; laws have variance 1. The paper averages variances of *signed* order statistics,
which is neither the energy of the removed weights nor of the right order; the printed forms are kept beside the truth.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.errors import BadInput
from prunus.theory import _domain, _laws
from prunus.theory.order_statistics import _quadrature

_LARGEST = 10**9
_CHUNK = 1 << 18  # accuracy only


def limit_energy(sparsity: ArrayLike, law: str = "normal") -> dict[str, Any]:
    """B-2a: share of energy removed by magnitude pruning of a very large layer, with its threshold.

    e(s) = int_0^s Q(u)^2 du, Q the quantile function of |w|; for normal weights gammainc(3/2, a^2/2) with
    a = sqrt(2) erfinv(s). `sparsity` may be an array; every return then has its shape. At sparsity 1 the threshold of
    an unbounded law is infinite, at 0 the decibels are.
    """
    shape = _laws.find(law)
    level = _domain.reals("sparsity", sparsity, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = shape.quantile(level)
        energy = np.where(level == 1.0, 1.0, shape.energy(threshold))
        mean_square = np.where(level > 0.0, energy / level, 0.0)
        decibels = -10.0 * np.log10(energy)
    values = {"threshold": threshold, "energy": energy, "mean_square": mean_square, "decibels": decibels + 0.0}
    return {name: _domain.plain(value) for name, value in (values | {"slope": np.square(threshold)}).items()}


def limit_fourth_moment(sparsity: ArrayLike) -> dict[str, Any]:
    """B-2b: fourth moment of the pruned normal weights of a very large layer, per weight and per pruned weight."""
    level = _domain.reals("sparsity", sparsity, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = _laws.NORMAL.quantile(level)
        fourth = 3.0 * np.where(level == 1.0, 1.0, special.gammainc(2.5, 0.5 * np.square(threshold)))
        mean_fourth = np.where(level > 0.0, fourth / level, 0.0)
    return {"fourth": _domain.plain(fourth), "mean_fourth": _domain.plain(mean_fourth)}


def small_sparsity_energy(sparsity: ArrayLike) -> Any:
    """B-2c: share of energy removed at very small sparsity from normal weights, pi sparsity^3 / 6."""
    level = _domain.reals("sparsity", sparsity, 0.0, 1.0)
    return _domain.plain(math.pi * level**3 / 6.0)


def sparsity_for_energy(energy: ArrayLike, law: str = "normal") -> dict[str, Any]:
    """B-2d: sparsity and threshold of a very large layer that removes a given share of energy (inverse of B-2a)."""
    shape = _laws.find(law)
    share = _domain.reals("energy", energy, 0.0, 1.0)
    threshold = shape.energy_quantile(share)
    return {"sparsity": _domain.plain(shape.cdf(threshold)), "threshold": _domain.plain(threshold)}


def bank_energy(n: int, r: int, law: str = "normal") -> float:
    """B-3: share of weight energy removed when the r smallest magnitudes of every n are pruned.

    e(n, r) = E H(V), V ~ Beta(r, n-r), H(v) = int_0^v Q(u)^2 du; exact for any bank up to n = 10^9.
    """
    return energy_split(n, r, law)[0]


def energy_split(n: int, r: int, law: str = "normal") -> tuple[float, float]:
    """Removed and kept share of the energy (B-3); the kept share keeps its digits where nearly all is removed."""
    shape = _laws.find(law)
    n = _domain.whole("n", n, 1, _LARGEST)
    r = _domain.whole("r", r, 0, n)
    if r in (0, n):
        return float(r == n), float(r == 0)
    threshold, over = _bank_excess(n, r, shape)
    return float(shape.energy(threshold)) + over, float(shape.kept(threshold)) - over


def bank_energy_printed(n: int, r: int) -> float:
    """B-3 as printed: (1/n) sum of H(i), i <= r, H the large-sample variances of the signed order statistics."""
    n = _domain.whole("n", n, 2, _LARGEST)
    r = _domain.whole("r", r, 0, n - 1)
    return signed_variance_sum(n, r) / n


def bank_cost(n: int, r: int, law: str = "normal") -> dict[str, float]:
    """B-3a: what a finite bank costs against a very large layer at the same sparsity r/n."""
    shape = _laws.find(law)
    n = _domain.whole("n", n, 2, _LARGEST)
    r = _domain.whole("r", r, 1, n - 1)
    threshold, over = _bank_excess(n, r, shape)
    limit = float(shape.energy(threshold))
    return {
        "limit": limit,
        "excess": over,
        "relative": over / limit,
        "decibels": 10.0 * math.log1p(over / limit) / math.log(10.0),
        "equivalent_sparsity": sparsity_for_energy(min(limit + over, 1.0), law)["sparsity"],
    }


def rank_energy(n: int, rank: int, law: str = "normal") -> float:
    """B-3b: expected square of the magnitude of the given rank (1 = smallest) among n."""
    shape = _laws.find(law)
    n = _domain.whole("n", n, 1, _LARGEST)
    rank = _domain.whole("rank", rank, 1, n)
    a, b = float(rank), float(n - rank + 1)
    center = _magnitude(shape, a, b)
    return center**2 + _quadrature.excess(shape, a, b, center, lambda x: 2.0 * x)


def rank_variance(n: int, rank: int, sigma_weight: float = 1.0) -> float:
    """B-8c: large-sample variance p(1-p)/(n f(Q(p))^2), p = rank/n, of the magnitude of a given rank."""
    n, rank, sigma_weight = _rank_arguments(n, rank, sigma_weight)
    density = float(_laws.NORMAL.density(_magnitude(_laws.NORMAL, rank, n - rank)))
    return sigma_weight**2 * _level_variance(n, rank) / density**2


def rank_variance_printed(n: int, rank: int, sigma_weight: float = 1.0) -> float:
    """B-8c as printed: the same with density and quantile of the signed weights."""
    n, rank, sigma_weight = _rank_arguments(n, rank, sigma_weight)
    return sigma_weight**2 * float(_signed_variances(n, np.array([float(rank)]))[0])


def signed_variance_sum(n: int, r: int, step: int = 1) -> float:
    """Sum of the printed rank variances H(step), H(2 step), ..., H(r step) on n samples of the signed normal law."""
    parts = []
    for start in range(1, r + 1, _CHUNK):
        ranks = np.arange(start, min(start + _CHUNK, r + 1), dtype=np.float64)
        parts.append(float(_signed_variances(n, step * ranks).sum()))
    return math.fsum(parts)


def rank_variances(n: int, ranks: np.ndarray) -> np.ndarray:
    """B-8c for many ranks at once, weights of variance 1."""
    density = _laws.NORMAL.density(_laws.NORMAL.quantile(ranks / n))
    return ranks * (n - ranks) / (float(n) ** 3 * np.square(density))


def _bank_excess(n: int, r: int, shape: _laws.Law) -> tuple[float, float]:
    """Threshold at sparsity r/n, and the excess of the bank's energy over that of a very large layer."""
    threshold = _magnitude(shape, r, n - r)
    over = _quadrature.excess(shape, float(r), float(n - r), threshold, lambda x: np.square(x) * shape.density(x))
    return threshold, over


def _magnitude(shape: _laws.Law, below: float, above: float) -> float:
    """Quantile of |w| at below/(below + above), taken from the shorter side."""
    total = below + above
    return float(shape.quantile(below / total) if below <= above else shape.tail_quantile(above / total))


def _level_variance(n: int, rank: int) -> float:
    return (rank / n) * ((n - rank) / n) / n


def _signed_variances(n: int, ranks: np.ndarray) -> np.ndarray:
    density = _laws.normal_density(special.ndtri(ranks / n))
    return ranks * (n - ranks) / (float(n) ** 3 * np.square(density))


def _rank_arguments(n: int, rank: int, sigma_weight: float) -> tuple[int, int, float]:
    n = _domain.whole("n", n, 2, _LARGEST)
    if rank == n:
        raise BadInput(f"rank must be a whole number in [1, {n - 1}], got {n}: the variance formula is 0/0 at rank n.")
    return n, _domain.whole("rank", rank, 1, n - 1), _domain.positive("sigma_weight", sigma_weight)
