"""Section 9 with explicit constants: how far a pruned network's kernel is from its limit, as a number (K-26).

The proof is the paper's, with three changes that make every constant explicit and one power of 1/density smaller:
- masked sums are bounded by Bernstein's inequality with exact moments (no open constant, no Chernoff step);
- the pseudo-networks of all columns are propagated together, as one matrix in Frobenius norm: its square at the start
  is at most (1/density)(1 + e)/(1 - e) by an identity, where the paper bounds each column and a union over columns by
  1/density^2;
- norms of backward vectors are those that the induction gives (1 + B), not the constant 2.

Setting: unit inputs, `depth` hidden layers of equal width, masks in {0, 1/sqrt(density)}, first layer dense. Inputs of
smaller norm shrink both kernels and their difference. Every event fails with probability at most 2 exp(-t); with
tau = t / (density width). Where the induction breaks down (an error of 1 or more) bounds are infinite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.tangent import kept
from prunus.papers.tangent._stability import relu_lipschitz

MOST_DEPTH = 1000
_LARGEST_WIDTH = 10**30


@claim("K-26a")
def masked_product_deviation(density: float, width: int, t: float, variance: float = 1.0) -> dict[str, float]:
    """K-26a (Theorem 9.3, in the proof of Theorem 9.11): how far a masked mean of ReLU products is from its mean.

    The mean over `width` of 2 m^2 relu(u) relu(v), m^2 in {0, 1/density}, variances of u and v at most `variance`. Its
    moments are at most those of Bernstein's condition with 6 variance^2 / density and 4 variance / density.
    """
    tau = _tau(density, width, t)
    variance = domain.positive("variance", variance)
    return {
        "above": variance * (math.sqrt(12.0 * tau) + 4.0 * tau),
        "below": variance * math.sqrt(12.0 * tau),
        "failure": 2.0 * math.exp(-t),
    }


@claim("K-26b")
def forward_errors(depth: int, density: float, width: int, t: float) -> dict[str, Any]:
    """K-26b (Theorems 5.1 and 9.11): error of the masked covariances of each hidden layer.

    e_h = (1 + e_{h-1})(sqrt(12 tau) + 4 tau) + K e_{h-1}, e_0 = 0, with the Lipschitz constant K of K-24c at e_{h-1}.
    """
    depth = domain.whole("depth", depth, 1, MOST_DEPTH)
    errors = _forward(depth, _tau(density, width, t))[1:]
    return {"errors": errors, "last": errors[-1]}


@claim("K-26c")
def gradient_error(density: float, width: int, t: float, forward: float = 0.0) -> float:
    """K-26c (Lemma 9.12): error of 2 Tr(M D M) / width, with entries of the covariance below wrong by `forward`.

    2 sqrt(tau) + 2 tau / 3 (Bernstein for Bernoulli variables of mean at most density/2) + 2 asin(sqrt(forward)) / pi
    (K-24b).
    """
    forward = domain.real("forward", forward, 0.0)
    return _gradient(_tau(density, width, t), forward)


@claim("K-26d")
def triangle_error(backward: float, gradient: float) -> float:
    """K-26d (Proposition 9.18): backward + (1 + backward) gradient, as the norms squared are at most 1 + backward."""
    backward, gradient = domain.real("backward", backward, 0.0), domain.real("gradient", gradient, 0.0)
    return backward + (1.0 + backward) * gradient


@printed("K-26d")
def triangle_error_printed(backward: float, gradient: float) -> float:
    """K-26d as printed: backward + 2 gradient, which needs backward <= 1."""
    return domain.real("backward", backward, 0.0) + 2.0 * domain.real("gradient", gradient, 0.0)


@claim("K-26e")
def independent_error(
    density: float, width: int, t: float, norm_squared: float = 1.0, gradient: float = 0.0
) -> dict[str, float]:
    """K-26e (Propositions 5.2 and 9.20, repaired): error and norm of the part with fresh Gaussians.

    error = norm^2 (2 sqrt(2 (1 + gradient) tau) + 4 tau + 4 / (density width)); norm = sqrt(norm^2 (1 + gradient) +
    error). `norm_squared` is that of the next layer's backward vectors.
    """
    tau = _tau(density, width, t)
    norm_squared, gradient = domain.positive("norm_squared", norm_squared), domain.real("gradient", gradient, 0.0)
    return _independent(tau, 1.0 / (density * width), norm_squared, gradient)


@printed("K-26e")
def independent_error_printed(density: float, width: int, t: float) -> dict[str, float]:
    """K-26e as printed, t for ln(6 / delta_2): norms squared at most 2, ||M|| <= 1/sqrt(density), a factor 2 lost."""
    error = 3.0 * math.sqrt(8.0 * _tau(density, width, t))
    return {"error": error, "norm": math.sqrt(4.0 + error)}


@claim("K-26f")
def pseudo_network_bound(
    depth: int, density: float, width: int, t: float, layer: int, below: float = 0.0, above: float = 0.0
) -> dict[str, float]:
    """K-26f (Lemmas 9.13, 9.24, 9.26, corollary 9.25, definition 9.23): size of all pseudo-networks of a layer at once.

    start = (1/density)(1 + above)/(1 - below) bounds the squared Frobenius norm of the matrix whose row j is
    g_j / density times pseudo-network j at layer `layer` + 1, masked by any row; each further layer multiplies it by
    1 + sqrt(12 tau) + 4 tau. `below` and `above` are the forward errors of layers `layer` and `layer` + 1.
    """
    depth = domain.whole("depth", depth, 1, MOST_DEPTH)
    layer = domain.whole("layer", layer, 1, depth)
    below = domain.real("below", below, 0.0, 1.0, open_high=True)
    above = domain.real("above", above, 0.0)
    start, end = _pseudo(depth, kept("density", density), _tau(density, width, t), layer, below, above)
    return {"start": start, "end": end}


@claim("K-26g")
def own_direction_bound(t: float, frobenius_squared: float) -> float:
    """K-26g (Lemma 9.29): norm of the backward vector along the input's own masked activations.

    A Gaussian vector with this expected square: sqrt(frobenius_squared)(1 + sqrt(2 t)), with failure exp(-t).
    """
    t, square = domain.real("t", t, 0.0), domain.real("frobenius_squared", frobenius_squared, 0.0)
    return math.sqrt(square) * (1.0 + math.sqrt(2.0 * t))


@claim("K-26h")
def dependent_bound(density: float, t: float, frobenius_squared: float, norm_squared: float = 1.0) -> float:
    """K-26h (Propositions 5.3 and 9.27): norm of the part of the backward vector along both masked activations.

    (1 + sqrt(2 t)) (sqrt(norm_squared / density) + sqrt(frobenius_squared)): K-25e for the other input's direction and
    K-26g for the input's own.
    """
    density, norm_squared = kept("density", density), domain.real("norm_squared", norm_squared, 0.0)
    return own_direction_bound(t, frobenius_squared) + own_direction_bound(t, norm_squared / density)


@printed("K-26h")
def dependent_bound_printed(density: float, t: float) -> float:
    """K-26h as printed, t for both logarithms: 2 + 2 sqrt(t / density) + (4 / density) sqrt(t)."""
    density, t = kept("density", density), domain.real("t", t, 0.0)
    return 2.0 + 2.0 * math.sqrt(t / density) + 4.0 / density * math.sqrt(t)


@claim("K-26i")
def backward_step(
    width: int, backward: float, gradient: float, independent: float, norm: float, dependent: float
) -> float:
    """K-26i (Lemma 9.14): error of <b(x), b(y)> one layer further down.

    The triangle of K-26d, the fresh part's error, and twice its norm times the dependent part plus that part squared:
    K-26d + independent + 2 norm v + v^2, v = sqrt(2 / width) dependent.
    """
    along = math.sqrt(2.0 / domain.whole("width", width, 1)) * domain.real("dependent", dependent, 0.0)
    norm, independent = domain.real("norm", norm, 0.0), domain.real("independent", independent, 0.0)
    return triangle_error(backward, gradient) + independent + (2.0 * norm + along) * along


@claim("K-26j")
def layer_errors(depth: int, density: float, width: int, delta: float) -> dict[str, Any]:
    """K-26j (Theorem 9.10): errors of all forward covariances and backward products, with probability 1 - delta."""
    depth, density = domain.whole("depth", depth, 1, MOST_DEPTH), kept("density", density)
    width, delta = domain.whole("width", width, 1), domain.delta_in(delta)
    forward, backward = _errors(depth, density, width, _events(depth, width, delta))
    return {"forward": forward, "backward": backward, "largest": max(*forward, *backward)}


@claim("K-26k")
def kernel_error(depth: int, density: float, width: int, delta: float) -> float:
    """K-26k (Theorems 3.5 and 9.8): bound on |kernel - limit| of a network of this width, with probability 1 - delta.

    The sum over weight layers of e_{h-1} (1 + B_h) + B_h. For unit inputs, and all smaller ones.
    """
    found = layer_errors(depth, density, width, delta)
    return _total(found["forward"], found["backward"])


@claim("K-26l")
def kernel_width(depth: int, density: float, error: float, delta: float) -> int:
    """K-26l (Theorems 3.5 and 9.8): a width at which |kernel - limit| <= error with probability 1 - delta, as a number.

    Found by halving: the smallest width at which the bound of K-26k is small enough, to one part in a thousand.
    """
    depth, density = domain.whole("depth", depth, 1, MOST_DEPTH), kept("density", density)
    error, delta = domain.positive("error", error), domain.delta_in(delta)

    def enough(width: int) -> bool:
        return kernel_error(depth, density, width, delta) <= error

    high = 1
    while not enough(high):
        high *= 2
        if high > _LARGEST_WIDTH:
            return domain.whole("width", high, None, _LARGEST_WIDTH)
    low = high // 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@claim("K-26m")
def density_cost(depth: int, density: float, error: float, delta: float) -> dict[str, float]:
    """K-26m (Remark 3.6): the width of K-26l at this density and at density 1, and their ratio times the density."""
    pruned = kernel_width(depth, density, error, delta)
    dense = kernel_width(depth, 1.0, error, delta)
    return {"width": pruned, "dense": dense, "cost": density * pruned / dense}


@claim("K-26n")
def limit_exchange_gap(density: float, width: int) -> dict[str, float]:
    """K-26n (Lemmas 3.4 and 8.8, with a rate): how far E g(X) at this width is from its limit, unit inputs below.

    Each entry of the conditional covariance has variance at most 6 / (density width) = s^2. ramp: three entries, the
    Lipschitz constant of K-24c at 1/2, and the chance that an entry is off by more (Chebyshev). step: Jensen on
    2 asin(sqrt(e)) / pi <= sqrt(e).
    """
    variance = 6.0 / (kept("density", density) * domain.whole("width", width, 1))
    bad = min(1.0, 12.0 * variance)
    spread = 3.0 * math.sqrt(variance)
    ramp = relu_lipschitz(0.5) * spread + math.sqrt((1.0 + variance) * bad) + bad
    return {"ramp": ramp, "step": min(1.0, math.sqrt(spread))}


@claim("K-26o")
def projection_commutator(size: int, density: float, seed: int = 0) -> dict[str, float]:
    """K-26o (Proposition 9.19, repaired): M commutes with the projection onto the span of the masked vectors M g, M g'.

    One draw: the largest entry of M P - P M, and by how much the printed second direction, M g' - <M g, M g'> M g
    without division by |M g|^2, fails to be orthogonal to M g (cosine of the angle).
    """
    size, density = domain.whole("size", size, 2, 2000), kept("density", density)
    random = np.random.default_rng(domain.whole("seed", seed, 0))
    mask = np.where(random.random(size) < density, 1.0 / math.sqrt(density), 0.0)
    mask[:2] = 1.0 / math.sqrt(density)  # two kept coordinates at least, so that the span has two dimensions
    first, second = mask * random.random(size), mask * random.random(size)
    basis, _ = np.linalg.qr(np.stack((first, second), axis=1))
    projection = basis @ basis.T
    commutator = mask[:, None] * projection - projection * mask[None, :]
    printed_direction = second - (first @ second) * first
    lengths = float(np.linalg.norm(printed_direction) * np.linalg.norm(first))
    return {"commutator": float(np.abs(commutator).max()), "cosine": abs(float(printed_direction @ first)) / lengths}


def _tau(density: float, width: int, t: float) -> float:
    density, t = kept("density", density), domain.real("t", t, 0.0)
    return t / (density * domain.whole("width", width, 1))


def _forward(depth: int, tau: float) -> list[float]:
    """e_0 .. e_depth; infinite from the layer on where an error of 1 or more stops the induction."""
    step, errors = math.sqrt(12.0 * tau) + 4.0 * tau, [0.0]
    for _ in range(depth):
        before = errors[-1]
        errors.append((1.0 + before) * step + relu_lipschitz(before) * before if before < 1.0 else math.inf)
    return errors


def _gradient(tau: float, forward: float) -> float:
    turned = 2.0 * math.asin(math.sqrt(min(forward, 1.0))) / math.pi
    return 2.0 * math.sqrt(tau) + 2.0 * tau / 3.0 + turned


def _independent(tau: float, share: float, norm_squared: float, gradient: float) -> dict[str, float]:
    error = norm_squared * (2.0 * math.sqrt(2.0 * (1.0 + gradient) * tau) + 4.0 * tau + 4.0 * share)
    return {"error": error, "norm": math.sqrt(norm_squared * (1.0 + gradient) + error)}


def _pseudo(depth: int, density: float, tau: float, layer: int, below: float, above: float) -> tuple[float, float]:
    start = (1.0 + above) / (1.0 - below) / density
    if layer == depth:  # the next layer is the output: one Gaussian along one direction
        return 1.0 / density, 1.0 / density
    return start, start * (1.0 + math.sqrt(12.0 * tau) + 4.0 * tau) ** (depth - layer - 1)


def _events(depth: int, width: int, delta: float) -> float:
    """t at which all events together fail with probability at most delta.

    Masked rows: (depth - 1) width + 1; three pairs, two sides, forward and gradient. Per layer: three pairs of the
    chaos, two sides; two inputs, two Gaussian norms. Pseudo-networks: two inputs, a row of each later layer.
    """
    rows = (depth - 1) * width + 1
    count = 12 * rows + 10 * depth + max(depth - 1, 0) * max(depth - 2, 0) * width
    return math.log(count) - math.log(delta)


def _errors(depth: int, density: float, width: int, t: float) -> tuple[list[float], list[float]]:
    """(e_0 .. e_depth), (B_1 .. B_{depth+1})."""
    tau = t / (density * width)
    forward = _forward(depth, tau)
    backward = [0.0]
    for layer in range(depth, 0, -1):
        above = forward[layer + 1] if layer < depth else 0.0
        after = backward[0]
        if not forward[layer] < 1.0 or not above < math.inf:
            return forward, [math.inf] * layer + backward
        square, gradient = 1.0 + after, _gradient(tau, forward[layer - 1])
        fresh = _independent(tau, 1.0 / (density * width), square, gradient)
        _, frobenius = _pseudo(depth, density, tau, layer, forward[layer], above)
        along = dependent_bound(density, t, frobenius, square)
        backward.insert(0, backward_step(width, after, gradient, fresh["error"], fresh["norm"], along))
    return forward, backward


def _total(forward: list[float], backward: list[float]) -> float:
    if math.inf in forward or math.inf in backward:
        return math.inf
    return math.fsum(e * (1.0 + b) + b for e, b in zip(forward, backward, strict=True))
