"""Checks of the ticket results: sorting scores, sampling re-drawn neurons, building the proof's network (ledger I)."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from prunus.papers import iterand
from prunus.papers.checking import check
from prunus.papers.sampling import assert_close, assert_mean, assert_proportion

Array = NDArray[np.float64]


@check("I-2a", "I-6c", method="enumeration")
def counts_by_sorting() -> str:
    random = np.random.default_rng(41)
    for n, sparsity in ((10, 0.5), (11, 0.5), (576, 0.6), (1000, 0.95), (7, 0.1)):
        scores = random.permutation(n).astype(np.float64)
        threshold = np.sort(scores)[round(Fraction(repr(sparsity)) * (n - 1))]
        assert iterand.pruned_count(n, sparsity, "iterand") == int((scores < threshold).sum())
        cut = int(Fraction(repr(sparsity)) * n)
        order = np.argsort(scores)
        mask = np.ones(n, dtype=bool)
        mask[order[:cut]] = False
        assert iterand.pruned_count(n, sparsity, "hidden") == int((~mask).sum())
        exact = iterand.pruned_count(n, sparsity)
        gap = abs(exact - Fraction(repr(sparsity)) * n)
        assert gap < Fraction(1, 2) or (gap == Fraction(1, 2) and exact % 2 == 0)
    for remaining, fraction in ((1000, 0.2), (1001, 0.2), (37, 0.31)):
        magnitudes = random.permutation(remaining) + 1.0
        plan = iterand.open_lth_removed(remaining, fraction)
        threshold = np.sort(magnitudes)[plan["asked"]]
        assert plan["asked"] - 1 < fraction * remaining <= plan["asked"]
        assert plan["removed"] == int((~(magnitudes > threshold)).sum()), "OpenLTH's strict comparison"
    return "sorting permutations by each code's own rule gives the same counts"


@check("I-2b", "I-6a", "I-6b", "I-4c", "I-4d", "I-3c", method="enumeration")
def schedules_step_by_step() -> str:
    for epochs in (7, 100):
        rates = [iterand.cosine_step(0.2, epoch, epochs) for epoch in range(epochs + 1)]
        assert rates[0] == 0.2
        assert rates[-1] < 1e-15
        for epoch, rate in enumerate(rates):
            assert_close("cosine", rate, 0.1 * (1 + math.cos(math.pi * epoch / epochs)), 1e-9, 1e-15)
            assert_close("symmetry", rate + rates[-1 - epoch], 0.2, 1e-12)
    density = 1.0
    for rounds in range(12):
        result = iterand.imp_density(rounds, 0.3)
        assert_close("density", result["density"], density, 1e-12)
        assert_close("sparsity", result["sparsity"], 1 - density, 1e-12, 1e-15)
        density *= 0.7
    for rounds in (1, 3, 8):
        fraction = iterand.equal_fraction(0.95, rounds)
        assert_close("equal rounds", iterand.imp_density(rounds, fraction)["sparsity"], 0.95, 1e-12)
    for samples, batch in ((45000, 128), (256, 128), (7, 10)):
        starts = list(range(0, samples, batch))
        assert iterand.iteration_count(samples, batch, 3) == 3 * len(starts)
        assert iterand.iteration_count_printed(samples, batch, 3) == 3 * sum(s + batch <= samples for s in starts)
    assert_close("overhead", iterand.event_overhead(117, 0.0971), math.fsum([0.0971] * 117), 1e-12)
    assert iterand.fan_in(5, 3) == np.ones((5, 3, 3)).size
    assert iterand.fan_in(784) == np.ones(784).size
    return "schedules, densities and counts agree with going through them step by step"


@check("I-2c", "I-3a", "I-3b", "I-4a", "I-4b", "I-14", method="Monte Carlo")
def sampled_weights_and_events() -> str:
    random = np.random.default_rng(42)
    for fan in (9, 576):
        uniform = iterand.uniform_bound(fan)
        draws = random.uniform(-uniform["bound"], uniform["bound"], 200_000)
        assert_mean("variance of uniform weights", draws**2, uniform["variance"])
        signs = iterand.signed_constant(fan)
        assert_close("variance of signed constants", signs["value"] ** 2, signs["variance"], 1e-12)
        assert_close("same variance", signs["variance"], uniform["variance"], 1e-12)
        for rule, variance in (("iterand", 2 / fan), ("hidden", 1 / (3 * fan))):
            scores = random.uniform(-1, 1, 200_000) * iterand.score_bound(fan, rule)
            assert_mean(f"variance of {rule} scores", scores**2, variance)
    plan = iterand.expected_resamples(2100, 7, 0.1)
    assert plan["events"] == sum((it + 1) % 7 == 0 for it in range(2100))
    assert_mean("fresh values", random.binomial(plan["events"], 0.1, 50_000), plan["resamples"])
    flips = (random.random(400_000) < 0.3) & (random.random(400_000) < 0.5)
    assert_proportion("sign flips", int(flips.sum()), flips.size, iterand.sign_flip_rate(0.3))
    result = iterand.accuracy_error(0.95, 500)
    measured = random.binomial(500, 0.95, 100_000) * result["resolution"]
    assert_mean("variance of a measured accuracy", (measured - 0.95) ** 2, result["sigma"] ** 2)
    return "variances, re-randomisations, flips and accuracies agree with 1e5 or more draws (false alarm 1e-6 each)"


@check("I-7a", "I-7b", "I-8a", "I-8b", "I-9b", "I-9f", method="Monte Carlo")
def sampled_neurons() -> str:
    random = np.random.default_rng(43)
    for n, error, target in ((10, 0.5, 1.0), (5, 0.3, 0.2), (8, 0.1, -0.95)):
        missed = (np.abs(random.uniform(-1, 1, (50_000, n)) - target) > error).all(axis=1)
        assert_proportion("no draw near", int(missed.sum()), missed.size, iterand.uniform_miss(n, error, target))
    assert iterand.uniform_miss(iterand.uniform_draws(0.1, 0.01), 0.1) <= 0.01
    for error, half, resamples, weight in ((0.5, 4, 1, 1.0), (0.5, 2, 4, 1.0), (0.5, 1, 19, 0.5), (0.2, 2, 20, -0.95)):
        hit_u = _hits(random, 40_000, half, resamples, 1.0, error / 2)
        hit_v = _hits(random, 40_000, half, resamples, weight, error / 2)
        missed = ~np.asarray((hit_u & hit_v).any(axis=1))
        exact = iterand.resampled_failure(error, half, resamples, weight)
        assert_proportion("one sign", int(missed.sum()), missed.size, exact["half_failure"])
        assert_proportion("both signs", int((missed[::2] | missed[1::2]).sum()), missed.size // 2, exact["failure"])
        assert_proportion("u alone", int(hit_u.sum()), hit_u.size, iterand.hit_probability(error / 4, resamples)["hit"])
        if resamples == 1:
            assert iterand.fixed_failure(error, half, weight) == exact
    for error, delta in ((0.5, 0.01), (0.1, 0.2)):
        assert iterand.fixed_failure(error, iterand.fixed_width(error, delta) // 2)["failure"] <= delta
    for window, resamples in itertools.product((1e-9, 0.001, 0.05, 0.5, 1.0), (1, 3, 20, 1000)):
        result = iterand.hit_probability(window, resamples)
        assert result["lower"] <= result["hit"] <= min(1.0, window * resamples) * (1 + 1e-12)
    return "40000 sampled neurons with re-drawn weights agree with the exact failures (false alarm 1e-6 each)"


@check("I-8c", method="enumeration")
def products_on_a_grid() -> str:
    for error in (0.2, 1.0):
        steps = np.linspace(-error / 2, error / 2, 41)
        u = 1 + steps[steps <= 0]
        worst = 0.0
        for w in np.linspace(-1, 1, 41):
            v = np.clip(w + steps, -1, 1)
            worst = max(worst, float(np.abs(w - u[:, None] * v).max()))
        result = iterand.product_error(error)
        assert_close("worst product", worst, result["worst"], 1e-12)
        assert iterand.product_error_printed(error) < result["worst"] <= result["bound"]
    return "a grid over u, v and w attains the stated worst error, beyond what the paper allows"


@check("I-9a", "I-9c", "I-9d", "I-9e", method="enumeration")
def widths_by_search() -> str:
    for error, delta in ((0.5, 0.1), (0.5, 0.01), (0.1, 0.01)):
        for resamples in (1, 3, 10, 60):
            width = iterand.resampled_width(error, delta, resamples)
            at, below = (
                iterand.resampled_failure(error, half, resamples)["half_failure"]
                for half in (width // 2, width // 2 - 1)
            )
            assert at <= delta / 2 < below, "not the smallest width by the union bound"
            assert iterand.simple_width(error, delta, resamples)["width"] >= width, "the closed form is too small"
            printed = iterand.resampled_width_printed(error, delta, resamples)
            assert printed >= width if resamples == 1 else printed <= width
        assert iterand.resampled_width_printed(error, delta, 10) < iterand.resampled_width(error, delta, 10)
        assert iterand.sufficient_resamples(error, delta)["failure"] <= delta
        assert iterand.sufficient_resamples_printed(error, delta)["failure"] > delta
        for half in (1, 4):
            failures = (iterand.resampled_failure(error, half, r)["failure"] for r in itertools.count(1))
            smallest = next(r for r, failure in enumerate(failures, 1) if failure <= delta)
            assert iterand.minimal_resamples(error, delta, half)["resamples"] == smallest
        assert iterand.simple_width(error, delta, 1)["saturation"] * error == 4
    return "widths and re-sampling counts are the smallest found by search; the published ones are too small"


@check("I-9g", method="Monte Carlo")
def best_use_of_two_neurons() -> str:
    random = np.random.default_rng(44)
    for error, resamples in ((0.5, 1), (0.5, 3), (0.3, 8), (1.0, 2)):
        u, v = random.uniform(-1, 1, (2, 60_000, 2, resamples))
        up = (u.max(axis=2) > 0) & (v.max(axis=2) > 0) & (u.max(axis=2) * v.max(axis=2) >= 1 - error)
        down = (u.min(axis=2) < 0) & (v.min(axis=2) < 0) & (u.min(axis=2) * v.min(axis=2) >= 1 - error)
        served = (up[:, 0] & down[:, 1]) | (down[:, 0] & up[:, 1])
        result = iterand.best_pair_failure(error, resamples)
        assert_proportion("failure", int((~served).sum()), served.size, result["failure"])
        single = (up.mean() + down.mean()) / 2
        assert_close("independent roles", (1 - single**2) ** 2, result["independent"], 0.05)
    return "60000 sampled pairs of neurons agree with the quadrature (false alarm 1e-6 each)"


@check("I-10a", "I-10b", "I-11", "I-12a", "I-12c", "I-12d", method="second formula")
def successes_by_inclusion_and_exclusion() -> str:
    for window, resamples, half, outputs in ((0.1, 5, 3, 4), (0.05, 30, 2, 3), (0.3, 2, 4, 2), (0.01, 40, 60, 6)):
        exact = _inclusion_exclusion(window, resamples, half, outputs)
        assert_close("success", iterand.coordinate_success(window, resamples, half, outputs), exact, 1e-9)
    assert iterand.coordinate_success_printed(0.05, 30, 2, 3) > 1.3 * iterand.coordinate_success(0.05, 30, 2, 3)
    for layers, inputs, outputs, resamples in ((1, 1, 1, 10), (2, 4, 3, 100), (3, 5, 2, 700)):
        error, delta = 0.5, 0.1
        plan = iterand.layer_width(layers, inputs, outputs, error, delta, resamples)
        result = iterand.layer_success(layers, inputs, outputs, error, resamples, plan["width"])
        coordinate = _inclusion_exclusion(plan["window"], resamples, plan["width"] // (2 * inputs), outputs)
        assert_close("layer", result["success"], coordinate ** (2 * inputs), 1e-8)
        assert result["success"] >= 1 - delta / layers, "the corrected width is too small"
        smallest = iterand.smallest_layer_width(layers, inputs, outputs, error, delta, resamples)
        at, below = (iterand.layer_success(layers, inputs, outputs, error, resamples, w)["success"]
                     for w in (smallest, smallest - 2 * inputs))  # fmt: skip
        assert at >= 1 - delta / layers > below, "not the smallest width"
        assert smallest <= plan["width"], "the closed form is too small"
        # Halving the error budget of one layer is what the theorem adds to the matrix lemma.
        matrix = iterand.matrix_width(inputs, outputs, error, delta, resamples)
        assert iterand.layer_width(1, inputs, outputs, min(1.0, 2 * error), delta, resamples) == matrix
        if inputs == 1:
            assert iterand.vector_width(outputs, error, delta, resamples) == matrix
    return "inclusion and exclusion agrees to 1e-8; corrected widths are enough and the exact ones smallest"


@check("I-12b", "I-12e", "I-12f", method="second formula")
def plans_for_networks() -> str:
    for layers, inputs, outputs in ((2, 4, 3), (1, 1, 1), (3, 6, 2)):
        for error, delta in ((0.5, 0.1), (0.9, 0.01)):
            enough = iterand.enough_resamples(layers, inputs, outputs, error, delta)
            printed = iterand.enough_resamples_printed(layers, inputs, outputs, error, delta)
            right, wrong = (
                iterand.layer_success(layers, inputs, outputs, error, r, 2 * inputs)["success"]
                for r in (enough, printed)
            )
            assert right >= 1 - delta / layers > wrong, "re-samplings at the narrowest width"
    widths = [4, 3, 5]
    plan = iterand.network_plan(widths, 0.5, 0.1, 200)
    pairs = list(itertools.pairwise(widths))
    assert plan["ticket_widths"] == [iterand.layer_width(2, a, b, 0.5, 0.1, 200)["width"] for a, b in pairs]
    assert plan["enough"] == max(iterand.enough_resamples(2, a, b, 0.5, 0.1) for a, b in pairs)
    # A layer of Euclidean norm 1 maps the cube's corner to norm sqrt(inputs): errors behind it grow by as much.
    layer, corner = np.full((1, 4), 0.5), np.ones(4)
    growth = float(np.linalg.norm(layer @ corner)) / float(np.linalg.norm(layer))
    result = iterand.sup_norm_error(4, 0.3)
    assert_close("growth on the cube", result["guaranteed"], growth * iterand.sup_norm_error_printed(4, 0.3), 1e-12)
    assert_close("planned error", iterand.sup_norm_error(4, result["plan_with"])["guaranteed"], 0.3, 1e-12)
    return "the corrected numbers of re-samplings are enough for every layer, the printed ones are not"


@check("I-16a", "I-16b", "I-9b", "I-10a", "I-12c", method="Monte Carlo")
def the_proof_carried_out() -> str:
    ones = np.ones((3, 1))
    settings = (
        ("I-9", np.array([[1.0]]), 0.5, 14, 1, 1 - iterand.resampled_failure(0.5, 1, 14)["failure"]),
        ("I-10", ones, 0.6, 25, 2, iterand.coordinate_success(0.15 / math.sqrt(3), 25, 2, 3) ** 2),
        ("I-12", [np.array([[1.0, -1.0]])], 1.0, 30, 1, iterand.layer_success(1, 2, 1, 1.0, 30, 4)["success"]),
        ("two layers", [np.array([[0.5, -1.0]]), np.array([[0.2], [1.0]])], 1.0, 60, 2, None),
    )
    for name, weights, error, resamples, half, known in settings:
        chance = iterand.construction_success(weights, error, resamples, half)
        if known is not None:
            assert_close(name, chance, known, 1e-10)
        # The theorem is about the Euclidean ball; on the cube of d inputs the error may grow by sqrt(d).
        network = isinstance(weights, list)
        limit = iterand.sup_norm_error(weights[0].shape[1], error)["guaranteed"] if network else error
        complete = 0
        for seed in range(600):
            built = iterand.construct(weights, error, resamples, seed, half=half)
            complete += built.complete
            assert not built.complete or built.error <= limit + 1e-12, f"{name}: all pairs found, error {built.error}"
        assert_proportion(name, complete, 600, chance)
    return "600 constructions of four targets each succeed as often as predicted (false alarm 1e-6) and keep the error"


def _hits(
    random: np.random.Generator, trials: int, half: int, resamples: int, target: float, reach: float
) -> NDArray[np.bool_]:
    return np.asarray((np.abs(random.uniform(-1, 1, (trials, half, resamples)) - target) <= reach).any(axis=2))


def _inclusion_exclusion(window: float, resamples: int, half: int, outputs: int) -> float:
    """Sum over k of (-1)^k C(outputs, k) (1 - s + s (1 - s)^k)^half, in rational arithmetic: it alternates."""
    s = 1 - (1 - Fraction(window)) ** resamples
    s = Fraction(float(s))
    total = sum((-1) ** k * math.comb(outputs, k) * (1 - s + s * (1 - s) ** k) ** half for k in range(outputs + 1))
    return float(total)
