"""Independent checks of the energies of banks and layers: closed forms, quadrature, simulated banks."""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate, special, stats

from prunus.papers import balanced as o
from prunus.papers.checking import check
from prunus.papers.sampling import assert_close, assert_mean

LAWS = {
    "normal": stats.halfnorm,
    "uniform": stats.uniform(scale=math.sqrt(3.0)),
    "laplace": stats.expon(scale=math.sqrt(0.5)),
}


def exponential_bank(n: int, r: int) -> float:
    """Energy of the r smallest of n exponentials: rank j is a sum of independent gaps, mean and variance known."""
    gaps = 1.0 / (n - np.arange(r))
    means, variances = np.cumsum(gaps), np.cumsum(np.square(gaps))
    return float((np.square(means) + variances).sum()) / (2.0 * n)


@check("B-2a", "B-2d", method="second formula")
def limit_by_quadrature() -> str:
    for name, law in LAWS.items():
        for sparsity in (0.02, 0.5, 0.93):
            result = o.limit_energy(sparsity, name)
            a = float(law.ppf(sparsity))
            value = integrate.quad(lambda x, law=law: x * x * law.pdf(x), 0.0, a, epsrel=1e-12)[0]
            assert_close("threshold", result["threshold"], a, 1e-10)
            assert_close("energy", result["energy"], value, 1e-10)
            step = 1e-5
            rise = o.limit_energy(sparsity + step, name)["energy"] - o.limit_energy(sparsity - step, name)["energy"]
            assert_close("slope", result["slope"], rise / (2 * step), 1e-6)
            assert_close("inverse", o.sparsity_for_energy(result["energy"], name)["sparsity"], sparsity, 1e-11)
    return "adaptive quadrature of x^2 f(x), a difference quotient and the inverse agree for three laws"


@check("B-2b", "B-2c", method="second formula")
def moments_at_small_sparsity() -> str:
    for sparsity in (0.1, 0.5, 0.99):
        a = float(LAWS["normal"].ppf(sparsity))
        elementary = 3 * sparsity - 2 * math.exp(-a * a / 2) / math.sqrt(2 * math.pi) * (a**3 + 3 * a)
        assert_close("fourth", o.limit_fourth_moment(sparsity)["fourth"], elementary, 1e-8)
    for sparsity in (1e-3, 1e-7):
        ratio = o.limit_energy(sparsity)["energy"] / o.small_sparsity_energy(sparsity)
        assert 1.0 <= ratio + 1e-12 <= 1.0 + sparsity**2 + 2e-12, f"{ratio} is not close to 1 at sparsity {sparsity}"
        fourth = o.limit_fourth_moment(sparsity)["fourth"]
        assert_close("small", fourth, (math.pi / 2) ** 2 * sparsity**5 / 5, 2 * sparsity**2 + 1e-12)
    return "the elementary fourth moment agrees, and both moments approach their power laws"


@check("B-3", method="second formula")
def banks_in_closed_form() -> str:
    for n, r in ((4, 2), (100, 1), (1000, 999), (20_000, 7000)):
        assert_close("uniform", o.bank_energy(n, r, "uniform"), r * (r + 1) * (r + 2) / (n * (n + 1) * (n + 2)), 1e-12)
        assert_close("laplace", o.bank_energy(n, r, "laplace"), exponential_bank(n, r), 1e-11)
    assert_close("1:2", o.bank_energy(2, 1), 0.5 - 1 / math.pi, 1e-13)
    assert_close("step", o.bank_energy(4, 3) - o.bank_energy(4, 2), 0.25, 1e-12)
    return "third moment of a Beta law, sums of exponential gaps and 1/2 - 1/pi agree"


@check("B-3", "B-3a", "B-3b", method="Monte Carlo")
def simulated_banks() -> str:
    rng = np.random.default_rng(31)
    for n, r, name, draw in (
        (8, 6, "normal", rng.standard_normal),
        (5, 2, "laplace", lambda size: rng.laplace(scale=math.sqrt(0.5), size=size)),
        (6, 5, "uniform", lambda size: rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), size)),
    ):
        squares = np.sort(np.square(draw((100_000, n))), axis=1)
        assert_mean("bank", squares[:, :r].sum(axis=1) / n, o.bank_energy(n, r, name))
        assert_mean("rank", squares[:, r - 1], o.rank_energy(n, r, name))
        cost = o.bank_cost(n, r, name)
        assert_mean("cost", squares[:, :r].sum(axis=1) / n, cost["limit"] + cost["excess"])
    return "100,000 simulated banks of three laws, false alarm 1e-6 each"


@check("B-3a", "B-3b", method="property")
def banks_hang_together() -> str:
    for name in LAWS:
        ranks = [o.rank_energy(12, rank, name) for rank in range(1, 13)]
        assert_close("total", sum(ranks) / 12, 1.0, 1e-12)
        for r in range(1, 12):
            assert_close("partial", sum(ranks[:r]) / 12, o.bank_energy(12, r, name), 1e-11)
            cost = o.bank_cost(12, r, name)
            same = o.limit_energy(cost["equivalent_sparsity"], name)["energy"]
            assert_close("equivalent", same, o.bank_energy(12, r, name), 1e-11)
            assert_close("decibels", 10 ** (cost["decibels"] / 10), 1 + cost["relative"], 1e-12)
    return "rank energies add up to the bank energies, and the equivalent sparsity loses the same"


@check("B-8c", method="Monte Carlo")
def rank_variance_of_magnitudes() -> str:
    rng = np.random.default_rng(83)
    n, rank, sigma, trials = 999, 700, 0.5, 4000
    levels = rng.beta(rank, n + 1 - rank, trials)
    magnitudes = sigma * math.sqrt(2) * special.erfinv(levels)
    expected = o.rank_variance(n, rank, sigma)
    away = np.square(magnitudes - magnitudes.mean()) * trials / (trials - 1)
    assert abs(away.mean() - expected) < 5 * away.std() / math.sqrt(trials) + 0.01 * expected, "wrong variance"
    assert o.rank_variance_printed(n, rank, sigma) > 1.2 * expected, "the printed form should be far off"
    return "variance of 4000 simulated order statistics within 5 standard errors plus 1 % of the large-sample value"
