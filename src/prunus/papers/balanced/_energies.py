"""Energy of the smallest magnitudes: what pruning removes from a layer, a bank or a gradient (B-2, B-3, B-8c).

Energies are shares of the total: the sum of the removed squares divided by the sum of all squares, in expectation.
`sparsity` is the fraction removed; laws have variance 1. The paper averages variances of *signed* order statistics,
which is neither the energy of the removed weights nor of the right order; the printed forms are kept too.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.errors import BadInput
from prunus.formulas import domain, laws, quadrature
from prunus.formulas.binding import claim, printed
from prunus.formulas.energy import LARGEST_BANK, bank_excess, magnitude_quantile

_CHUNK = 1 << 18  # tolerance
_MOST_RANKS = 10**8  # some seconds


@claim("B-2b")
def limit_fourth_moment(sparsity: ArrayLike) -> dict[str, Any]:
    """B-2b: fourth moment of the pruned normal weights of a very large layer, per weight and per pruned weight."""
    level = domain.reals("sparsity", sparsity, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = laws.NORMAL.quantile(level)
        fourth = 3.0 * np.where(level == 1.0, 1.0, special.gammainc(2.5, 0.5 * np.square(threshold)))
        mean_fourth = np.where(level > 0.0, fourth / level, 0.0)
    return {"fourth": domain.plain(fourth), "mean_fourth": domain.plain(mean_fourth)}


@claim("B-2c")
def small_sparsity_energy(sparsity: ArrayLike) -> Any:
    """B-2c: share of energy removed at very small sparsity from normal weights, pi sparsity^3 / 6."""
    level = domain.reals("sparsity", sparsity, 0.0, 1.0)
    return domain.plain(math.pi * level**3 / 6.0)


@claim("B-2d")
def sparsity_for_energy(energy: ArrayLike, law: str = "normal") -> dict[str, Any]:
    """B-2d: sparsity and threshold of a very large layer that removes a given share of energy (inverse of B-2a)."""
    shape = laws.find(law)
    share = domain.reals("energy", energy, 0.0, 1.0)
    threshold = shape.energy_quantile(share)
    return {"sparsity": domain.plain(shape.cdf(threshold)), "threshold": domain.plain(threshold)}


@printed("B-3")
def bank_energy_printed(n: int, r: int) -> float:
    """B-3 as printed: (1/n) sum of H(i), i <= r, H the large-sample variances of the signed order statistics."""
    n = domain.whole("n", n, 2, LARGEST_BANK)
    r = domain.whole("r", r, 0, n - 1)
    return signed_variance_sum(n, r) / n


@claim("B-3a")
def bank_cost(n: int, r: int, law: str = "normal") -> dict[str, float]:
    """B-3a: what a finite bank costs against a very large layer at the same sparsity r/n."""
    shape = laws.find(law)
    n = domain.whole("n", n, 2, LARGEST_BANK)
    r = domain.whole("r", r, 1, n - 1)
    threshold, over = bank_excess(n, r, shape)
    limit = float(shape.energy(threshold))
    return {
        "limit": limit,
        "excess": over,
        "relative": over / limit,
        "decibels": 10.0 * math.log1p(over / limit) / math.log(10.0),
        "equivalent_sparsity": sparsity_for_energy(min(limit + over, 1.0), law)["sparsity"],
    }


@claim("B-3b")
def rank_energy(n: int, rank: int, law: str = "normal") -> float:
    """B-3b: expected square of the magnitude of the given rank (1 = smallest) among n."""
    shape = laws.find(law)
    n = domain.whole("n", n, 1, LARGEST_BANK)
    rank = domain.whole("rank", rank, 1, n)
    a, b = float(rank), float(n - rank + 1)
    center = magnitude_quantile(shape, a, b)
    return center**2 + quadrature.excess(shape, a, b, center, lambda x: 2.0 * x)


@claim("B-8c")
def rank_variance(n: int, rank: int, sigma_weight: float = 1.0) -> float:
    """B-8c: large-sample variance p(1-p)/(n f(Q(p))^2), p = rank/n, of the magnitude of a given rank."""
    n, rank, sigma_weight = _rank_arguments(n, rank, sigma_weight)
    density = float(laws.NORMAL.density(magnitude_quantile(laws.NORMAL, rank, n - rank)))
    return sigma_weight**2 * _level_variance(n, rank) / density**2


@printed("B-8c")
def rank_variance_printed(n: int, rank: int, sigma_weight: float = 1.0) -> float:
    """B-8c as printed: the same with density and quantile of the signed weights."""
    n, rank, sigma_weight = _rank_arguments(n, rank, sigma_weight)
    return sigma_weight**2 * float(_signed_variances(n, np.array([float(rank)]))[0])


def signed_variance_sum(n: int, r: int, step: int = 1) -> float:
    """Sum of the printed rank variances H(step), H(2 step), ..., H(r step) on n samples of the signed normal law."""
    if r > _MOST_RANKS:
        raise BadInput(f"The printed sum has {r:.3g} ranks, more than {_MOST_RANKS:.0e}: take a smaller matrix.")
    parts = []
    for start in range(1, r + 1, _CHUNK):
        ranks = np.arange(start, min(start + _CHUNK, r + 1), dtype=np.float64)
        parts.append(float(_signed_variances(n, step * ranks).sum()))
    return math.fsum(parts)


def rank_variances(n: int, ranks: np.ndarray) -> np.ndarray:
    """B-8c for many ranks at once, weights of variance 1."""
    density = laws.NORMAL.density(laws.NORMAL.quantile(ranks / n))
    return cast("np.ndarray", ranks * (n - ranks) / (float(n) ** 3 * np.square(density)))


def _level_variance(n: int, rank: int) -> float:
    return (rank / n) * ((n - rank) / n) / n


def _signed_variances(n: int, ranks: np.ndarray) -> np.ndarray:
    density = laws.normal_density(special.ndtri(ranks / n))
    return cast("np.ndarray", ranks * (n - ranks) / (float(n) ** 3 * np.square(density)))


def _rank_arguments(n: int, rank: int, sigma_weight: float) -> tuple[int, int, float]:
    n = domain.whole("n", n, 2, LARGEST_BANK)
    if rank == n:
        raise BadInput(f"rank must be a whole number in [1, {n - 1}], got {n}: the variance formula is 0/0 at rank n.")
    return n, domain.whole("rank", rank, 1, n - 1), domain.positive("sigma_weight", sigma_weight)
