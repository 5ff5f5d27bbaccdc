"""Checks of the tangent kernels: quadrature, finite networks, exact tails, naive recursions (ledger K)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special

from prunus.papers import tangent
from prunus.papers.checking import check
from prunus.papers.sampling import assert_close, assert_mean, assert_proportion
from prunus.papers.tangent._networks import PairPasses, tangent_terms
from prunus.papers.tangent._split import draw_network, split_backward

Array = NDArray[np.float64]

_ANGLE, _DEPTH, _DENSITY = math.pi / 3, 3, 0.5

_PAIR = np.array([[1.0, 0.0], [math.cos(_ANGLE), math.sin(_ANGLE)]])


@check("K-1a", "K-1b", method="second formula")
def quadrature_of_dual_activations() -> str:
    for rho in (-0.999, -0.5, 0.0, 0.3, 0.9, 0.99999):
        tau = math.sqrt((1 - rho) * (1 + rho))

        def both_active(u: float, r: float = rho, t: float = tau) -> float:
            return 2 * _normal(u) * float(special.ndtr(r * u / t))

        def product(u: float, r: float = rho, t: float = tau) -> float:
            return 2 * _normal(u) * u * (r * u * float(special.ndtr(r * u / t)) + t * _normal(r * u / t))

        active, mean = (
            integrate.quad(function, 0, 40, points=[tau], epsabs=1e-13)[0] for function in (both_active, product)
        )
        kernels = tangent.arc_cosine_kernels(rho)
        assert_close(f"kappa 0 at {rho}", kernels["step"], active, 1e-8, 1e-10)
        assert_close(f"kappa 1 at {rho}", kernels["ramp"], mean, 1e-8, 1e-10)
        moments = tangent.relu_moments(4.0, 0.25, rho)
        assert_close("scaled moment", moments["ramp"], kernels["ramp"], 1e-12)
        assert_close("scaled step", moments["step"], kernels["step"], 1e-12)
    return "the closed forms agree with one-dimensional quadrature at six correlations to 1e-8"


@check("K-2a", "K-2b", "K-4", "K-7a", "K-7b", "K-8", method="Monte Carlo")
def finite_networks_approach_the_limit() -> str:
    random = np.random.default_rng(31)
    plain = [tangent_terms(_PAIR, _DEPTH, 192, _DENSITY, "plain", random) for _ in range(160)]
    factor = tangent.pruned_limit(_ANGLE, _DEPTH, _DENSITY)["factor"]
    dense = tangent.limiting_kernel(_ANGLE, _DEPTH)
    layers = tangent.layer_covariances(_ANGLE, _DEPTH)
    assert_mean("kernel", [sum(p.terms) for p in plain], tangent.pruned_limit(_ANGLE, _DEPTH, _DENSITY)["limit"])
    product = 1.0
    for layer in range(_DEPTH + 1, 0, -1):
        assert_mean(f"term of layer {layer}", [p.terms[layer - 1] for p in plain], factor * dense["terms"][layer - 1])
        expected = tangent.pruned_back_product(_ANGLE, _DEPTH, _DENSITY, layer)
        assert_close("derivatives", product, expected, 1e-12)
        _assert_column(plain, "back_products", layer - 1, expected)
        _assert_column(plain, "covariances", layer - 1, tangent.pruned_covariance(_ANGLE, _DENSITY, layer - 1))
        product *= _DENSITY * layers["derivatives"][layer - 2]
    scale = tangent.preactivation_scale(_DENSITY, _DEPTH) ** 2
    assert_mean("mean square of the last pre-activation", [p.preactivation for p in plain], scale)
    wrong = tangent.limiting_kernel_printed(_ANGLE, _DEPTH)["limit"] * factor
    mean = float(np.mean([sum(p.terms) for p in plain]))
    assert abs(mean - wrong) > abs(mean - factor * dense["limit"]), "networks follow the printed product"
    return "160 pruned networks of width 192 agree with the limits term by term (false alarm 1e-6 each)"


@check("K-5", "K-0", method="Monte Carlo")
def rescaled_weights_miss_the_dense_limit() -> str:
    random = np.random.default_rng(32)
    nets = [tangent_terms(_PAIR, _DEPTH, 192, 0.25, "weight", random) for _ in range(160)]
    literal = tangent.weight_rescaled_limit(_ANGLE, _DEPTH, 0.25)
    assert_mean("kernel of rescaled weights", [sum(p.terms) for p in nets], literal["limit"])
    faster = [p.terms[0] + literal["step_factor"] * sum(p.terms[1:]) for p in nets]
    assert_mean("with faster steps", faster, tangent.weight_rescaled_limit_printed(_ANGLE, _DEPTH, 0.25))
    # In the standard parametrisation sqrt(2/width) sits in the weight: dV = sqrt(2/width) dW, squared in the kernel.
    width, random = 40, np.random.default_rng(33)
    feature = np.maximum(random.standard_normal((2, width)), 0.0)
    standard, scaled = feature[0] @ feature[1], (feature[0] @ feature[1]) * 2 / width
    assert_close("parametrisation", standard / scaled, tangent.parametrisation_factor(width), 1e-12)
    return "160 networks with rescaled weights agree with the literal limit, and with the dense one at faster steps"


@check("K-6a", "K-6b", "K-22b", method="second formula")
def scale_of_the_pruned_kernel() -> str:
    random = np.random.default_rng(34)
    points = random.standard_normal((12, 5))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    angles = np.arccos(np.clip(points @ points.T, -1, 1))
    np.fill_diagonal(angles, 0.0)
    gram, targets, density, depth = tangent.limiting_kernel(angles, 2)["limit"], random.standard_normal(8), 0.3, 2
    pruned = gram * tangent.masked_convolution_factor(density, depth)
    assert_close("factor", pruned[0, 1], tangent.pruned_limit(angles[0, 1], depth, density)["limit"], 1e-12)
    ridge = tangent.matched_ridge(0.1, density, depth)
    dense_fit = gram[8:, :8] @ np.linalg.solve(gram[:8, :8] + 0.1 * np.eye(8), targets)
    pruned_fit = pruned[8:, :8] @ np.linalg.solve(pruned[:8, :8] + ridge * np.eye(8), targets)
    assert float(np.abs(dense_fit - pruned_fit).max()) < 1e-9, "the matched ridge changes the predictor"
    slow = np.linalg.eigvalsh(gram[:8, :8]) / np.linalg.eigvalsh(pruned[:8, :8])
    assert float(np.abs(slow / tangent.training_slowdown(density, depth) - 1).max()) < 1e-9, "rates of gradient flow"
    return "kernel ridge regression and the rates of gradient flow agree with the scale factors on a Gram matrix"


@check("K-9", method="Monte Carlo")
def sampled_masks_on_the_input() -> str:
    random = np.random.default_rng(35)
    x, y, density = np.array([0.5, -0.25, 1.0]), np.array([0.3, 0.9, -0.2]), 0.4
    masks = (random.random((200_000, 3)) < density) / math.sqrt(density)
    weights = random.standard_normal((200_000, 3)) * masks
    u, v = weights @ x, weights @ y
    result = tangent.pruned_input_limit(x, y, density, 1)
    assert_mean("covariance", 2 * np.maximum(u, 0) * np.maximum(v, 0), result["covariance"])
    inner = (masks**2 * (x * y)).sum(axis=1)
    assert_mean("input term", 2 * inner * ((u > 0) & (v > 0)), result["input_term"])
    angle = math.acos(float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y)))
    dense = tangent.limiting_kernel(angle, 4, float(np.linalg.norm(x)), float(np.linalg.norm(y)))["limit"]
    assert_close("density 1", tangent.pruned_input_limit(x, y, 1.0, 4)["limit"], dense, 1e-10)
    same = tangent.pruned_input_limit(x, 3 * x, 0.3, 4)["limit"]
    assert_close("parallel inputs", same, 15 * float(x @ x), 1e-12)
    return (
        "200000 sampled masks and weights agree with the enumeration (false alarm 1e-6); density 1 is the dense limit"
    )


@check("K-22a", method="second formula")
def naive_convolution() -> str:
    random = np.random.default_rng(36)
    x, y = random.standard_normal((2, 2, 4, 5))
    for depth, side in ((1, 3), (3, 3), (2, 5)):
        fast = tangent.convolutional_limit(x, y, depth, side)
        slow = _naive_convolution(x, y, depth, side)
        assert_close("kernel", fast["limit"], slow[0], 1e-10)
        assert_close("covariance", fast["covariance"], slow[1], 1e-10)
    u, v = random.standard_normal((2, 3))
    angle = math.acos(float(u @ v) / float(np.linalg.norm(u) * np.linalg.norm(v)))
    dense = tangent.limiting_kernel(angle, 4, float(np.linalg.norm(u)), float(np.linalg.norm(v)))["limit"] / 3
    one = tangent.convolutional_limit(u[:, None, None], v[:, None, None], 4, 1)["limit"]
    assert_close("one pixel", one, dense, 1e-10)
    return "a recursion pixel by pixel agrees to 1e-10, and one pixel with 1x1 filters gives the dense limit"


@check("K-24b", "K-24c", method="Monte Carlo")
def sampled_moves_of_the_covariance() -> str:
    random = np.random.default_rng(37)
    for error in (0.05, 0.4, 1.0):
        eta = error**2 / 2
        rho = np.concatenate([random.uniform(-1, 1, 20_000), 1 - random.uniform(0, 3 * eta, 20_000)]).clip(-1, 1)
        a, b = 1 + random.uniform(-eta, eta, (2, rho.size))
        c = np.clip(rho + random.uniform(-eta, eta, rho.size), -np.sqrt(a * b), np.sqrt(a * b))
        near = np.abs(c - rho) <= eta
        moved = np.abs(tangent.relu_moments(a, b, c)["step"] - tangent.arc_cosine_kernels(rho)["step"])[near]
        change = tangent.step_change(error)
        assert float(moved.max()) <= change["worst"] + 1e-12 <= change["bound"] + 1e-12, f"a larger move at {error}"
        attained = 1 - tangent.arc_cosine_kernels(1 - 2 * eta)["step"]
        assert_close("the largest move", attained, change["worst"], 1e-7)
    for eta in (0.01, 0.3, 0.8):
        first, second = (_covariances(random, eta, 50_000) for _ in range(2))
        second = first + (second - first) * 10 ** random.uniform(-3, 0, first.shape[1])
        from_value, to_value = (_ramp_of(a, b, c) for a, b, c in (first, second))
        quotient = np.abs(from_value - to_value) / np.abs(first - second).max(axis=0)
        constant = tangent.relu_lipschitz(eta)
        assert float(quotient.max()) <= constant + 1e-9, f"a steeper pair at {eta}: {quotient.max()}"
        low, high, angle = 1 - eta, 1 + eta, math.asin(eta)
        slope = (math.pi - angle + (math.sqrt(high / low) + math.sqrt(low / high)) / 2 * math.sin(angle)) / math.pi
        assert_close("gradient at the worst point", slope, constant, 1e-12)
    return "no sampled move of the covariance exceeds either constant, and both are attained"


@check("K-24d", method="second formula")
def split_of_the_backward_vector() -> str:
    # At layer h the rows' part along the activations is known from the pre-activations alone.
    random = np.random.default_rng(40)
    weights, masks = draw_network(2, 3, 30, 0.5, random)
    split = split_backward(_PAIR, weights, masks, 2)
    used = [w * m for w, m in zip(weights, masks, strict=True)]
    first = math.sqrt(2 / 30) * np.maximum(_PAIR @ used[0].T, 0)
    middle = first @ used[1].T
    second = math.sqrt(2 / 30) * np.maximum(middle, 0)
    top = second @ used[2].T
    back = math.sqrt(2 / 30) * (top > 0) * used[3][0]
    known = np.zeros((2, 30))
    for row in range(30):
        span = (masks[2][row] * second).T
        fixed, *_ = np.linalg.lstsq(span.T, top[:, row], rcond=None)  # the shortest weights with these pre-activations
        known += math.sqrt(2 / 30) * (middle > 0) * back[:, row, None] * (masks[2][row] * fixed)
    whole = math.sqrt(2 / 30) * (middle > 0) * (back @ used[2])
    assert float(np.abs(split.along - known).max()) < 1e-12, "the part along is not the known one"
    assert float(np.abs(split.across + known - whole).max()) < 1e-12, "the parts do not add up"
    along = []
    for width in (48, 192):
        nets = [tangent.backward_split(_ANGLE, 3, width, 0.5, 2, seed) for seed in range(40)]
        along.append(float(np.mean([net["along_norm"] ** 2 for net in nets])))
        assert max(net["gap"] for net in nets) < 1e-12
    assert 2 < along[0] / along[1] < 8, f"the part along does not fade like 1 / width: {along}"
    product = tangent.pruned_back_product(_ANGLE, 3, 1.0, 2)
    assert_mean("the part across carries the kernel", [net["across"] for net in nets], product)
    return "the part along follows from the pre-activations to 1e-12, fades like 1 / width and leaves the kernel across"


@check("K-10a", "K-10b", "K-10c", "K-10d", "K-10e", "K-24a", method="property")
def width_orders_scale_as_stated() -> str:
    depth, density, error = 4, 0.2, 0.05
    first, second = tangent.width_order(depth, density, error)["terms"]
    for name, value, powers in (("first", 0, (1, 4)), ("second", 1, (2, 2))):
        base = (first, second)[value]
        by_density = tangent.width_order(depth, density / 2, error)["terms"][value] / base
        by_error = tangent.width_order(depth, density, error / 2)["terms"][value] / base
        assert_close(f"{name} term in the density", by_density, 2.0 ** powers[0], 1e-12)
        assert_close(f"{name} term in the error", by_error, 2.0 ** powers[1], 1e-12)
    linear = tangent.linear_density(depth, error)
    equal = tangent.width_order(depth, linear, error)["terms"]
    assert_close("terms where the orders meet", equal[0], equal[1], 1e-9)
    widths = [300, 200, 100, 50, 1]
    logs = [math.log(4 * 100 / 0.01), math.log(4 * 100 * 600 / 0.01), math.log(2 * 4 * 100 * 300 / 0.01)]
    terms = tangent.layer_width_order(2, widths, density, error, 0.01)["terms"]
    ratio = tangent.third_term_ratio(depth, error)
    for value, log, bare in zip(terms, logs, (first, second, first * ratio["ratio"]), strict=True):
        assert_close("term over its logarithm", value / log, bare, 1e-12)
    assert ratio["negligible"] == (ratio["ratio"] <= 1)
    # Theorem 9.10 at this error, depth^2 / (density error^4), is Theorem 3.5 up to the constant (3 + 1/depth)^4.
    inner = depth**2 / (density * tangent.layer_error(depth, error) ** 4)
    assert_close("substitution of the layer error", inner / first, (3 + 1 / depth) ** 4, 1e-12)
    forward = tangent.forward_width_order(depth, density, error, 0.01, 100)
    assert_close("forward order", forward / math.log(18 * 100 * depth / 0.01), second * density, 1e-12)
    return "the width orders have the stated powers, meet at the stated density and keep their logarithms"


@check("K-11a", "K-11b", "K-11c", method="enumeration")
def binomial_tails_by_counting() -> str:
    for p, m, eps in ((0.1, 40, 0.5), (0.25, 24, 0.5), (0.3, 30, 1 / 3), (0.5, 20, 0.2), (0.7, 10, 0.3)):
        q, share = Fraction(repr(p)), Fraction(repr(eps))
        hits = [k for k in range(m + 1) if abs(k - q * m) >= share * q * m]
        exact = float(sum(math.comb(m, k) * q**k * (1 - q) ** (m - k) for k in hits))
        assert_close(f"tail of {m}, {p}", tangent.binomial_deviation_tail(p, m, eps), exact, 1e-11)
    violated = 0
    for p in (0.01, 0.1, 0.3, 0.5, 0.9):
        for m in (10, 300, 5000):
            for eps in (0.05, 0.2, 0.5, 1.0, 2.0):
                tail = tangent.binomial_deviation_tail(p, m, eps)
                assert tail <= tangent.chernoff_bound(p, m, eps), f"the repaired bound fails at {p}, {m}, {eps}"
                assert tail <= tangent.hoeffding_deviation_bound(p, m, eps) * (1 + 1e-9), "Hoeffding's bound fails"
                violated += tail > tangent.chernoff_bound_printed(p, m, eps)
    assert violated > 5, "the published bound holds after all"
    return f"exact counting agrees to 1e-11; the published bound fails at {violated} of 75 points, ours at none"


@check("K-11d", "K-12", method="second formula")
def exponents_of_gamma_tails() -> str:
    for eps in (1e-6, 0.01, 0.3, 1.0, 20.0):
        integral = integrate.quad(math.log1p, 0, eps, epsabs=0, epsrel=1e-12)[0]
        assert_close("integral of ln(1 + t)", tangent.poisson_exponent(eps), integral, 1e-10)
    violated = 0
    for shape in (0.5, 1.0, 5.0):
        # A gamma variable of scale c is sub-gamma with variance factor shape c^2.
        for t in (0.1, 1.0, 5.0, 20.0):
            exact = float(special.gammaincc(shape, shape + t))
            result = tangent.subgamma_exponent(math.sqrt(shape), 1.0, t)
            bound, simple = math.exp(-result["tail_exponent"]), math.exp(-result["simple"])
            assert exact <= bound <= simple, "the sub-gamma tail fails"
            violated += exact > math.exp(-tangent.subgamma_exponent_printed(math.sqrt(shape), 1.0, t))
    assert violated > 0, "the printed exponent holds after all"
    return f"gamma tails obey the repaired exponent at all 12 points and violate the printed one at {violated}"


@check("K-13a", "K-13b", "K-13c", "K-13d", method="second formula")
def chaos_of_the_identity() -> str:
    violated = 0
    for half_order in (1, 2, 5, 20):
        n = 2 * half_order
        for deviation in (0.5, 3.0, 20.0, 60.0):
            # An even chi-squared tail is a Poisson sum.
            def survival(x: float, terms: int = half_order) -> float:
                return sum(math.exp(-x / 2 + k * math.log(x / 2) - math.lgamma(k + 1)) for k in range(terms))

            exact = survival(n + deviation) + (1 - survival(n - deviation) if deviation < n else 0.0)
            tail = tangent.identity_chaos_tail(n, deviation)
            assert_close("tail", tail, exact, 1e-9, 1e-14)
            norms = (math.sqrt(n), 1.0)
            inverse = tangent.inverted_chaos_bound(*norms, deviation)
            assert tail <= inverse["bound"] <= tangent.chaos_bound(*norms, deviation) * (1 + 1e-12)
            back = tangent.chaos_deviation(*norms, inverse["tail_exponent"])
            assert_close("round trip", back["deviation"], deviation, 1e-12)
            assert_close("bound of the first form", back["bound"], inverse["bound"], 1e-12)
            violated += tail > tangent.chaos_bound_printed(*norms, deviation)
    assert violated > 0, "the printed second form holds after all"
    return f"Poisson sums agree; both forms hold at 16 points, the printed second form fails at {violated}"


@check("K-14a", "K-14b", method="enumeration")
def balanced_rows() -> str:
    unbalanced = [k for k in range(31) if abs(k - 6) >= 3]
    exact = float(sum(math.comb(30, k) * Fraction(1, 5) ** k * Fraction(4, 5) ** (30 - k) for k in unbalanced))
    result = tangent.unbalanced_row_probability(30, 0.2, 0.5, 7)
    assert_close("one row", result["row"], exact, 1e-11)
    assert_close("seven rows", result["probability"], 1 - (1 - exact) ** 7, 1e-11)
    failed = 0
    for density in (0.05, 0.1, 0.5):
        for deviation in (0.1, 0.3):
            arguments = (density, deviation, 0.05, 3, 512)
            width, printed = tangent.balanced_row_width(*arguments), tangent.balanced_row_width_printed(*arguments)
            assert tangent.unbalanced_row_probability(width, density, deviation, 3 * 512)["probability"] <= 0.05
            failed += tangent.unbalanced_row_probability(printed, density, deviation, 3 * 512)["probability"] > 0.05
    assert failed > 0, "the printed width is enough after all"
    return f"the repaired width is enough at six settings, the printed one fails at {failed}"


@check("K-15", "K-16", method="Monte Carlo")
def gaussian_projections() -> str:
    random = np.random.default_rng(38)
    sample = np.abs(random.standard_normal(400_000)) * math.sqrt(2)
    for form in (tangent.gaussian_output_bound, tangent.gaussian_output_bound_printed):
        result = form(0.05)
        assert_proportion("failure", int((sample > result["bound"]).sum()), sample.size, result["failure"])
        assert (result["failure"] <= 0.05) == (form is tangent.gaussian_output_bound)
    x = np.array([1.0, 2.0, 0.0])
    moments = tangent.half_space_moments(float(np.linalg.norm(x)))
    weights = random.standard_normal((200_000, 3))
    for y in ([1.0, 2.0, 0.0], [2.0, -1.0, 3.0], [-1.0, -2.0, 0.0]):
        z = (weights @ x) ** 2 * (weights @ np.array(y) > 0)
        assert_mean("mean", z, moments["mean"])
        assert_mean("second moment", z**2, moments["second_moment"])
        assert_proportion("zeros", int((z == 0).sum()), z.size, moments["zero_probability"])
    return "400000 and 200000 draws agree (false alarm 1e-6 each); the direction of the half-space does not matter"


@check("K-18b", "K-18c", method="Monte Carlo")
def fluctuation_model() -> str:
    random = np.random.default_rng(39)
    for density in (1.0, 0.25):
        kernels = [sum(tangent_terms(_PAIR, _DEPTH, 128, density, "mask", random).terms) for _ in range(400)]
        model = tangent.kernel_variance(128, density)["variance"]
        # A fit, good to about ten per cent; the variance of 400 samples spreads by as much again.
        assert 0.6 < float(np.var(kernels)) / model < 1.7, f"variance {np.var(kernels):.3g} against {model:.3g}"
    for sigma, density in ((0.3, 0.5), (0.07, 0.1)):
        width = tangent.width_for_sigma(sigma, density)
        at, below = (tangent.kernel_variance(w, density)["sigma"] for w in (width, width - 1))
        assert at <= sigma < below, "the width is not the smallest"
    return "the spread of 400 networks of width 128 agrees with the fit, and the width rule inverts it"


@check("K-19", "K-21a", "K-21b", "K-21c", method="property")
def steps_and_widths() -> str:
    for width, density in ((256, 0.3), (100, 0.07), (77, 0.9)):
        scaled = tangent.scaled_widths(width, density)
        assert abs(scaled["linear"] * density - width) <= density / 2 + 1e-9
        assert abs(scaled["quadratic"] * density**2 - width) <= density**2 / 2 + 1e-9
        share = Fraction(repr(density))
        exact = sum(k * math.comb(width, k) * share**k * (1 - share) ** (width - k) for k in range(width + 1))
        assert_close("mean number of kept inputs", tangent.effective_width(width, density), float(exact), 1e-12)
    eigenvalues = np.array([0.5, 3.0, 8.0])
    edge = tangent.largest_stable_step(8.0)
    for factor, stable in ((0.999, True), (1.001, False)):
        residual = np.abs(1 - factor * edge * eigenvalues) ** 20_000
        assert bool(residual.max() < 1e-3) == stable, "the edge of stability"
    plan = tangent.steps_to_tolerance(0.5, 8.0, 0.01)
    assert_close("condition", plan["condition"], float(np.linalg.cond(np.diag(eigenvalues))), 1e-12)
    # Gradient flow with unit rate on the largest eigenvalue leaves exp(-steps / condition) of the slowest part.
    assert_close("residual", math.exp(-plan["steps"] / plan["condition"]), 0.01, 1e-12)
    return "scaled widths are the nearest whole numbers; descent is stable just below the edge and not above it"


def _normal(u: float) -> float:
    return math.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def _ramp_of(a: Array, b: Array, c: Array) -> Array:
    limit = np.sqrt(a * b)
    return cast("Array", tangent.relu_moments(a, b, np.clip(c, -limit, limit))["ramp"])


def _covariances(random: np.random.Generator, eta: float, count: int) -> Array:
    a, b = 1 + random.uniform(-eta, eta, (2, count))
    return np.array([a, b, np.sqrt(a * b) * np.cos(random.uniform(0, math.pi, count) ** 2 / math.pi)])


def _assert_column(nets: list[PairPasses], name: str, position: int, expected: float) -> None:
    values = [getattr(net, name)[position] for net in nets]
    if np.ptp(values) < 1e-12:
        assert_close(name, values[0], expected, 1e-12)
    else:
        assert_mean(f"{name} {position}", values, expected)


def _naive_convolution(x: Array, y: Array, depth: int, side: int) -> tuple[float, float]:
    channels, rows, columns = x.shape
    reach = range(-(side // 2), side // 2 + 1)

    def pool(values: Array) -> Array:
        out = np.zeros((rows, columns))
        for i in range(rows):
            for j in range(columns):
                for p in reach:
                    for q in reach:
                        if 0 <= i + p < rows and 0 <= j + q < columns:
                            out[i, j] += values[i + p, j + q] / side**2
        return out

    a, b, c = (pool(np.einsum("kij,kij->ij", u, v)) / channels for u, v in ((x, x), (y, y), (x, y)))
    kernel = c
    for layer in range(1, depth + 1):
        rho = c / np.sqrt(a * b)
        theta = np.arccos(rho)
        features = np.sqrt(a * b) * (np.sqrt(1 - rho**2) + rho * (math.pi - theta)) / math.pi
        kernel = kernel * (math.pi - theta) / math.pi + features
        c = features
        if layer < depth:
            a, b, c, kernel = pool(a), pool(b), pool(c), pool(kernel)
    return float(kernel.mean()), float(c.mean())
