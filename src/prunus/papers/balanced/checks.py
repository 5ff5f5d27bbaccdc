"""Independent checks of balanced sparsity: simulated rows, enumeration of layouts, numerical derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import integrate, special

from prunus.formulas.energy import bank_energy, limit_energy
from prunus.papers import balanced as b
from prunus.papers.balanced._energies import bank_cost
from prunus.papers.checking import check
from prunus.papers.sampling import assert_close, assert_mean


def second_derivative(function: Callable[[float], float], step: float = 1e-3) -> float:
    """Minus the second derivative of an even function at 0, fourth order in the step."""
    values = [function(k * step) for k in (0, 1, 2)]
    return (30 * values[0] - 32 * values[1] + 2 * values[2]) / (12 * step**2)


def pruned_sample(rng: np.random.Generator, n: int, r: int, count: int) -> np.ndarray:
    """One pruned weight from each of `count` banks of n normal weights of which the r smallest go."""
    weights = rng.standard_normal((count, n))
    order = np.argsort(np.abs(weights), axis=1)
    chosen = order[np.arange(count), rng.integers(0, r, count)]
    return weights[np.arange(count), chosen]


@check("B-0", "B-11", method="property")
def time_and_counts() -> str:
    for sparsity in np.linspace(0, 1, 33):
        line = b.ideal_time(8.0, 3.0, float(sparsity))
        assert_close("line", (line - 3.0) / 5.0, 1.0 - sparsity, 1e-12, 1e-12)
        for bank in (1, 7, 16, 33):
            count = b.prune_count(float(sparsity), bank)
            away = abs(count["r"] - sparsity * bank)
            assert away <= 0.5, f"{count['r']} of {bank} is not the nearest count at sparsity {sparsity}"
            assert away < 0.5 or count["r"] % 2 == 0, "halves go to the even count"
            assert count["realised"] * bank == count["r"], "realised sparsity is r / bank"
    return "straight line from dense to overhead; nearest counts, halves to even"


@check("B-1a", "B-9e", "B-8a", method="Monte Carlo")
def simulated_products() -> str:
    rng = np.random.default_rng(11)
    n, r, sigma_x, mu_x = 16, 12, 1.7, 0.4
    dw = pruned_sample(rng, n, r, 100_000)
    centered = sigma_x * rng.standard_normal(dw.size)
    moments = b.bank_product_moments(n, r, sigma_x)
    assert_mean("variance", np.square(dw * centered), moments["variance"])
    assert_mean("fourth", (dw * centered) ** 4, moments["fourth"])
    true = b.pruned_variance(1, 2 * n, 2, r, sigma_x)["balanced"]
    assert_mean("balanced", np.square(dw * centered), true)
    square = bank_energy(n, r) * n / r
    product = b.pruned_product_moments(mu_x, sigma_x, 0.0, square)
    samples = dw * (centered + mu_x)
    assert_mean("mean", samples, product["mean"])
    assert_mean("spread", np.square(samples - product["mean"]), product["variance"])
    printed = b.pruned_variance_printed(64, 128, 8, 12, sigma_x)
    assert printed["balanced"] < 1e-2 * true, "the published form is orders of magnitude too small"
    assert not printed["ordered"], "the published form has the order reversed"
    return "moments of 100,000 simulated lost products, false alarm 1e-6 each"


@check("B-1b", "B-10a", "B-10b", method="enumeration")
def all_layouts() -> str:
    rng = np.random.default_rng(10)
    weights = rng.laplace(size=6)
    squares = np.square(weights)
    for bank, r in ((2, 1), (3, 1), (3, 2), (6, 4)):
        shares = []
        for order in itertools.permutations(range(6)):
            banks = np.sort(squares[list(order)].reshape(-1, bank), axis=1)
            shares.append(banks[:, :r].sum() / squares.sum())
        assert_close("layouts", b.random_layout_energy(weights, bank, r), float(np.mean(shares)), 1e-12)
        result = b.tensor_energy(weights[None, :], bank, r)
        removed = squares[result["keep"][0] == 0].sum()
        assert_close("balanced", result["balanced"], float(removed / squares.sum()), 1e-12)
        best = min(sum(choice) for choice in itertools.combinations(squares, r * 6 // bank))
        assert_close("unstructured", result["unstructured"], float(best / squares.sum()), 1e-12)
        least = b.pruned_mean_square(weights, r * 6 // bank)
        assert_close("mean square", least["mean_square"] * (r * 6 // bank), float(best), 1e-12)
    return "all 720 layouts of six weights, and all subsets"


@check("B-4", method="property")
def order_of_energies() -> str:
    for law in ("normal", "uniform", "laplace"):
        for rows, columns, banks, r in ((1, 4, 2, 1), (3, 24, 4, 5), (50, 200, 10, 13), (1000, 1024, 8, 96)):
            values = b.energy_order(rows, columns, banks, r, law)
            assert values["limit"] < values["unstructured"] < values["balanced"], f"{law}: {values}"
            assert values["ordered"], "the flag must say so"
    return "limit < unstructured < balanced for three laws and four shapes"


@check("B-5a", "B-5b", method="second formula")
def first_order() -> str:
    for law in ("normal", "uniform", "laplace"):
        for sparsity in (0.25, 0.5, 0.875):
            exact = bank_cost(40_000, int(40_000 * sparsity), law)["excess"]
            assert_close("excess", b.first_order_energy(sparsity, 40_000, law)["excess"], exact, 1e-3)
            bank = b.smallest_bank_rule(sparsity, 0.01, law)
            relative = b.first_order_energy(sparsity, 99, law)["relative"] * 100 / (bank + 1)
            assert_close("rule", relative, 0.01, 1e-12)
    return "the exact excess approaches the first-order one in banks of 40,000; the rule inverts it"


@check("B-5c", "B-6", method="enumeration")
def smallest_banks() -> str:
    for sparsity, allowance, step in ((0.5, 0.3, None), (0.75, 0.12, None), (0.875, 0.07, 24), (0.625, 0.2, None)):
        found = b.smallest_bank(sparsity, allowance, step)
        unit = math.lcm(step or 1, {0.5: 2, 0.75: 4, 0.875: 8, 0.625: 8}[sparsity])
        first = next(n for n in itertools.count(unit, unit) if bank_cost(n, int(n * sparsity))["relative"] <= allowance)
        assert found["bank"] == first, f"{found} where a scan finds {first}"
        assert_close("curve", b.excess_curve(sparsity, first)["percent"], 100 * found["relative"], 1e-12)
    return "a scan over all admissible banks finds the same smallest one"


@check("B-7a", "B-7b", "B-7c", method="Monte Carlo")
def simulated_rows() -> str:
    rng = np.random.default_rng(77)
    columns, bank, r, sigma_x, sigma_w = 64, 16, 12, 1.7, 0.3
    weights = sigma_w * rng.standard_normal((6000, columns))
    banks = np.abs(weights).reshape(len(weights), -1, bank)
    ranks = banks.argsort(axis=2).argsort(axis=2)
    removed = np.where(ranks < r, weights.reshape(banks.shape), 0.0).reshape(weights.shape)
    inputs = sigma_x * rng.standard_normal(weights.shape)
    assert_mean(
        "row",
        np.square((removed * inputs).sum(axis=1)),
        b.row_error(columns, bank, r, sigma_x, sigma_w)["squared_error"],
    )
    mixing = rng.standard_normal((columns, columns)) / math.sqrt(columns)
    correlated = rng.standard_normal((40_000, columns)) @ mixing.T
    result = b.correlated_row_error(removed[0], mixing @ mixing.T)
    assert_mean("correlated", np.square(correlated @ removed[0]), result["squared_error"])
    assert_mean("diagonal", (np.square(removed[0]) * np.square(correlated)).sum(axis=1), result["diagonal"])
    level = limit_energy(0.75)
    w = rng.standard_normal(200_000)
    energies = np.where(np.abs(w) <= level["threshold"], np.square(w), 0.0)
    spread = b.row_energy_spread(0.75)
    assert_mean("spread", np.square(energies - level["energy"]), spread["spread"])
    assert_mean("own share", np.square(energies - level["energy"] * np.square(w)), spread["own_share"])
    return "6,000 simulated rows, 40,000 correlated inputs, 200,000 weights, false alarm 1e-6 each"


@check("B-8a", "B-8b", "B-9c", method="second formula")
def repaired_mixture() -> str:
    for n, r in ((16, 8), (16, 12), (64, 58), (400, 300)):
        mixture, exact = b.mixture_variance(n, r), bank_energy(n, r) * n / r
        assert 0.96 * exact < mixture < 1.001 * exact, f"{mixture} against {exact}"
        curvature = second_derivative(partial(b.mixture_characteristic, n=n, r=r, sigma_input=1.3, sigma_weight=0.7))
        assert_close("curvature", curvature, b.mixture_variance(n, r, 1.3, 0.7), 1e-5)
    far = b.pruned_variance(1, 400, 1, 300)["unstructured"]
    assert_close("large bank", b.mixture_variance(400, 300), far, 2e-3)
    return "four banks, half and more pruned: the repaired mixture is up to 4 % low, its curvature at 0 is its variance"


@check("B-8d", method="second formula")
def density_of_products() -> str:
    for sigma in (1.0, 1.7):
        for x in (0.05, 0.6, 3.0):
            assert_close(
                "bessel", b.product_density(x, 1.0, sigma), float(special.k0(x / sigma)) / (math.pi * sigma), 1e-11
            )
    for sparsity, sigma in ((0.5, 1.0), (0.9, 1.7)):

        def moment(power: int, sparsity: float = sparsity, sigma: float = sigma) -> float:
            def integrand(u: float) -> float:
                return 2 * math.exp(u * (power + 1)) * b.product_density(math.exp(u), sparsity, sigma)

            return float(integrate.quad(integrand, -40, 4, limit=200)[0])

        assert_close("mass", moment(0), 1.0, 1e-8)
        assert_close("variance", moment(2), b.product_moments(sparsity, sigma)["variance"], 1e-8)
        assert abs(b.product_density_printed(0.5, sparsity, sigma) / b.product_density(0.5, sparsity, sigma) - 1) > 0.02
    return "a Bessel function without pruning; total mass 1 and the right variance with it"


@check("B-9a", "B-9d", method="second formula")
def characteristic_of_large_layers() -> str:
    for sparsity, sigma_x, sigma_w in ((0.75, 1.7, 1.0), (0.3, 1.0, 0.5)):
        for t in (0.0, 0.4, 3.0):
            a, scale = limit_energy(sparsity)["threshold"], (t * sigma_x * sigma_w) ** 2
            mean = integrate.quad(lambda w, s=scale: math.exp(-0.5 * (1 + s) * w * w), 0, a, epsrel=1e-12)[0]
            value = b.limit_characteristic(t, sparsity, sigma_x, sigma_w)
            assert_close("mean", value, mean * math.sqrt(2 / math.pi) / sparsity, 1e-10)
        moments = b.product_moments(sparsity, sigma_x, sigma_w)
        step, variance = 0.02, moments["variance"]
        values = [b.limit_characteristic(k * step, sparsity, sigma_x, sigma_w) for k in (0, 1, 2)]
        fourth = (6 * values[0] - 8 * values[1] + 2 * values[2]) / step**4
        assert_close("fourth", fourth, moments["fourth"], 0.02)
        curvature = second_derivative(
            partial(b.limit_characteristic, sparsity=sparsity, sigma_input=sigma_x, sigma_weight=sigma_w)
        )
        assert_close("variance", curvature, variance, 1e-6)
    return "mean of exp(-t^2 w^2/2) over the pruned weights, and both moments from its derivatives at 0"


@check("B-9b", "B-9e", method="Monte Carlo")
def characteristic_of_banks() -> str:
    rng = np.random.default_rng(92)
    dw = pruned_sample(rng, 32, 24, 60_000)
    for t in (0.3, 1.0, 2.5):
        assert_mean("bank", np.cos(t * dw * 1.7 * rng.standard_normal(dw.size)), b.bank_characteristic(t, 32, 24, 1.7))
    for n, r in ((1, 1), (4, 2), (512, 500)):
        assert_close("one", b.bank_characteristic(0.0, n, r), 1.0, 1e-12)
        curvature = second_derivative(partial(b.bank_characteristic, n=n, r=r, sigma_input=1.2, sigma_weight=0.5), 1e-2)
        assert_close("variance", curvature, b.bank_product_moments(n, r, 1.2, 0.5)["variance"], 1e-5)
    assert b.bank_characteristic_printed(0.0, 8192, 6144) < 1e-3, "the printed form is not 1 at 0"
    return "cosines of 60,000 simulated products, false alarm 1e-6 each; 1 and the variance at 0"
