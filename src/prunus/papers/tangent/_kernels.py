"""Arc-cosine kernels and the limiting tangent kernel of dense and randomly pruned ReLU networks (K-0 to K-9).

Convention throughout: hidden layers 1 .. depth, weights N(0, 1), activations sqrt(2 / width) relu, no biases, one
output. `density` is the probability that a weight is kept. The input layer is dense unless a function says otherwise.

Kernels are iterated through the angle, not the correlation: the correlation of nearly parallel inputs rounds to 1
long before their angle rounds to 0, and the derivative kernel is linear in the angle.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunus.errors import BadInput
from prunus.formulas import domain
from prunus.formulas.binding import claim, printed
from prunus.formulas.tangent import kept

Array = NDArray[np.float64]

# How far a correlation or angle may lie outside and still count as rounding in single precision.
MOST_LAYERS = 20_000  # one step of a recursion for each
_ROUNDING = 1e-6  # tolerance

_CHUNK = 1 << 15  # tolerance

_LARGEST_ENUMERATION = 20


@claim("K-0")
def parametrisation_factor(width: int) -> float:
    """K-0: kernel term of a later layer in the standard parametrisation over the one in the NTK parametrisation."""
    return domain.whole("width", width, 1) / 2


@claim("K-1a")
def arc_cosine_kernels(correlation: ArrayLike) -> dict[str, Any]:
    """K-1a: kappa 0 (`step`) and kappa 1 (`ramp`) of a correlation, elementwise."""
    rho = domain.array("correlation", correlation)
    outside = rho[np.abs(rho) > 1 + _ROUNDING]
    if outside.size:
        raise BadInput(f"correlation must lie in [-1, 1], got {float(outside[0])!r}.")
    angle = _angle_of(np.clip(rho, -1.0, 1.0))
    return {"step": plain(step(angle)), "ramp": plain(ramp(angle))}


@claim("K-1b")
def relu_moments(variance_x: ArrayLike, variance_y: ArrayLike, covariance: ArrayLike) -> dict[str, Any]:
    """K-1b: 2 P(u > 0, v > 0) and 2 E relu(u) relu(v) for centred Gaussian u, v, elementwise.

    Both are 0 where a variance is 0.
    """
    a, b, c = (domain.array(name, value) for name, value in
               (("variance_x", variance_x), ("variance_y", variance_y), ("covariance", covariance)))  # fmt: skip
    if min(a.min(), b.min()) < 0:
        raise BadInput(f"variance_x and variance_y must be at least 0, got {float(min(a.min(), b.min()))!r}.")
    scale = np.sqrt(a * b)
    if np.any(np.abs(c) > scale * (1 + _ROUNDING)):
        raise BadInput("covariance must lie between plus and minus sqrt(variance_x variance_y).")
    rho = np.clip(np.divide(c, scale, out=np.zeros(np.broadcast(c, scale).shape), where=scale > 0), -1.0, 1.0)
    angle = _angle_of(rho)
    return {"step": plain(np.where(scale > 0, step(angle), 0.0)), "ramp": plain(scale * ramp(angle))}


@claim("K-2a")
def limiting_kernel(angle: ArrayLike, depth: int, norm_x: ArrayLike = 1.0, norm_y: ArrayLike = 1.0) -> dict[str, Any]:
    """K-2a: limiting tangent kernel, the sum over h of Sigma^(h-1) times the derivatives of layers h .. depth.

    The product stops at the last hidden layer (in the paper it runs one layer further). Bi-homogeneous in the norms; at
    angle 0 it is (depth + 1) times the product of the norms. Vectorised over `angle` and the norms.
    """
    covariances, derivatives = _layers(angle, depth, norm_x, norm_y)
    return _sum_terms(covariances, derivatives, np.ones_like(covariances[0]))


@printed("K-2a")
def limiting_kernel_printed(
    angle: ArrayLike, depth: int, norm_x: ArrayLike = 1.0, norm_y: ArrayLike = 1.0
) -> dict[str, Any]:
    """K-2a as printed: the product taken to layer depth + 1, with the derivative continued by the recursion."""
    covariances, derivatives = _layers(angle, domain.whole("depth", depth, 1, MOST_LAYERS) + 1, norm_x, norm_y)
    return _sum_terms(covariances[:-1], derivatives[:-1], derivatives[-1])


@claim("K-2b")
def layer_covariances(
    angle: ArrayLike, depth: int, norm_x: ArrayLike = 1.0, norm_y: ArrayLike = 1.0
) -> dict[str, list[Any]]:
    """K-2b: Sigma of layers 0 .. depth and its derivative kernel in layers 1 .. depth."""
    covariances, derivatives = _layers(angle, depth, norm_x, norm_y)
    return {"covariances": [plain(c) for c in covariances], "derivatives": [plain(d) for d in derivatives]}


@claim("K-4")
def pruned_limit(angle: ArrayLike, depth: int, density: float) -> dict[str, Any]:
    """K-4 (Theorem 3.1): density ** depth times the dense limit, for {0, 1} masks on all layers but the first."""
    factor = kept("density", density) ** domain.whole("depth", depth, 1, MOST_LAYERS)
    return {"limit": plain(factor * np.asarray(limiting_kernel(angle, depth)["limit"])), "factor": factor}


@claim("K-5")
def weight_rescaled_limit(angle: ArrayLike, depth: int, density: float) -> dict[str, Any]:
    """K-5: limit when the stored weights, not the mask, are divided by sqrt(density) and differentiated as they are.

    Only the first layer's term is that of the dense limit; all later ones carry a factor density.
    """
    density = kept("density", density)
    first, *later = (np.asarray(term) for term in limiting_kernel(angle, depth)["terms"])
    return {"limit": plain(first + density * sum(later)), "step_factor": 1 / density}


@printed("K-5")
def weight_rescaled_limit_printed(angle: ArrayLike, depth: int, density: float) -> Any:
    """K-5 as printed: the dense limit, whatever the density."""
    kept("density", density)
    return limiting_kernel(angle, depth)["limit"]


@claim("K-6a")
def training_slowdown(density: float, depth: int) -> float:
    """K-6a: factor by which gradient flow slows down in an un-rescaled pruned network."""
    return kept("density", density) ** -domain.whole("depth", depth, 1, MOST_LAYERS)


@claim("K-6b")
def matched_ridge(ridge: float, density: float, depth: int) -> float:
    """K-6b: ridge for the pruned kernel that gives the dense kernel's predictor."""
    return domain.real("ridge", ridge, 0.0) * kept("density", density) ** domain.whole("depth", depth, 1, MOST_LAYERS)


