"""Independent checks of the theorems on closeness and of the thresholds: enumeration, quadrature, simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
from scipy import integrate, special, stats

from prunus.papers import closeness as c
from prunus.papers.checking import check
from prunus.papers.closeness._simulation import (
    at_most,
    circular_norm,
    normal_order_moment,
    norms,
    outputs,
    random_network,
    spectral,
    unit_rows,
)
from prunus.papers.sampling import assert_close, assert_mean

THEOREM1 = {"spread": 1.0, "latala": 0.63, "concentration": 0.00484}

THEOREM2 = {"second": 1 / 3, "fourth": 0.2, "latala": 0.55}

THEOREM3 = {"second": 1.0, "fourth": 3.0, "latala": 0.6}


@check("P-1", "P-2a", "P-2b", "P-2c", method="enumeration")
def counts() -> str:
    corners = [math.hypot(*corner) for corner in itertools.product((0, 1), repeat=12)]
    assert_close("cube", c.cube_radius(2, 3)["radius"], max(corners))
    middle = [math.dist(corner, [0.5] * 12) for corner in itertools.product((0, 1), repeat=12)]
    assert_close("midpoint", c.cube_radius(2, 3)["half_diagonal"], max(middle))
    for weights, part, parts in ((2**20, 1, 20), (1000, 1, 3), (10**9, 2, 9), (7, 3, 4)):
        exponent = Fraction(part, parts)
        pruned = int(c.pruned_weights(weights, float(exponent))["pruned"])
        power = weights ** (exponent.denominator - exponent.numerator)
        assert pruned**exponent.denominator <= power < (pruned + 1) ** exponent.denominator, "not the exact floor"
        share = weights ** (-float(exponent))
        assert_close("exponent", c.exponent_for_sparsity(weights, share), float(exponent), 1e-12)
    for weights, tenth in itertools.product((1, 10, 999, 12345), range(11)):
        exact = math.floor((1 - Fraction(tenth, 10)) * weights)
        assert c.pruned_from_density(weights, tenth / 10) == exact, f"{weights} weights, density {tenth / 10}"
    return "corners of a cube, integer powers, rational fractions"


@check("P-3a", "P-3b", "P-3c", method="enumeration")
def replacement() -> str:
    for weights, count in ((4, 3), (5, 4), (3, 5)):
        draws = [len(set(draw)) for draw in itertools.product(range(weights), repeat=count)]
        assert_close("distinct", c.distinct_mean(weights, count), sum(draws) / len(draws), 1e-12)
        repeat_free = sum(size == count for size in draws) / len(draws)
        assert_close("no repeat", c.no_repeat_probability(weights, count)["probability"], repeat_free, 1e-12, 1e-15)
    for weights, count in ((10**6, 20_000), (30_000, 29_995), (10**5, 50_000)):
        log_p = float(np.log1p(-np.arange(count) / weights).sum())
        assert_close("long product", c.no_repeat_probability(weights, count)["log_probability"], log_p, 1e-10)
    full = [len(set(draw) & {0, 1}) == 2 for draw in itertools.product(range(4), repeat=2)]  # one row of 2 x 2 emptied
    fails = sum(full) / len(full)
    truth = 1 / math.comb(4, 2)
    assert truth <= c.without_replacement_failure(4, 2, fails) + 1e-15, "the transfer is not a bound"
    assert_close("attained", c.without_replacement_failure(4, 2, fails), truth)
    return "all draws of small masks; long products term by term"


@check("P-4", method="Monte Carlo")
def global_pruning() -> str:
    rng = np.random.default_rng(4)
    sizes, scales = [40_000, 20_000, 5_000], [0.1, 0.2, 0.7]
    for law in ("normal", "uniform"):
        layers = [
            np.abs(rng.normal(0, a, n) if law == "normal" else rng.uniform(-a, a, n)) for n, a in zip(sizes, scales)
        ]
        for sparsity in (0.2, 0.7):
            result = c.global_threshold(sizes, scales, sparsity, law)
            cut = np.sort(np.concatenate(layers))[int(sparsity * sum(sizes)) - 1]
            for layer, share in zip(layers, result["shares"]):  # type: ignore[call-overload]
                # The threshold itself fluctuates: twice the deviation of a fixed one covers both.
                error = 2 * 4.9 * math.sqrt(share * (1 - share) / len(layer)) + 1e-4
                assert abs((layer <= cut).mean() - share) < error, f"{law}, {sparsity}: share {share}"
    return "shares of simulated layers pruned by one threshold"


@check("P-5", "P-6a", "P-6b", "P-6c", "P-16b", method="Monte Carlo")
def uniform_order() -> str:
    rng = np.random.default_rng(5)
    n, r, a = 12, 5, 0.7
    weights = rng.uniform(-a, a, (200_000, n))
    ordered = np.sort(np.abs(weights), axis=1)
    for power in (-0.75, 0.5, 1.0, 2.0):
        assert_mean(f"power {power}", ordered[:, r - 1] ** (2 * power), c.squared_order_moment(n, r, power, a))
    entry = np.where(np.abs(weights) <= ordered[:, [r - 1]], weights, 0.0)
    moments = c.pruned_entry_moments(n, r, a)
    assert_mean("second", entry[:, 0] ** 2, moments["second"])
    assert_mean("fourth", entry[:, 0] ** 4, moments["fourth"])
    assert_mean("threshold", ordered[:, r], c.pruned_threshold_mean(n, r, a))
    both = (entry[:, 0] * entry[:, 1]) ** 2 - moments["second"] ** 2
    covariance = c.pruned_entry_correlation(n, r) * (moments["fourth"] - moments["second"] ** 2)
    assert_mean("covariance", both, covariance)
    for delta in (0.5, 0.01):
        level = c.threshold_quantile(n, r, delta, a)
        assert_close("quantile", float(special.bdtr(r, n, level / a)), delta, 1e-9)
    return "200,000 samples of 12 weights; the quantile inverts a binomial tail"


@check("P-22a", "P-22b", "P-22c", "P-22d", "P-33", method="second formula")
def magnitude_order() -> str:
    for n, r in ((100, 10), (10**6, 250_000), (50, 50)):
        harmonic = float(special.digamma(n + 1) - special.digamma(n - r + 1)) / math.sqrt(2)
        assert_close("Laplace", c.magnitude_order_moment(n, r, law="laplace"), harmonic, 1e-9)
    for n, r, power in ((7, 3, 1.5), (7, 1, -0.5), (7, 7, 4.0), (1, 1, 2.0)):
        assert_close("normal", c.magnitude_order_moment(n, r, power), normal_order_moment(n, r, power), 1e-7)
        for x in (0.3, 1.2):
            law = stats.halfnorm
            tail = math.fsum(math.comb(n, k) * law.cdf(x) ** k * law.sf(x) ** (n - k) for k in range(r, n + 1))
            assert_close("cdf", c.magnitude_order_cdf(n, r, 2 * x, 2.0)["probability"], tail, 1e-10)
    wide = c.magnitude_order_cdf(10**8, 10**6, float(stats.halfnorm.ppf(0.0101)))
    assert abs(wide["probability"] - wide["approximation"]) < 1e-3, "the normal approximation does not converge"
    assert_close("first order", c.small_order_mean(10**8, 100, 2.0), c.magnitude_order_moment(10**8, 100, 1, 2.0), 1e-6)
    general = c.small_order_mean_general(10**8, 100, math.sqrt(2 / math.pi))
    assert_close("peak", general, c.small_order_mean(10**8, 100), 1e-7)
    rng = np.random.default_rng(33)
    for correlation in (0.2, 0.95):
        common, own = rng.standard_normal((100_000, 1)), rng.standard_normal((100_000, 9))
        weights = np.sort(np.abs(math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own), axis=1)
        assert_mean("correlated", weights[:, 2] ** 2, c.correlated_order_moment(9, 3, correlation, 2.0))
    assert_close("limit", c.correlated_order_moment(9, 3, 1e-13), c.magnitude_order_moment(9, 3), 1e-8)
    return "harmonic sums, quadrature of the density, binomial sums, and 200,000 correlated samples"


@check("P-8b", method="second formula")
def calibration() -> str:
    for layers, q, delta in itertools.product((3, 4, 7), (0.9, 0.99, 0.9999), (0.01, 0.2)):
        rate = c.concentration_from_quantile(256, q)
        width = c.theorem1_width(layers, 0.5, 1.0, delta, 1.0, 1.2, 1.0, rate)["norm_width"]
        assert c.calibrated_condition(layers, q, delta)["holds"] == (width <= 256), f"l={layers}, q={q}"
    return "the width of Theorem 1's norm bounds at the calibrated rate"


@check("P-13a", "P-13b", method="property")
def exponent_caps() -> str:
    for n in (3, 16, 128, 1024, 10**6):
        cap = c.theorem2_exponent_cap(n, n)
        assert math.floor(cap["balls"]) >= cap["needed"], "too few balls at the cap"
        assert_close("balls", cap["balls"], (n + 1) * math.log(n), 1e-9)
        assert_close("twice", c.theorem3_exponent_cap(n), 2 * cap["cap"], 1e-12)
        assert cap["cap"] < 0.5, "the corrected cap never reaches 1/2"
        if n >= 16:
            assert c.theorem2_exponent_cap_printed(n, n)["balls"] < cap["needed"], "the printed cap should fail"
    wide = c.theorem2_exponent_cap(300, 100)
    assert_close("wide", 30000 ** (1 - wide["cap"]), wide["balls"])
    return "(n+1) log n balls at the cap, at least what Lemma 6 needs; the printed sign throws too few"


@check("P-14a", "P-14b", "P-14c", "P-14d", "P-26", "P-34a", method="Monte Carlo")
def recursion() -> str:
    rng = np.random.default_rng(14)
    for trial in range(20):
        weights, pruned = random_network(rng, [6, 9, 8, 7, 4], 0.8)
        parts = spectral([a - b for a, b in zip(weights, pruned)])
        biases = [0.3 * rng.standard_normal(len(w)) * (trial % 2) for w in weights]
        lengths = [float(np.linalg.norm(b)) for b in biases]
        x = unit_rows(rng, 500, 6)
        attained = np.linalg.norm(outputs(weights, biases, x) - outputs(pruned, biases, x), axis=1).max()
        sharp = c.layer_recursion(spectral(weights), spectral(pruned), parts, lengths)
        assert attained <= sharp, f"a network differs by {attained}, the recursion allows {sharp}"
        if trial % 2 == 0:
            assert sharp <= c.recursion_error(spectral(weights), parts) * (1 + 1e-12), "the sharp form is larger"
    # The scalar network 2x, then 3 pruned to 2.5, attains its bound.
    assert_close("scalar", c.recursion_error([2.0, 3.0], [0.0, 0.5], radius=7.0), 7.0)
    for layers, norm, t in itertools.product((3, 4, 6), (1.0, 1.7), (0.0, 1e-9, 0.5)):
        parts = [0.0, *[t] * (layers - 2), 0.0]
        solved = c.equal_norm_error(norm, t, layers, 0.5)
        assert_close("equal", solved, c.recursion_error([norm] * layers, parts, 0.5), 1e-9)
        assert solved <= c.doubling_error(norm, t, layers, 0.5) * (1 + 1e-12), "doubling is smaller"
        conv = c.unequal_convolution_error([norm] * (layers - 1), parts[:-1], norm, 4, 3, 0.5)
        assert_close("images", conv, 4 * math.sqrt(3) * solved, 1e-9)
    assert_close("union", c.union_failure([0.01, 0.02], [0.03], 0.04), 0.1)
    return "20 random networks differ by less than both recursions allow; closed forms agree with them"


@check("P-15a", "P-15b", "P-15c", "P-16f", "P-25a", method="property")
def theorem1() -> str:
    for layers, exponent, delta in itertools.product((3, 5), (0.5, 0.75), (0.05, 0.3)):
        needs = c.theorem1_width(layers, exponent, 0.1, delta, norm_bound=1.18, **THEOREM1)
        d = math.ceil(needs["width"])
        success = c.theorem1_probability(layers, d, exponent, **THEOREM1)
        union = c.theorem1_union_probability(layers, d, exponent, **THEOREM1)
        assert 1 - delta <= min(success, union), "the required width does not suffice"
        assert max(success, union) <= 1, "a probability above one"
        constants = c.theorem1_constants(layers, norm_bound=1.18, **THEOREM1)
        error = c.doubling_error(1.18, d**-exponent, layers)
        assert_close("error", constants["constant2"] * d**-exponent, error, 1e-12)
        assert error <= 0.1, "the error at the required width is too large"
        allowed = c.theorem1_pruned(d, layers, 0.1, delta, norm_bound=1.18, **THEOREM1)
        assert allowed["exponent"] <= exponent * (1 + 1e-9), "the width allows a smaller exponent"
        assert allowed["pruned"] >= c.pruned_weights(d * d, exponent)["pruned"], "and so more pruned weights"
    return "at the required width probability and error are as promised"


@check("P-15d", "P-15e", "P-15f", "P-15g", "P-16a", method="Monte Carlo")
def pruned_norms() -> str:
    rng = np.random.default_rng(15)
    rows, columns, trials = 32, 48, 300
    a = 1 / math.sqrt(columns)
    for exponent in (0.25, 0.5):
        r = int(c.pruned_weights(rows * columns, exponent)["pruned"])
        weights = rng.uniform(-a, a, (trials, rows, columns))
        size = np.abs(weights)
        cut = np.sort(size.reshape(trials, -1), axis=1)[:, r][:, None, None]
        sample = norms(np.where(size < cut, weights, 0.0))
        mean = float(sample.mean())
        assert mean <= c.difference_mean_latala(rows, columns, exponent, 1.0, 1.0), "Lemma 4"
        assert mean <= c.difference_mean_explicit(rows, columns, r), "explicit"
        assert mean <= c.difference_mean_jensen(rows * columns, r, float(norms(weights).mean())), "Jensen"
        if exponent == 0.25:
            assert abs(c.difference_norm_heuristic(rows, columns, r) / mean - 1) < 0.15, "heuristic"
        levels = [c.theorem1_prime_difference(rows, columns, float(t), 0.2) for t in cut.ravel()]
        at_most("Theorem 1'", int((sample > levels).sum()), trials, 0.2)
        signs = cut[:, 0] * rng.choice((-1.0, 1.0), (trials, rows * columns))  # symmetric, not unimodal
        level = c.theorem1_prime_difference(rows, columns, float(cut[0, 0, 0]), 0.2, unimodal=False)
        assert norms(signs[:1].reshape(1, rows, columns))[0] < level, "symmetric law"
    return "norms of 600 pruned parts stay below all four bounds"


@check("P-16c", "P-16d", method="Monte Carlo")
def theorem1_prime() -> str:
    rng = np.random.default_rng(16)
    d, layers, pruned, delta = 24, 4, 60, 0.3
    bound = c.theorem1_prime_error(d, layers, pruned, delta)
    failures = 0
    for _ in range(60):
        weights = [rng.uniform(-1, 1, (d, d)) / math.sqrt(d) for _ in range(layers)]
        kept = [w * (np.abs(w) > np.sort(np.abs(w), axis=None)[pruned - 1]) for w in weights]
        kept[0], kept[-1] = weights[0], weights[-1]
        x = unit_rows(rng, 200, d)
        none = [np.zeros(d)] * layers
        failures += np.linalg.norm(outputs(weights, none, x) - outputs(kept, none, x), axis=1).max() > bound["error"]
    at_most("end to end", failures, 60, delta)
    for error in (0.05, 0.5, 1e9):
        best = int(c.theorem1_prime_pruned(d, layers, error, delta)["pruned"])
        assert best == 0 or c.theorem1_prime_error(d, layers, best, delta)["error"] <= error, "too many"
        if best < d * d - 1:
            assert c.theorem1_prime_error(d, layers, best + 1, delta)["error"] > error, "one more would do"
    return "60 pruned networks end to end; the largest number is the largest"


@check("P-17a", "P-17b", "P-17c", "P-25b", "P-25c", "P-25d", method="property")
def theorem2() -> str:
    for layers, exponent, delta in itertools.product((3, 5), (0.2, 0.4), (0.05, 0.3)):
        needs = c.theorem2_width(exponent, layers, 0.1, delta, 1.18, **THEOREM2)
        d = 10 ** math.ceil(needs["log10_width"])
        assert c.theorem2_probability(layers, d, exponent, **THEOREM2) >= 1 - delta, "the width does not suffice"
        constants = c.theorem2_constants(layers, 1.18, **THEOREM2)
        error = c.doubling_error(1.18, 1.0, layers) * 1.18 * d ** (-exponent / 4)
        assert_close("error", constants["constant2"] * d ** (-exponent / 4), error, 1e-9)
        assert error <= 0.1, "the error at the required width is too large"
        assert c.theorem2_width_floor(layers, 0.1, delta, 1.18, **THEOREM2) <= needs["log10_width"], "not a floor"
    for d in (1024, 10**6):
        best = c.theorem2_best_claim(d, 3, 1.18, **THEOREM2)
        direct = c.theorem2_probability(3, d, best["exponent"], **THEOREM2)
        assert_close("probability", best["probability"], direct, 1e-9)
        assert_close("sparsity", best["sparsity"], c.theorem2_exponent_cap(d, d)["balls"] / d**2, 1e-9)
        reached = c.theorem2_width(best["exponent"], 3, best["error"], 0.9, 1.18, **THEOREM2)["log10_error_width"]
        assert_close("error", reached, math.log10(d), 1e-9)
    failures = [0.01, 0.003, 0.002]
    slack = c.theorem2_slack(0.05, failures)["slack"]
    assert_close("slack", slack, 0.05 - 2 * 0.01 - 0.003 - 0.002, 1e-12)
    limit = c.theorem2_probability(3, 10**300, 0.4, **THEOREM2, norm_failures=failures)
    assert limit >= 1 - 0.05 + slack - 1e-12, "norm failures are counted too often"
    return "at the required width probability and error are as promised; the best claim is Theorem 2 at its cap"


@check("P-17d", "P-17e", "P-24c", "P-18a", "P-18c", method="Monte Carlo")
def random_pruning() -> str:
    rng = np.random.default_rng(17)
    d, trials = 40, 300
    weights = rng.uniform(-1, 1, (trials, d, d)) / math.sqrt(d)
    k = c.moment_constants(1.0, "uniform")
    normal = c.moment_constants(2.0)
    assert_mean("K_1", d * weights.ravel() ** 2, k["second"])
    assert_mean("K_2", d**2 * weights.ravel() ** 4, k["fourth"])
    assert_close("normal", normal["fourth"], integrate.quad(lambda x: x**4 * stats.norm.pdf(x, 0, 2), -30, 30)[0], 1e-7)
    sample = c.sample_moment_constants(float((weights**2).mean()), 1.8, d, d)
    assert_close("measured", sample["second"], k["second"], 0.01)
    assert_close("measured", sample["fourth"], k["fourth"], 0.02)
    size = norms(weights)
    at_most("Markov", int((size > 2.5).sum()), trials, c.norm_failure(2.5, k["second"], k["fourth"], 1.0))
    draws = rng.integers(0, d * d, (trials, 400))
    masks = np.zeros((trials, d * d), bool)
    np.put_along_axis(masks, draws, True, axis=1)
    parts = np.where(masks.reshape(trials, d, d), weights, 0.0)
    load = np.maximum(masks.reshape(trials, d, d).sum(1).max(1), masks.reshape(trials, d, d).sum(2).max(1))
    bounds = np.array([c.theorem2_prime_difference(d, d, int(most), 0.3) for most in load])
    at_most("Theorem 2'", int((norms(parts) > bounds).sum()), trials, 0.3)
    estimate = c.random_difference_heuristic(d, float(masks.mean()), math.sqrt(k["second"] / d))
    assert abs(norms(parts).mean() / estimate - 1) < 0.15, "the square-root law is off"
    return "moments, norms and pruned parts of 300 uniform matrices"


@check("P-18b", method="property")
def theorem2_prime() -> str:
    for d, layers, error, delta in ((4096, 3, 0.1, 0.05), (256, 4, 2.0, 0.1), (64, 3, 0.01, 0.1)):
        best = c.theorem2_prime_pruned(d, layers, error, delta)
        norm = c.uniform_norm_quantile(d, d, delta / (2 * layers))

        def total(load: int, d: int = d, layers: int = layers, delta: float = delta, norm: float = norm) -> float:
            part = c.theorem2_prime_difference(d, d, load, delta / (4 * (layers - 2)))
            return c.equal_norm_error(norm, part, layers)

        assert total(best["load"] + 1) > error, "not the largest load"
        assert best["load"] == 0 or total(best["load"]) <= error, "too large a load"
        if best["load"]:
            limit = delta / (8 * (layers - 2))
            tails = [d * stats.binom.sf(best["load"], best["count"] + more, 1 / d) for more in (0, 1)]
            assert tails[0] <= limit < tails[1], "not the largest count"
        else:
            assert best["count"] == 0, "no load, no draws"
    return "one more ball, or one more draw, breaks the bound"


@check("P-20", "P-21e", "P-21b", "P-21f", "P-34b", "P-34c", method="Monte Carlo")
def convolutions() -> str:
    rng = np.random.default_rng(20)
    d, q, p = 16, 3, 12
    scale = 1 / (p * math.sqrt(d))
    size = np.array([circular_norm(rng.normal(0, scale, (d, d, q, q)), p) for _ in range(40)])
    assert 0.8 < size.mean() / c.convolution_norm_order(p, q) < 1.3, "the order of the norm is off"
    bound = 3 * size.mean()
    at_most("norm", int((size > bound).sum()), 40, min(1.0, c.unequal_norm_failure([p], [q], [bound], 1.0, 3.0, 1.0)))
    exponent = 0.5
    drawn = math.floor(d ** (2 - exponent))
    parts = []
    for _ in range(40):
        mask = np.zeros(d * d, bool)
        mask[rng.integers(0, d * d, drawn)] = True
        kernels = rng.normal(0, scale, (d, d, q, q)) * mask.reshape(d, d, 1, 1)
        parts.append(circular_norm(kernels, p))
    mean_bound = c.unequal_difference_failure([p], [q], [d], [d], [exponent], [1.0], 1.0, 3.0, 1.0)
    assert np.mean(parts) < mean_bound, "the mean difference norm exceeds its bound"
    last = norms(rng.normal(0, scale, (100, 10, p * p * d)))
    assert abs(last.mean() / c.last_layer_norm(p, d, 10) - 1) < 0.05, "the last layer's norm is off"
    assert last.mean() < c.last_layer_failure(p, d, 10, 1.0, 3.0, 1.0, 1.0), "the last layer's mean norm"
    assert (last > c.last_layer_norm_printed(p, d, 10, image_exponent=0.1)).all(), "the paper's norm holds after all"
    assert_close("variance", c.variance_shortfall(p, q), (1 / (q * q * d)) / scale**2)
    return "norms of random convolutions and last layers: 2q/p and about one"


@check("P-21a", "P-21c", "P-21d", "P-34a", "P-34b", "P-34c", method="second formula")
def theorem3() -> str:
    p, q, d, a, image, width = 64, 3, 256, 0.5, 0.2, 0.05
    x, y = p**-image, d**-width
    norm = c.unequal_norm_failure([p, p], [q, q], [x, x], **THEOREM3)
    difference = c.unequal_difference_failure([p], [q], [d], [d], [a], [y], **THEOREM3)
    last = c.last_layer_failure(p, d, 10, **THEOREM3, norm_bound=10.0)
    result = c.theorem3_probability(3, p, q, d, a, image, width, **THEOREM3, outputs=10, norm_bound=10.0)
    assert_close("inner", result["inner"], 1 - norm - difference - last, 1e-12)
    assert_close("union", result["union_inner"], 1 - norm - difference - last, 1e-12)
    deep = c.theorem3_probability(6, p, q, d, a, image, width, **THEOREM3, outputs=10, norm_bound=10.0)
    assert_close("deep", deep["inner"], 1 - 14 * norm / 2 - 4 * difference - last, 1e-12)
    assert_close("deep union", deep["union_inner"], 1 - 5 * norm / 2 - 4 * difference - last, 1e-12)
    assert_close("masks", deep["probability"] / deep["inner"], (1 - d ** (-1 / 3)) ** 8, 1e-12)
    constants = c.theorem3_constants(**THEOREM3)
    assert_close("C_3", constants["constant3"], c.latala_iid_bound(d, d, 1 / d, 3 / d**2, 0.6)["bound"], 1e-12)
    loaded = c.latala_iid_bound(d, d, 3 / d, 9 / d**2)  # lines three times loaded
    plain = c.latala_iid_bound(d, d, 1 / d, 3 / d**2)  # fourth moments not
    masked = 0.6 * (loaded["row_term"] + loaded["column_term"] + plain["fourth_term"])
    assert_close("C_4", constants["constant4"], masked, 1e-12)
    for layers in (3, 5):
        error = c.theorem3_error(layers, p, d, 64, 3, image, width, 1.1, 0.5)
        own = c.unequal_convolution_error([x] * (layers - 1), [0.0] + [y] * (layers - 2), 1.1, 64, 3, 0.5)
        assert_close("error", error["error"], own, 1e-12)
        whole = 1.1 * (0.5 * x) ** (layers - 1) * c.cube_radius(64, 3)["radius"]
        assert_close("relative", error["relative"], own / whole, 1e-12)
    return "the bookkeeping over unequal layers reduces to Theorem 3"


@check("P-23a", "P-23b", "P-23c", method="Monte Carlo")
def kernels() -> str:
    rng = np.random.default_rng(23)
    sample = np.abs(rng.normal(0, 0.5, (100_000, 25))).sum(axis=1)
    law = c.kernel_norm_law(5, 0.5)
    assert_mean("mean", sample, law["mean"])
    assert_mean("variance", (sample - law["mean"]) ** 2, law["deviation"] ** 2)
    for level in (0.2, 0.5, 0.8):
        z = (c.kernel_norm_quantile(5, level, 0.5) - law["mean"]) / law["deviation"]
        assert_close("quantile", 0.5 * math.erfc(-z / math.sqrt(2)), level, 1e-12)
        assert abs((sample < c.kernel_norm_quantile(5, level, 0.5)).mean() - level) < 0.02, "far from the exact value"
    kernel, p = rng.standard_normal((3, 3)), 5
    block = np.zeros((p * p, p * p))
    for i, j, u, v in itertools.product(range(p), range(p), range(3), range(3)):
        block[i * p + j, (i + u) % p * p + (j + v) % p] += kernel[u, v]
    assert_close("block", np.abs(block).sum(), c.block_norm(p, float(np.abs(kernel).sum())), 1e-12)
    return "100,000 kernels, and one circulant block entry by entry"


@check("P-27", "P-35a", "P-35b", "P-31h", "P-31i", "P-31j", "P-31g", method="property")
def joins_and_losses() -> str:
    rng = np.random.default_rng(27)
    for _ in range(200):
        scores, move, target = rng.standard_normal((3, 6)) * rng.uniform(0.1, 3)
        error = float(np.linalg.norm(move))
        top = np.sort(scores)[::-1]
        if top[0] - top[1] > c.label_margin(error):
            assert (scores + move).argmax() == scores.argmax(), "the label changed"
        change = abs((special.log_softmax(scores + move) - special.log_softmax(scores))[2])
        assert change <= c.cross_entropy_change(error), "the cross-entropy changed too much"
        reach = float(max(np.linalg.norm(scores - target), np.linalg.norm(scores + move - target)))
        change = abs(((scores + move - target) ** 2).sum() - ((scores - target) ** 2).sum())
        assert change <= c.squared_error_change(error, reach) * (1 + 1e-12), "the squared error changed too much"
        p = special.softmax(scores)
        jacobian = c.softmax_jacobian_norm(p)
        assert_close("softmax", jacobian["norm"], float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1]), 1e-9)
        assert jacobian["norm"] <= jacobian["bound"], "softmax is 1/2-Lipschitz"
        skip = rng.standard_normal((6, 6))
        both = c.residual_error(float(np.linalg.norm(skip, 2)), error, float(np.linalg.norm(target)))
        assert np.linalg.norm(skip @ move + target) <= both * (1 + 1e-12), "residual"
        joined = c.concatenation_error([error, float(np.linalg.norm(target))])
        assert_close("concatenation", joined, float(np.linalg.norm(np.concatenate([move, target]))))
        weight, bias, scale, shift, mean = (float(z) for z in rng.standard_normal(5))
        fold = c.batch_norm_fold(weight, bias, scale, shift, mean, 0.7, 0.1)
        x = 1.3
        direct = (weight * x + bias - mean) / math.sqrt(0.8) * scale + shift
        assert_close("fold", fold["weight"] * x + fold["bias"], direct, 1e-9, 1e-12)
    assert_close("tight margin", c.label_margin(1.0), 1 / math.sqrt(2) + 1 / math.sqrt(2))
    return "200 random score vectors, moves, skips and layers"


@check("P-28a", "P-28b", "P-30", method="enumeration")
def confidence() -> str:
    n, delta = 40, 0.1
    uppers = np.array([c.exceedance_upper(n, k, delta) for k in range(n + 1)])
    intervals = [c.success_interval(n, k, delta) for k in range(n + 1)]
    low, high = np.array([i["low"] for i in intervals]), np.array([i["high"] for i in intervals])
    for p in np.linspace(0.01, 0.99, 99):
        pmf = stats.binom.pmf(np.arange(n + 1), n, p)
        assert pmf[uppers < p].sum() <= delta + 1e-12, "the upper bound misses too often"
        assert pmf[(low > p) | (high < p)].sum() <= delta + 1e-12, "the interval misses too often"
    assert c.exceedance_upper(n, 3, delta, 5) == c.exceedance_upper(n, 3, delta / 5), "Bonferroni"
    assert_close("tail", float(stats.binom.cdf(3, n, uppers[3])), delta, 1e-9)
    for n, delta in ((99, 0.1), (19, 0.05), (18, 0.05), (250, 0.037)):
        rank = int(c.conformal_rank(n, delta)["rank"])
        # A new point falls below the rank-th of n with probability rank/(n+1), by exchangeability.
        assert rank / (n + 1) >= 1 - delta - 1e-12 > (rank - 1) / (n + 1) - 1e-12, "not the smallest rank"
    return "exact coverage over a grid of probabilities; ranks of exchangeable points"
