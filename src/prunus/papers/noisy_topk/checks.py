"""Independent checks of noisy top-k: all small index sets, linear programs, simulated gradients."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from prunus.papers import noisy_topk as s
from prunus.papers.checking import check
from prunus.papers.sampling import assert_close, assert_mean

Array = NDArray[np.float64]

SMALL = ((6, 2, 0.7), (7, 3, 0.25), (8, 2, 1.2), (7, 5, 0.4))


@cache
def subsets(d: int, m: int) -> Array:
    """All index sets of m out of d as rows of zeros and ones; the first is {0, ..., m-1}."""
    rows = np.zeros((math.comb(d, m), d))
    for row, chosen in zip(rows, itertools.combinations(range(d), m)):
        row[list(chosen)] = 1.0
    return rows


def index_law(d: int, m: int, theta: float, center: int = 0) -> Array:
    """Probabilities of all index sets, straight from exp(-theta Hamming distance)."""
    sets = subsets(d, m)
    weights = np.exp(-theta * np.abs(sets - sets[center]).sum(axis=1))
    return cast("Array", weights / weights.sum())


def overlap(d: int, m: int) -> Array:
    """Overlap of every index set with the first."""
    return cast("Array", subsets(d, m)[:, :m].sum(axis=1))


@check("N-1", "N-4", "N-4a", "N-4b", "N-4c", "N-12a", "N-13", method="enumeration")
def all_index_sets() -> str:
    for d, m, theta in SMALL:
        swaps = m - overlap(d, m)
        law = index_law(d, m, theta)
        result = s.swap_law(m, d - m, theta)
        mean = float(law @ swaps)
        assert_close("mean", result["mean"], mean, 1e-12)
        assert_close("variance", result["variance"], float(law @ np.square(swaps - mean)), 1e-12)
        assert_close("psi", result["log_psi"], -math.log(law[0]), 1e-12)
        sizes = s.index_sets(d, m / d)
        assert (sizes["m"], sizes["others"], sizes["most_swaps"]) == (m, d - m, int(swaps.max())), f"{sizes}"
        assert_close("bits", s.index_bits(d, m), math.log2(len(law)), 1e-12)
        chances = [float(law[swaps == i].sum()) for i in range(sizes["most_swaps"] + 1)]
        assert s.swap_mode(m, d - m, theta) == int(np.argmax(chances)), "the mode is the likeliest count"
        for i, chance in enumerate(chances):
            at = s.swap_probability(m, d - m, theta, i)
            assert s.swap_sets(m, d - m, i) == int((swaps == i).sum()), "number of sets"
            assert_close("count", at["probability"], chance, 1e-12)
            assert_close("set", math.exp(at["log_set_probability"]), float(law[swaps == i][0]), 1e-12)
            ratio = s.swap_ratio(m, d - m, theta, i)
            assert_close("up", ratio["up"], chances[i + 1] / chance if i + 1 < len(chances) else 0.0, 1e-12)
            assert_close("down", ratio["down"], chances[i - 1] / chance if i else 0.0, 1e-12)
    return "all index sets of four small problems"


@check("N-4", "N-4a", "N-4d", "N-6", method="second formula")
def fisher_law() -> str:
    for m, others, theta in ((40, 300, 0.8), (200, 150, 0.3), (25, 2000, 2.0)):
        peer = stats.nchypergeom_fisher(m + others, others, m, math.exp(-2 * theta))
        law = s.SwapLaw(m, others, theta)
        low, probabilities = law.window
        assert_close("sum", float(probabilities.sum()), 1.0, 1e-13)
        counts = low + np.arange(len(probabilities))
        likely = probabilities > 1e-9
        assert np.allclose(probabilities[likely], peer.pmf(counts[likely]), rtol=1e-7), "probabilities"
        step = 1e-4
        slope = (s.SwapLaw(m, others, theta + step).mean - s.SwapLaw(m, others, theta - step).mean) / (2 * step)
        assert_close("derivative", s.swap_mean_derivative(m, others, theta), slope, 1e-6)
        psi = (s.SwapLaw(m, others, theta + step).log_psi - s.SwapLaw(m, others, theta - step).log_psi) / (2 * step)
        assert_close("mean", law.mean, -psi / 2, 1e-6)
        saddle = s.swap_saddle(m, others, theta)
        i = saddle["mean"]
        assert_close("root", (m - i) * (others - i) * math.exp(-2 * theta), i * i, 1e-10)
        assert_close("close", i, law.mean, 0.02)
        assert_close("spread", saddle["variance"], law.variance, 0.05)
    return "scipy's non-central hypergeometric law, and derivatives of mean and log psi"


@check("N-4", "N-4a", "N-12b", "N-12c", method="second formula")
def integer_arithmetic() -> str:
    m, others, theta = 300, 5000, 1.1
    shift = 1 << 400
    odds = s.published_theta(theta, 400)
    weights = [math.comb(m, i) * math.comb(others, i) * odds["integer"] ** i * shift ** (m - i) for i in range(m + 1)]
    total = sum(weights)
    law = s.SwapLaw(m, others, theta)
    for i in (0, 3, 100, law.mode, 290, 300):
        exact = math.log(weights[i] * (1 << 4000) // total) - 4000 * math.log(2)
        assert_close("log probability", law.log_probability(i), exact, 1e-12, 1e-11)
    low, high, swaps = law.mode - 40, law.mode + 45, 7
    cut = sum(weights[high - swaps + 1 :]) + sum(weights[: low + swaps])
    assert_close("tails", s.truncation_delta(m, others, theta, low, high, swaps), cut / total, 1e-11)
    for wanted, bits in ((1.0, 16), (0.3, 40), (2.65, 64), (30.0, 8)):
        used = s.published_theta(wanted, bits)
        below = (used["integer"] - 1) / 2**bits < math.exp(-2 * wanted) * (1 + 1e-12)
        assert below, "rounded up to the next integer"
        assert used["theta"] <= wanted, "never less private"
        assert_close("theta", math.exp(-2 * used["theta"]), used["integer"] / 2**bits, 1e-12)
    return "integer weights of 400 bits, all digits"


@check("N-4e", "N-7f", "N-7g", method="enumeration")
def randomised_response() -> str:
    for d, m, theta in SMALL:
        flip = s.flip_probability(theta)
        sets = subsets(d, m)
        flips = np.abs(sets - sets[0]).sum(axis=1)
        chances = flip**flips * (1 - flip) ** (d - flips)
        assert np.allclose(chances / chances.sum(), index_law(d, m, theta), rtol=1e-12), "response given m ones"
        for center in (1, len(sets) - 1):
            j = int(np.abs(sets[center] - sets[0]).sum()) // 2
            first, second = index_law(d, m, theta), index_law(d, m, theta, center)
            for epsilon in (0.0, 0.3, 1.1):
                delta = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
                assert_close("delta", s.privacy_delta(m, d - m, theta, j, epsilon), float(delta), 1e-11, 1e-14)
            for order in (1.001, 2.0, 9.5):
                renyi = math.log(float((first**order * second ** (1 - order)).sum())) / (order - 1)
                assert_close("renyi", s.renyi_divergence(m, d - m, theta, j, order), renyi, 1e-9)
    return "independent flips given m ones; privacy curves over all index sets"


@check("N-7a", "N-7b", "N-7c", "N-7d", "N-7e", "N-15", method="enumeration")
def worst_ratios() -> str:
    for d, m, theta in SMALL:
        sets, first = subsets(d, m), index_law(d, m, theta)
        largest = 0.0
        for center in range(len(sets)):
            j = int(np.abs(sets[center] - sets[0]).sum()) // 2
            second = index_law(d, m, theta, center)
            loss = np.log(first / second)
            assert_close("metric", s.swap_privacy(theta, j)["epsilon"], float(loss.max()), 1e-12, 1e-13)
            leak = s.leakage(m, d - m, theta, j)
            assert_close("divergence", leak["divergence"], float(first @ loss), 1e-11, 1e-13)
            largest = max(largest, float(loss.max()))
        assert_close("kept", leak["kept"], float(first @ sets[:, 0]), 1e-12)
        assert_close("inclusion", leak["inclusion"], float(first @ sets[:, -1]), 1e-12)
        local = s.local_privacy(d, m, theta)
        assert_close("local", local["epsilon"], largest, 1e-12)
        assert local["sensitivity"] == int(np.abs(sets - sets[0]).sum(axis=1).max()), "largest distance"
        assert_close("inverse", s.theta_for_local_epsilon(d, m, largest), theta, 1e-12)
        assert_close("per swap", s.swap_privacy(s.theta_for_swap_epsilon(1.7), 1)["epsilon"], 1.7, 1e-12)
        both = np.log(np.outer(first, first)).max() - np.log(np.outer(first, first)).min()
        assert_close("groups", s.grouped_privacy([d, d], [m, m], theta)["epsilon"], float(both), 1e-12)
    return "largest log ratios, divergences and inclusions over all pairs of index sets"


@check("N-2a", "N-2b", "N-2c", "N-3a", "N-3b", "N-3c", "N-3d", method="Monte Carlo")
def errors_of_gradients() -> str:
    rng = np.random.default_rng(23)
    d, m, sigma, swaps = 40, 10, 0.5, 3
    gradients = sigma * rng.standard_normal((20_000, d))
    squares = np.sort(np.square(gradients), axis=1)
    pruned = squares[:, : d - m].sum(axis=1)
    assert_mean("top-k", pruned, s.topk_error(d, m, sigma)["squared_error"])
    given = [s.topk_error_given(g, m) for g in gradients[:50]]
    assert np.allclose(given, pruned[:50]), "given gradients"
    slopes = squares[:, d - m :].mean(axis=1) - squares[:, : d - m].mean(axis=1)
    assert_mean("slope", slopes / sigma**2, s.swap_slope(d, m))
    assert np.allclose([s.swap_slope_given(g, m)["slope"] for g in gradients[:50]], slopes[:50]), "given slopes"
    lost = rng.permuted(squares[:, d - m :], axis=1)[:, :swaps].sum(axis=1)
    found = rng.permuted(squares[:, : d - m], axis=1)[:, :swaps].sum(axis=1)
    assert_mean("swapped", pruned + lost - found, s.error_after_swaps(d, m, swaps, sigma))
    large = s.topk_error_limit(10**7, 0.25, sigma)
    assert_close("limit", large["squared_error"], s.topk_error(10**7, 2_500_000, sigma)["squared_error"], 1e-5)
    assert_close("limit slope", s.swap_slope_limit(0.25), s.swap_slope(10**7, 2_500_000), 1e-5)
    step = 1e-5
    rise = s.topk_error_limit(10, 0.3 + step)["squared_error"] - s.topk_error_limit(10, 0.3 - step)["squared_error"]
    assert_close("derivative", s.topk_error_limit(10, 0.3)["slope"], rise / (2 * step), 1e-6)
    return "20,000 simulated gradients, false alarm 1e-6 each; the limits at dimension 10^7"


@check("N-5a", "N-5b", "N-10f", "N-11f", method="Monte Carlo")
def errors_of_noisy_topk() -> str:
    rng = np.random.default_rng(57)
    d, m, theta, sigma, noise = 8, 3, 0.6, 0.5, 0.2
    sets, law = subsets(d, m), index_law(d, m, theta)
    gradients = sigma * rng.standard_normal((20_000, d))
    ranked = np.take_along_axis(gradients, np.argsort(-np.abs(gradients), axis=1), axis=1)
    keep = sets[rng.choice(len(sets), len(gradients), p=law)]
    squares = (np.square(ranked) * (1 - keep)).sum(axis=1)
    assert_mean("error", squares, s.expected_error(d, m, theta, sigma)["squared_error"])
    values = (np.square(math.sqrt(noise) * rng.standard_normal(keep.shape)) * keep).sum(axis=1)
    assert_mean("total", squares + values, s.total_error(d, m, theta, noise, sigma))
    exact, limit = s.expected_error(10**6, 10**5, 1.2), s.expected_error_limit(10**6, 0.1, 1.2)
    assert_close("limit", limit["squared_error"], exact["squared_error"], 1e-5)
    local = s.error_at_local_epsilon(10**6, 10**5, 2.4e5)
    assert_close("local", local["squared_error"], limit["squared_error"], 1e-12)
    printed = s.expected_error_limit_printed(10**6, 0.1, 8.0)["relative"]
    assert printed < 0.95 * s.expected_error(10**6, 10**5, 8.0)["relative"], "the printed error is too small"
    return "20,000 gradients with simulated index sets, false alarm 1e-6 each"


@check("N-9a", "N-9b", "N-9c", "N-9d", method="second formula")
def linear_programs() -> str:
    for d, m in ((5, 2), (6, 2), (6, 3)):
        x = overlap(d, m)
        levels = np.unique(x)
        sizes = np.array([(x == level).sum() for level in levels], dtype=float)

        def best(ratios: list[tuple[int, int, float]], sizes: Array = sizes, levels: Array = levels) -> float:
            """Largest mean overlap of a law f(overlap) with f(a) <= ratio f(b) for the given pairs."""
            rows = np.zeros((len(ratios), len(levels)))
            for row, (a, b, ratio) in zip(rows, ratios):
                row[a], row[b] = 1.0, -ratio
            zeros = np.zeros(len(rows))
            found = optimize.linprog(-levels * sizes, rows, zeros, sizes[None, :], [1.0], method="highs")
            return float(-float(found.fun) / levels.max())

        pairs = list(itertools.permutations(range(len(levels)), 2))
        metric = [(a, b, math.exp(2.0 * abs(levels[a] - levels[b]))) for a, b in pairs]
        assert_close("metric", s.metric_optimum(d, m, 1.0), best(metric), 1e-8)
        for epsilon in (0.5, 2.0, 4.0):
            local = best([(a, b, math.exp(epsilon)) for a, b in pairs])
            assert_close("two levels", s.two_level_rule(d, m, epsilon)["kept"], local, 1e-8)
            assert s.kept_at_local_epsilon(d, m, epsilon) <= local + 1e-9, "noisy top-k cannot be better"
            assert s.kept_fraction_bound(d, m, epsilon) >= local - 1e-9, "the converse must hold"
            order = np.argsort(-x)
            part, top = math.exp(-epsilon), np.full(len(x), 1.0 / len(x))
            filled = np.clip(part - np.concatenate(([0.0], np.cumsum(top)[:-1])), 0.0, top)
            assert_close("top part", s.kept_fraction_bound(d, m, epsilon), float(filled @ x[order]) / part / m, 1e-12)
    return "linear programs over all symmetric mechanisms of three small problems"


@check("N-9b", "N-9d", "N-9e", method="property")
def converse_at_scale() -> str:
    d, m = 10**6, 10**4
    last = 0.0
    for epsilon in (0.5, 8.0, 64.0, 300.0):
        rule, bound = s.two_level_rule(d, m, epsilon), s.kept_fraction_bound(d, m, epsilon)
        rough = s.rough_kept_fraction(m, m / d, epsilon)
        assert s.kept_at_local_epsilon(d, m, epsilon) < rule["kept"] < bound < rough, f"order at epsilon {epsilon}"
        assert rule["kept"] > last, "more budget keeps more"
        assert rule["level"] - 1 <= rule["kept"] * m <= rule["level"], "the level is the optimum rounded up"
        p, k = rough, m / d
        assert_close("exponent", m * (p * math.log(p / k) + (1 - p) * math.log((1 - p) / (1 - k))), epsilon, 1e-9)
        last = rule["kept"]
    return "noisy top-k < two-level rule < converse < its exponent, at d = 10^6"


@check("N-8", "N-11a", "N-11b", "N-11c", "N-11e", method="property")
def round_trips() -> str:
    for m, others in ((3, 4), (100, 900), (700, 300), (10**4, 990_000)):
        most = m * others / (m + others)
        for share in (1e-6, 0.2, 0.9, 0.999999):
            found = s.theta_for_swaps(m, others, share * most)
            assert_close("swaps", s.swap_law(m, others, found["theta"])["mean"], share * most, 1e-11)
        kept = 0.5 * (1 + m / (m + others))
        need = s.theta_for_kept(m + others, m, kept)
        assert_close("kept", s.metric_optimum(m + others, m, need["theta"]), kept, 1e-11)
        local = s.local_privacy(m + others, m, need["theta"])["epsilon"]
        assert_close("local", need["epsilon_local"], local, 1e-12)
        assert_close("swap", need["epsilon_swap"], s.swap_privacy(need["theta"], 1)["epsilon"], 1e-12)
    limits = s.feasible_budget(1000, 0.1, 0.5)
    assert_close("lowest", s.expected_error_limit(1000, 0.1, 60.0, 0.5)["squared_error"], limits["lowest"], 1e-11)
    assert_close("highest", s.expected_error_limit(1000, 0.1, 0.0, 0.5)["squared_error"], limits["highest"], 1e-11)
    for part in (0.01, 0.5, 0.99):
        budget = limits["lowest"] + part * (limits["highest"] - limits["lowest"])
        found = s.theta_for_error(1000, 0.1, budget, 0.5)
        assert_close("budget", s.expected_error_limit(1000, 0.1, found["theta"], 0.5)["squared_error"], budget, 1e-10)
        k = s.smallest_k(part)
        assert_close("smallest k", s.topk_error_limit(10, k)["relative"], part, 1e-11)
    return "forward formulas give back what was asked for"


@check("N-11d", method="second formula")
def best_kept_fraction() -> str:
    for variance, sigma in ((0.3, 1.0), (2.0, 0.7)):
        best = s.best_k(variance, sigma)

        def cost(k: float, variance: float = variance, sigma: float = sigma) -> float:
            return s.topk_error_limit(2, k, sigma)["squared_error"] / 2 + k * variance

        found = optimize.minimize_scalar(cost, bounds=(1e-9, 1.0), method="bounded", options={"xatol": 1e-9})
        assert_close("k", best["k"], float(found.x), 1e-4)
        assert_close("error", best["squared_error"], float(found.fun), 1e-9)
    return "a numerical minimum over the kept fraction"


@check("N-10a", "N-10d", "N-10e", "N-10g", "N-10h", method="property")
def compositions() -> str:
    message = s.composed_message(1.5, 0.25, 1e-6)
    assert (message["epsilon"], message["delta"]) == (1.75, 1e-6), f"{message}"
    for rounds in (1, 7):
        total = s.composed_rounds(0.5, rounds, 1e-3)
        assert_close("rounds", total["epsilon"], sum([0.5] * rounds), 1e-12)
        assert_close("delta", total["delta"], sum([1e-3] * rounds), 1e-12)
    # A mechanism of two outcomes attains its epsilon; mixed with "not sampled" it attains the subsampled one.
    for epsilon, sampling in ((0.7, 0.2), (3.0, 0.05)):
        yes = math.exp(epsilon) / (1 + math.exp(epsilon))
        mixed = sampling * yes + (1 - sampling) * (1 - yes)
        reduced = s.subsampled_privacy(epsilon, sampling, 1e-5)
        assert_close("subsampled", reduced["epsilon"], math.log(mixed / (1 - yes)), 1e-12)
        assert_close("delta", reduced["delta"], sampling * 1e-5, 1e-12)
    corners = np.array(list(itertools.product((-0.3, 0.3), repeat=4)))
    gaps = corners[:, None, :] - corners[None, :, :]
    clipped = s.clip_sensitivity(0.3, 4)
    assert_close("first", clipped["first"], float(np.abs(gaps).sum(axis=2).max()), 1e-12)
    assert_close("second", clipped["second"], float(np.sqrt(np.square(gaps).sum(axis=2)).max()), 1e-12)
    noise = s.laplace_scale(0.4, 2.0)
    worst = math.log(stats.laplace(scale=noise["scale"]).pdf(0.0) / stats.laplace(scale=noise["scale"]).pdf(0.8))
    assert_close("laplace", worst, 2.0, 1e-12)
    assert_close("variance", noise["variance"], float(stats.laplace(scale=noise["scale"]).var()), 1e-12)
    return "two-outcome mechanisms, corners of the clipping box and densities of the noise"


@check("N-10b", "N-10c", "N-10i", method="second formula")
def gaussian_mechanism() -> str:
    for epsilon, sigma, sensitivity in ((0.5, 2.0, 1.0), (0.0, 1.0, 2.0), (3.0, 0.4, 1.0), (1.0, 1.5, 0.5)):
        first, second = stats.norm(sensitivity, sigma), stats.norm(0.0, sigma)
        start = sensitivity / 2 + epsilon * sigma**2 / sensitivity
        delta = first.sf(start) - math.exp(epsilon) * second.sf(start)
        assert_close("delta", s.gaussian_delta(epsilon, sigma, sensitivity), float(delta), 1e-9)
        found = s.gaussian_sigma(max(epsilon, 0.1), 1e-4, sensitivity)
        assert_close("sigma", s.gaussian_delta(max(epsilon, 0.1), found["sigma"], sensitivity), 1e-4, 1e-10)
        assert epsilon >= 1 or found["sigma"] < found["classical"], "the classical noise is larger"
        for order in (1.5, 4.0):
            center, width = order * sensitivity, 12 * sigma
            integral = integrate.quad(
                lambda x, a=order, f=first, g=second: math.exp(a * f.logpdf(x) + (1 - a) * g.logpdf(x)),
                center - width,
                center + width,
            )[0]
            renyi = math.log(integral) / (order - 1)
            assert_close("renyi", s.gaussian_renyi(order, sigma, sensitivity), renyi, 1e-7)
    return "tails and integrals of two normal densities"


@check("N-14", "N-9a", method="second formula")
def near_zero_theta() -> str:
    d, m = 32_768, 3277
    for theta in (2.13e-8, 1e-6, 1e-4):
        exact = s.metric_optimum(d, m, theta) - m / d
        assert_close("gain", s.gain_over_random(d, m, theta)["gain"], exact, 2 * theta + 1e-3, 1e-16)
    variance = m * (m / d) * (1 - m / d) ** 2 * d / (d - 1)
    assert_close("variance", s.swap_law(m, d - m, 0.0)["variance"], variance, 1e-11)
    return "the exact kept fraction at tiny theta, and the hypergeometric variance"