@claim("K-7a")
def pruned_covariance(angle: ArrayLike, density: float, layer: int) -> Any:
    """K-7a (Lemma 4.2): density ** (layer - 1) Sigma^(layer); the input's plain product for layer 0."""
    density, layer = kept("density", density), domain.whole("layer", layer, 0, MOST_LAYERS)
    covariances, _ = _layers(angle, max(layer, 1), 1.0, 1.0)
    return plain(density ** max(layer - 1, 0) * covariances[layer])


@claim("K-7b")
def preactivation_scale(density: float, layer: int) -> float:
    """K-7b: pruned pre-activations are distributed as density ** ((layer - 1) / 2) times the dense ones."""
    return float(kept("density", density) ** ((domain.whole("layer", layer, 1) - 1) / 2))


@printed("K-7b")
def preactivation_scale_printed(density: float, layer: int) -> float:
    """K-7b as printed, without the half in the exponent."""
    return kept("density", density) ** (domain.whole("layer", layer, 1) - 1)


@claim("K-8")
def pruned_back_product(angle: ArrayLike, depth: int, density: float, layer: int) -> Any:
    """K-8 (Lemma 4.3): limit of <b^(layer)(x), b^(layer)(y)>, density and derivative for every layer above."""
    depth = domain.whole("depth", depth, 1, MOST_LAYERS)
    density, layer = kept("density", density), domain.whole("layer", layer, 1, depth + 1)
    covariances, derivatives = _layers(angle, depth, 1.0, 1.0)
    product = np.ones_like(covariances[0])
    for derivative in derivatives[layer - 1 :]:
        product = product * density * derivative
    return plain(product)


@claim("K-9")
def pruned_input_limit(x: ArrayLike, y: ArrayLike, density: float, depth: int) -> dict[str, float]:
    """K-9: limiting kernel when the input layer is pruned as well, all masks rescaled by 1 / sqrt(density).

    Every first-layer unit has a mask of its own, so the limit averages over all masks of the input coordinates: here
    by enumeration, which allows 20 coordinates that are not zero in both inputs.
    """
    first, second = domain.array("x", x, 1), domain.array("y", y, 1)
    if first.shape != second.shape:
        raise BadInput(f"x and y must have the same length, got {first.size} and {second.size}.")
    density, depth = kept("density", density), domain.whole("depth", depth, 1, MOST_LAYERS)
    seen = (first != 0) | (second != 0)
    first, second = first[seen], second[seen]
    if first.size > _LARGEST_ENUMERATION:
        raise BadInput(
            f"x and y may have at most {_LARGEST_ENUMERATION} coordinates that are not both zero, got {first.size}: "
            "the limit is found by going through all masks."
        )
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    if norms == 0:
        return {"covariance": 0.0, "input_term": 0.0, "limit": 0.0}
    covariance, input_term, gap = _mask_averages(first, second, density)
    kernel, angle = input_term + covariance, half_sine_angle(np.asarray(gap / 2))
    for _ in range(depth - 1):
        kernel = kernel * float(step(angle)) + norms * float(ramp(angle))
        angle = next_angle(angle)
    return {"covariance": covariance, "input_term": input_term, "limit": kernel}


