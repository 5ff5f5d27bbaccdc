"""Independent checks of norms, loads and operators: dense operators, enumeration, simulated norms and loads."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, special

from prunus.papers import closeness as m
from prunus.papers.checking import check
from prunus.papers.closeness._simulation import at_most, dense_convolution, norms
from prunus.papers.sampling import assert_close, assert_mean, assert_proportion

Array = NDArray[np.float64]


@check("P-7a", method="second formula")
def variance_proxy() -> str:
    s = np.linspace(0.01, 30, 400)
    for a in (0.5, math.sqrt(3)):
        proxy = m.uniform_variance_proxy(a)
        log_mgf = np.log(np.sinh(s * a) / (s * a))
        assert (log_mgf <= proxy * s**2 / 2 + 1e-15).all(), "the moment generating function exceeds its proxy"
        assert log_mgf[0] > 0.999 * proxy * s[0] ** 2 / 2, "a smaller proxy would do"
    return "log sinh(sa)/(sa) stays below proxy s^2/2 and touches it at 0"


@check("P-7b", "P-8a", method="second formula")
def quantile_calibration() -> str:
    for n, q in ((32, 0.95), (512, 0.9999), (128, -0.5)):
        bound = m.lemma3_norm_bound(n, 1.0, 0.02, m.concentration_from_quantile(n, q))
        assert_close("failure", bound["failure"], 1 - q, 1e-11)
    assert_close("bound", m.lemma3_norm_bound(9, 2.0, 0.5, 1.0)["norm_bound"], 1.5 * m.uniform_norm_limit(9, 9, 2.0))
    return "the calibrated rate gives back the failure probability 1-q"


@check("P-7c", "P-7d", "P-7e", "P-8c", method="Monte Carlo")
def uniform_norms() -> str:
    rng = np.random.default_rng(71)
    for rows, columns, spread in ((32, 64, 1.0), (48, 48, 2.0)):
        a = spread / math.sqrt(max(rows, columns))
        sample = norms(rng.uniform(-a, a, (400, rows, columns)))
        mean, bound = float(sample.mean()), m.uniform_norm_mean_bound(rows, columns, spread)
        limit = m.uniform_norm_limit(rows, columns, spread)
        assert 0.9 * limit < mean < limit < bound, f"mean norm {mean} against limit {limit} and bound {bound}"
        for delta in (0.5, 0.05):
            level = m.uniform_norm_quantile(rows, columns, delta, spread)
            at_most("quantile", int((sample > level).sum()), 400, delta)
            assert_close("tail", m.uniform_norm_tail(rows, columns, level - bound, spread), delta)
        excess = 0.02 * spread
        at_most("tail", int((sample > mean + excess).sum()), 400, m.uniform_norm_tail(rows, columns, excess, spread))
    return "norms of 800 uniform matrices stay within mean bound, tail and quantile; tail inverts quantile"


@check("P-7f", method="second formula")
def convex_order() -> str:
    sigma = math.sqrt(2 * math.pi) / 4
    for x in (0.1, 0.6, 1.0, 1.7, 3.0):
        normal, _ = integrate.quad(lambda y, x=x: 0.5 * math.erfc(y / sigma / math.sqrt(2)), x, 12, epsabs=1e-15)
        uniform = max(0.0, 1 - x) ** 2 / 4
        assert_close("gap", m.convex_order_gap(x), normal - uniform, 1e-8, 1e-13)
        assert_close("scaling", m.convex_order_gap(3 * x, 3.0), 3 * m.convex_order_gap(x), 1e-9, 1e-16)
    grid = [m.convex_order_gap(x) for x in np.linspace(0, 6, 601)]
    assert min(grid) == grid[0] == 0, "the gap must not be negative"
    return "the gap is the difference of integrated tails and never negative"


@check("P-9a", "P-9b", method="Monte Carlo")
def latala() -> str:
    rng = np.random.default_rng(91)
    scales = rng.uniform(0, 1, (24, 40)) ** 3
    mean = norms(scales * rng.standard_normal((300, 24, 40))).mean()
    bound = m.latala_bound(scales**2, 3 * scales**4)
    assert mean < bound["bound"], f"the mean norm {mean} exceeds Latala's bound {bound}"
    equal = m.latala_bound(np.full((5, 7), 0.3), np.full((5, 7), 0.4), 0.7)
    for name, value in m.latala_iid_bound(5, 7, 0.3, 0.4, 0.7).items():
        assert_close(name, value, equal[name], 1e-12)
    return "300 matrices with unequal variances have a mean norm below the bound; equal entries agree"


@check("P-9c", "P-9d", method="second formula")
def latala_ratios() -> str:
    for n in (1, 100, 10**8):
        row = m.latala_iid_bound(1, n, 1.0, 1.0)["bound"]
        assert_close("row", m.rademacher_row_ratio(n), math.sqrt(n) / row, 1e-12)
    for kurtosis in (1.0, 1.8, 3.0):
        square = m.latala_iid_bound(50, 50, 1 / 50, kurtosis / 2500)["bound"]
        assert_close("square", m.latala_limit(kurtosis), 2 / square, 1e-12)
    return "both ratios are a known norm over the three terms of Lemma 4"


@check("P-9e", method="Monte Carlo")
def mask_terms() -> str:
    rng = np.random.default_rng(95)
    d, exponent, trials = 16, 0.5, 4000
    draws = int(d ** (2 - exponent))
    fractions = [len(np.unique(rng.integers(0, d * d, draws))) / d**2 for _ in range(trials)]
    terms = m.random_mask_terms(d, exponent)
    assert_mean("drawn fraction", fractions, terms["fraction"])
    kept = m.random_mask_terms(d, exponent, kept=True)
    assert_close("complement", terms["fraction"] + kept["fraction"], 1.0)
    plain = m.random_mask_terms(d, exponent, replacement=False)
    assert_close("plain", plain["fraction"], draws / d**2)
    iid = m.latala_iid_bound(d, d, terms["fraction"] / d, 3 * terms["fraction"] / d**2)
    assert_close("row", terms["row_term"], iid["row_term"], 1e-12)
    assert_close("fourth", terms["fourth_term"], iid["fourth_term"], 1e-12)
    return f"{trials} random masks have the stated fraction; the terms are those of Lemma 4"


@check("P-9f", "P-9g", "P-9h", "P-9i", method="Monte Carlo")
def masked_norms() -> str:
    rng = np.random.default_rng(96)
    rows, columns, sigma = 30, 40, 0.3
    mask = rng.random((rows, columns)) < 0.1
    load = int(max(mask.sum(0).max(), mask.sum(1).max()))
    batch = mask * rng.normal(0, sigma, (500, rows, columns))
    sample = norms(batch)
    assert sample.mean() < m.series_norm_mean(rows, columns, sigma, load), "the mean norm exceeds its bound"
    level = m.series_norm_quantile(rows, columns, sigma, load, 0.2)
    at_most("quantile", int((sample > level).sum()), 500, 0.2)
    assert_close("inverse", m.series_tail(rows, columns, sigma, load, level), 0.2)
    largest = np.abs(batch).max(axis=(1, 2))
    schur = [m.schur_bound(float(x), int(mask.sum(1).max()), int(mask.sum(0).max())) for x in largest]
    assert (sample <= np.array(schur) * (1 + 1e-12)).all(), "a norm exceeds Schur's bound"
    assert_close("block", m.schur_bound(0.5, 4, 9), float(np.linalg.norm(np.full((9, 4), 0.5), 2)))
    return "500 masked normal matrices respect mean, quantile and Schur's bound; a full block attains it"


@check("P-10a", "P-10c", method="second formula")
def chernoff() -> str:
    for x in (0.05, 0.3, 2.0, 10.0):
        best = optimize.minimize_scalar(lambda t, x=x: math.expm1(t) - t * (1 + x), bounds=(0, 5), method="bounded")
        assert_close("rate", m.chernoff_rate(x)["decay"], -best.fun, 1e-8)
        assert m.chernoff_rate(x)["weak_decay"] <= m.chernoff_rate(x)["decay"], "the weak rate is larger"
    x = m.chernoff_crossing()
    for y, larger in ((0.999 * x, True), (1.001 * x, False), (2.0, True)):
        assert (m.chernoff_rate_printed(y)["decay"] > m.chernoff_rate(y)["decay"]) == larger, f"no crossing at {x}"
    return "the rate is the Legendre transform of exp(t)-1; the printed one crosses it once"


@check("P-10b", method="enumeration")
def binomial_tails() -> str:
    for n, p, x in ((20, 0.3, 0.5), (50, 0.1, 1.0), (200, 0.05, 0.4), (1000, 0.1, 0.3)):
        need = math.ceil(round((1 + x) * n * p, 9))
        exact = math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(need, n + 1))
        tail = m.binomial_tail_bound(n, p, x)
        assert_close("tail", tail["exact"], exact, 1e-9)
        assert exact <= tail["bound"] <= tail["weak_bound"], "the Chernoff bound is violated"
    assert m.binomial_tail_bound_printed(1000, 0.1, 0.3) < exact, "the printed bound should fail here"
    return "sums of binomial terms agree with the tail and stay below both bounds; the printed one fails"


@check("P-10d", "P-11f", method="enumeration")
def poisson_tails() -> str:
    def log_tail(mean: float, k: int) -> float:
        j = np.arange(k, k + 4000 + 20 * int(mean))
        return float(special.logsumexp(j * math.log(mean) - mean - special.gammaln(j + 1.0)))

    for mean, x in ((10, 0.5), (89, 2.0), (1000, 3.0)):
        assert_close("tail", m.poisson_tail_bound(mean, x)["log_exact"], log_tail(mean, round((1 + x) * mean)), 1e-9)
    for log_bins in (20.5, 89.0, 400.0):
        exact = log_bins + log_tail(log_bins, math.floor(3 * log_bins) + 1)
        assert_close("union", m.load_failure_limit(log_bins)["log_failure"], exact, 1e-9)
    return "log sums of Poisson terms agree, beyond the range of float64 too"


@check("P-11a", "P-11b", "P-11c", "P-11d", "P-11e", method="Monte Carlo")
def loads() -> str:
    rng = np.random.default_rng(111)
    for bins in (16, 64):
        count, trials = m.balls_needed(bins), 4000
        assert count - 1 < bins * math.log(bins) <= count, "not the smallest number of balls"
        largest = rng.multinomial(count, np.full(bins, 1 / bins), trials).max(axis=1)
        union, chernoff_bound = m.max_load_failure(bins, count), m.max_load_chernoff(bins, count)
        at_most("largest load", int((largest > 3 * count / bins).sum()), trials, union)
        assert union <= chernoff_bound <= m.max_load_power(bins), "the three bounds are out of order"
        pmf = special.comb(count, k := np.arange(count + 1)) * (1 / bins) ** k * (1 - 1 / bins) ** (count - k)
        assert_close("union", union, bins * float(pmf[k > 3 * count / bins].sum()), 1e-9)
    for power in (0.0, 1 / 3, 2.0):
        assert_close("factor", m.chernoff_rate(m.load_factor(power) - 1)["decay"], 1 + power)
    return "simulated largest loads respect the exact union bound, Chernoff and the power law, in this order"


@check("P-12a", "P-12b", method="enumeration")
def mask_events() -> str:
    for d, count, limit in ((2, 2, 1), (2, 4, 3), (3, 4, 2), (3, 3, 1)):
        hits = np.zeros(6)
        for draws in itertools.product(range(d * d), repeat=count):
            rows, columns = np.divmod(np.array(draws), d)
            load = [np.bincount(line, minlength=d).max() <= limit for line in (rows, columns)]
            cells = np.array(sorted(set(draws)))
            zeros = [np.bincount(line, minlength=d).max() <= limit for line in (cells // d, cells % d)]
            hits += [load[0], load[1], all(load), zeros[0], zeros[1], all(zeros)]
        exact = hits / d ** (2 * count)
        found = [*m.load_probability(d, count, limit).values(), *m.zero_count_probability(d, count, limit).values()]
        for value, expected in zip(found, exact):
            assert_close(f"d={d}, {count} draws, limit {limit}", value, float(expected), 1e-10)
    return "all draws of four small masks, counted one by one"


@check("P-12a", "P-12c", method="Monte Carlo")
def mask_bound() -> str:
    rng = np.random.default_rng(123)
    d, count, trials = 32, 120, 3000
    limit = int(3 * count / d)
    loads = rng.multinomial(count, np.full(d, 1 / d), trials).max(axis=1)
    exact = m.load_probability(d, count, limit)
    assert_proportion("rows", int((loads <= limit).sum()), trials, exact["row"])
    with_repeats = m.mask_event_bound(d, d, count)
    without = m.mask_event_bound(d, d, count, replacement=False)
    assert without <= with_repeats <= exact["both"], "the bound exceeds the exact probability"
    assert m.mask_event_bound_printed(d, d, count) < without, "the published bound should be weaker"
    return f"{trials} simulated rows match the exact law, which the bounds respect"


@check("P-16e", "P-24a", "P-24b", method="Monte Carlo")
def normal_norms() -> str:
    rng = np.random.default_rng(161)
    fan_in, fan_out = 60, 40
    half_width = math.sqrt(6 / (fan_in + fan_out))
    assert_close("Glorot", m.glorot_variance(fan_in, fan_out), m.uniform_variance_proxy(half_width))
    sigma = math.sqrt(m.glorot_variance(fan_in, fan_out))
    batch = rng.normal(0, sigma, (500, fan_out, fan_in))
    level = m.normal_norm_quantile(fan_out, fan_in, sigma, 0.3)
    at_most("quantile", int((norms(batch) > level).sum()), 500, 0.3)
    parts = m.mean_component_norm(-0.5, sigma**2, fan_out, fan_in)
    shifted = norms(batch[:20] - 0.5)
    assert (np.abs(shifted - parts["mean_norm"]) < parts["bulk_norm"]).all(), "mean and bulk do not explain the norm"
    assert abs(norms(batch).mean() / parts["bulk_norm"] - 1) < 0.1, "the bulk norm is off"
    return "norms of 500 normal matrices, with and without a mean"


@check("P-31a", "P-31b", "P-31c", method="second formula")
def padding() -> str:
    rng = np.random.default_rng(311)

    def norm(kernel: Array, size: int, pad: int | None) -> float:
        return float(np.linalg.norm(dense_convolution(kernel, size, pad), 2))

    for _ in range(60):
        p, q = int(rng.integers(4, 9)), int(rng.integers(1, 5))
        pad = int(rng.integers(0, q))
        kernel = rng.standard_normal(q)
        size = m.embedding_size(p, q, pad)
        zero = norm(kernel, p, pad)
        assert zero <= norm(kernel, size["size"], None) * (1 + 1e-12), "the embedding is too small"
        assert zero <= norm(kernel, size["safe_size"], None) * (1 + 1e-12), "the safe size is too small"
    for p in (3, 4, 5, 8):
        first, second = np.array([1.0, -1.0]), np.array([1.0, -2.0, 1.0])
        pair = m.difference_operator_norms(p)
        assert_close("zero", pair["zero"], norm(first, p, 0), 1e-12)
        assert_close("circular", pair["circular"], norm(first, p, None), 1e-12)
        pair = m.laplacian_operator_norms(p)
        assert_close("zero", pair["zero"], norm(second, p, 1) ** 2, 1e-12)
        assert_close("circular", pair["circular"], norm(second, p, None) ** 2, 1e-12)
    return "dense Toeplitz and circulant matrices"


@check("P-31d", "P-31e", "P-31f", method="second formula")
def pooling() -> str:
    rng = np.random.default_rng(315)
    for p, k, s in ((9, 3, 2), (9, 3, 1), (8, 2, 2), (7, 3, 4), (10, 5, 2)):
        starts = range(0, p - k + 1, s)
        line = np.array([[float(i <= j < i + k) / k for j in range(p)] for i in starts])
        norm = m.average_pool_norm(p, k, s)
        assert_close("pool", norm, float(np.linalg.norm(np.kron(line, line), 2)), 1e-12)
        bound = m.average_pool_bound(k, s)
        assert norm <= bound["bound"] + 1e-12, "the norm exceeds its bound"
        assert not bound["exact"] or abs(norm - bound["bound"]) < 1e-12, "the bound is not exact"
        pairs = rng.standard_normal((200, 2, p, p))
        pooled = np.stack([pairs[:, :, i : i + k, j : j + k].max((2, 3)) for i in starts for j in starts], 2)
        moved = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=(1, 2))
        apart = np.linalg.norm(pooled[:, 0] - pooled[:, 1], axis=1)
        assert (apart <= m.max_pool_lipschitz(k, s) * moved).all(), "max pooling stretches too much"
    spike = np.zeros((5, 5))
    spike[2, 2] = 1.0
    seen = sum(spike[i : i + 3, j : j + 3].max() for i in (0, 2) for j in (0, 2))
    assert_close("spike", math.sqrt(seen), m.max_pool_lipschitz(3, 2))
    return "dense pooling matrices; one pixel seen by four windows attains the constant of max pooling"


@check("P-32", method="second formula")
def gram() -> str:
    matrix = np.random.default_rng(0).standard_normal((12, 20)) / 3
    values = np.linalg.svd(matrix, compute_uv=False)
    previous = math.inf
    for iterations in range(5):
        power = np.linalg.matrix_power(matrix @ matrix.T, 2**iterations)
        direct = float(np.linalg.norm(power)) ** (1 / 2 ** (iterations + 1))
        bound = m.gram_bound(values, iterations)
        assert_close("Gram", bound, direct, 1e-11)
        assert values[0] <= bound <= previous, "the bound must decrease to the norm"
        previous = bound
    return "the Frobenius norm of powers of the Gram matrix"


@check("P-36", method="Monte Carlo")
def subgaussian_norms() -> str:
    """Random signs and normal entries: no norm of 400 is above the threshold at a failure of 1e-9."""
    rng = np.random.default_rng(36)
    deviation = math.sqrt(8.0 * math.log(1e9))
    for rows, columns in ((1, 1), (4, 9), (40, 25)):
        threshold = m.subgaussian_norm_tail(rows, columns, deviation)["threshold"]
        for _ in range(400 // 6):
            signs = rng.choice((-1.0, 1.0), size=(rows, columns))
            for matrix in (signs, rng.standard_normal((rows, columns))):
                assert np.linalg.norm(matrix, 2) <= threshold, f"{rows} x {columns}"
    assert m.subgaussian_norm_tail(1, 1, 0.0)["threshold"] > 1.0
    return "norms of 396 matrices of signs and normal entries below the threshold (false alarm 4e-7)"