def _mask_averages(x: Array, y: Array, density: float) -> tuple[float, float, float]:
    """Means over masks m in {0, 1/density} of sqrt(ab) kappa1 and c kappa0, with a, b, c the masked inner products.

    The third number is 1 minus the correlation of the first-layer features, as a sum of positive terms: the
    correlation itself rounds to 1 - 1e-16 for parallel inputs, which would cost eight digits of their angle.
    """
    means = np.zeros(3)
    total = 1 << x.size
    norm_x, norm_y = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    for start in range(0, total, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, total))
        mask = ((numbers[:, None] >> np.arange(x.size)) & 1).astype(np.float64)
        ones = mask.sum(axis=1)
        weight = density**ones * (1 - density) ** (x.size - ones)
        a, b, c = (mask @ product / density for product in (x * x, y * y, x * y))
        slope = np.divide(c, a, out=np.zeros_like(c), where=a > 0)
        # The part of y orthogonal to x, coordinate by coordinate: exact where ab - c^2 would cancel.
        rest = ((mask * y - slope[:, None] * (mask * x)) ** 2).sum(axis=1) / density
        angle = np.arctan2(np.sqrt(a * rest), c)  # of no account where a or b is 0: all terms below vanish
        root_x, root_y = np.sqrt(a) / norm_x, np.sqrt(b) / norm_y
        gap = (root_x - root_y) ** 2 / 2 + root_x * root_y * 2 * np.sin(next_angle(angle) / 2) ** 2
        means += [weight @ (np.sqrt(a * b) * ramp(angle)), weight @ (c * step(angle)), weight @ gap]
    return float(means[0]), float(means[1]), float(means[2])


def _layers(angle: ArrayLike, depth: int, norm_x: ArrayLike, norm_y: ArrayLike) -> tuple[list[Array], list[Array]]:
    """Sigma of layers 0 .. depth and derivative kernels of layers 1 .. depth, as arrays of one shape."""
    depth = domain.whole("depth", depth, 1, MOST_LAYERS)
    theta = domain.array("angle", angle)
    outside = theta[(theta < 0) | (theta > math.pi + _ROUNDING)]
    if outside.size:
        raise BadInput(f"angle must lie in [0, pi] radians, got {float(outside[0])!r}.")
    theta = np.minimum(theta, math.pi)
    first, second = domain.array("norm_x", norm_x), domain.array("norm_y", norm_y)
    if min(first.min(), second.min()) < 0:
        raise BadInput(f"norm_x and norm_y must be at least 0, got {float(min(first.min(), second.min()))!r}.")
    scale, theta = np.broadcast_arrays(first * second, theta)
    alive = scale > 0
    covariances, derivatives = [scale * np.cos(theta)], []
    for _ in range(depth):
        derivatives.append(np.where(alive, step(theta), 0.0))
        covariances.append(scale * ramp(theta))
        theta = next_angle(theta)
    return covariances, derivatives


def _sum_terms(covariances: list[Array], derivatives: list[Array], last: Array) -> dict[str, Any]:
    """Terms Sigma^(h-1) prod_{h' >= h} derivative^(h') of weight layers 1 .. depth + 1, all times `last`."""
    product, terms = last, [covariances[-1] * last]
    for covariance, derivative in zip(covariances[-2::-1], derivatives[::-1], strict=True):
        product = product * derivative
        terms.append(covariance * product)
    terms.reverse()
    return {"limit": plain(np.sum(terms, axis=0)), "terms": [plain(term) for term in terms]}


def step(angle: Array) -> Array:
    """Kappa 0 of an angle."""
    return 1 - angle / math.pi


def ramp(angle: Array) -> Array:
    """Kappa 1 of an angle, without cancellation at either end."""
    near = np.cos(angle) + _sine_excess(np.minimum(angle, math.pi / 2)) / math.pi
    return np.where(angle <= math.pi / 2, near, _sine_excess(math.pi - angle) / math.pi)


def next_angle(angle: Array) -> Array:
    """The angle whose cosine is kappa 1 of `angle`, through its half: exact for small angles."""
    return half_sine_angle(np.sin(angle / 2) ** 2 - _sine_excess(angle) / (2 * math.pi))


def half_sine_angle(square: Array) -> Array:
    """The angle t with sin(t / 2)^2 = `square`, that is (1 - cos t) / 2."""
    return 2 * np.arcsin(np.sqrt(np.clip(square, 0.0, 1.0)))


def _sine_excess(angle: Array) -> Array:
    """sin t - t cos t = t^3 / 3 - t^5 / 30 + ...; the series below 1/2, where the difference cancels."""
    square = angle * angle
    series = np.ones_like(square)
    for divisor in (130, 88, 54, 28, 10):  # 2 k (2 k + 3), from the last term kept to the first
        series = 1 - square / divisor * series
    series = angle * square / 3 * series
    small = angle < 0.5  # tolerance
    return np.where(small, series, np.sin(angle) - angle * np.cos(angle))


def _angle_of(rho: Array) -> Array:
    return np.arctan2(np.sqrt((1 - rho) * (1 + rho)), rho)


def plain(value: Any) -> Any:
    """A Python float where the value is a scalar, the array otherwise."""
    return float(value) if np.ndim(value) == 0 else value
