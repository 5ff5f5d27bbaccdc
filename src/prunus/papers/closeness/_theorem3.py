"""Theorem 3 (random pruning of convolution kernels), corrected in its last layer, and its form for unequal layers.

Qian & Klabjan, Theorem 3 and App. C.2 (P-20, P-21, P-23, P-34). Symbols: `image` side p and `kernel` side q of the
layers, `d` channels, `second` and `fourth` the largest p^2 d E w^2 and (p^2 d)^2 E w^4, `latala` the constant C of
Lemma 4. Layer norms are bounded by p^(-image_exponent), difference norms by d^(-width_exponent).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.errors import BadInput
from prunus.formulas.binding import claim, printed
from prunus.formulas.closeness import recursion_error
from prunus.formulas.domain import positive, probability, real, whole
from prunus.formulas.numbers import elementwise, reals
from prunus.papers.closeness._counts import cube_radius, theorem3_exponent_cap
from prunus.papers.closeness._numbers import excess_power, fourth_moment, power, wholes

_ROUNDING = 1e-12  # tolerance


@claim("P-20")
@elementwise
def convolution_norm_order(image: int, kernel: int) -> float:
    """Order 2q/p of the norm of a random convolution with variance 1/(p^2 d); an estimate, not a bound (P-20)."""
    image, kernel = _sides(image, kernel)
    return 2.0 * kernel / image


@printed("P-20")
@elementwise
def convolution_norm_order_printed(image: int, kernel: int) -> float:
    """2q^2/p, the order of (36)-(38): a factor q too large."""
    image, kernel = _sides(image, kernel)
    return 2.0 * kernel**2 / image


@claim("P-21a")
@elementwise
def theorem3_constants(second: float, fourth: float, latala: float) -> dict[str, float]:
    """Constants C_3 and C_4 of Theorem 3 (P-21a)."""
    second, fourth = fourth_moment(second, fourth)
    latala = positive("latala", latala)
    return {
        "constant3": latala * (2.0 * math.sqrt(second) + fourth**0.25),
        "constant4": latala * (2.0 * math.sqrt(3.0 * second) + fourth**0.25),
    }


@claim("P-21b")
@elementwise
def last_layer_failure(
    image: int, d: int, outputs: int, second: float, fourth: float, latala: float, norm_bound: float
) -> float:
    """Failure of the last layer's norm bound N_l by Lemma 4 and Markov (Theorem 3 corrected, P-21b)."""
    x = _last_ratio(image, d, outputs)
    second, fourth = fourth_moment(second, fourth)
    mean = math.sqrt(second) * (1.0 + math.sqrt(x)) + (fourth * x) ** 0.25
    return float(positive("latala", latala) * mean / positive("norm_bound", norm_bound))


@claim("P-21c")
@elementwise
def theorem3_probability(
    layers: int,
    image: int,
    kernel: int,
    d: int,
    exponent: float,
    image_exponent: float,
    width_exponent: float,
    second: float,
    fourth: float,
    latala: float,
    outputs: int,
    norm_bound: float,
    last_constant: float | None = None,
) -> dict[str, float]:
    """Success probability of Theorem 3 with the last layer corrected; negative means vacuous (P-21c).

    `union_inner` counts every norm event once. `last_constant` matters to the printed form only.
    """
    constants = theorem3_constants(second, fourth, latala)
    _last_constant(last_constant, constants)
    layers, norms, differences, masks = _theorem3_terms(
        layers, image, kernel, d, exponent, image_exponent, width_exponent, constants
    )
    last = last_layer_failure(image, d, outputs, second, fourth, latala, norm_bound)
    inner = 1.0 - differences - (layers**2 - layers - 2) / 2 * norms - last
    union = 1.0 - differences - (layers - 1) * norms - last
    return {"inner": inner, "probability": masks * inner, "union_inner": union}


@printed("P-21c")
@elementwise
def theorem3_probability_printed(
    layers: int,
    image: int,
    kernel: int,
    d: int,
    exponent: float,
    image_exponent: float,
    width_exponent: float,
    second: float,
    fourth: float,
    latala: float,
    outputs: int,
    norm_bound: float,
    last_constant: float | None = None,
) -> dict[str, float]:
    """Theorem 3 as printed: the last layer fails with C_5/p^(1-image_exponent), C_5 = `last_constant` or C_3."""
    whole("outputs", outputs, 1)
    positive("norm_bound", norm_bound)
    constants = theorem3_constants(second, fourth, latala)
    layers, norms, differences, masks = _theorem3_terms(
        layers, image, kernel, d, exponent, image_exponent, width_exponent, constants
    )
    last = _last_constant(last_constant, constants) * image ** (image_exponent - 1.0)
    inner = 1.0 - differences - (layers**2 - layers - 2) / 2 * norms - last
    return {"inner": inner, "probability": masks * inner}


@claim("P-21d")
@elementwise
def theorem3_error(
    layers: int,
    image: int,
    d: int,
    input_image: int,
    channels: int,
    image_exponent: float,
    width_exponent: float,
    norm_bound: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """Error bound (11) of Theorem 3 with the last layer's norm kept and the input's own radius (P-21d).

    `relative` compares it with the bound on the network itself: near one or above, the statement is empty.
    """
    own, relative = _theorem3_error(layers, image, d, image_exponent, width_exponent, lipschitz)
    radius = cube_radius(whole("input_image", input_image, 1), channels)["radius"]
    return {"error": positive("norm_bound", norm_bound) * radius * own * relative, "relative": relative}


@printed("P-21d")
@elementwise
def theorem3_error_printed(
    layers: int,
    image: int,
    d: int,
    input_image: int,
    channels: int,
    image_exponent: float,
    width_exponent: float,
    norm_bound: float,
    lipschitz: float = 1.0,
) -> dict[str, float]:
    """(11) as printed: p^(-image_exponent) for the last layer whatever its norm, and radius p_0 sqrt(d)."""
    positive("norm_bound", norm_bound)
    whole("channels", channels, 1)
    input_image = whole("input_image", input_image, 1)
    own, relative = _theorem3_error(layers, image, d, image_exponent, width_exponent, lipschitz)
    return {"error": image**-image_exponent * cube_radius(input_image, d)["radius"] * own * relative}


@claim("P-21e")
@elementwise
def last_layer_norm(image: int, d: int, outputs: int, second: float = 1.0, image_exponent: float = 0.5) -> float:
    """Size of the last layer's norm under Theorem 3's assumptions, about sqrt(second) (P-21e).

    `image_exponent` matters to the printed form only.
    """
    probability("image_exponent", image_exponent, open_low=True, open_high=True)
    return math.sqrt(positive("second", second)) * (1.0 + math.sqrt(_last_ratio(image, d, outputs)))


@printed("P-21e")
@elementwise
def last_layer_norm_printed(
    image: int, d: int, outputs: int, second: float = 1.0, image_exponent: float = 0.5
) -> float:
    """p^(-image_exponent), the norm that Theorem 3 claims for the last layer."""
    _last_ratio(image, d, outputs)
    positive("second", second)
    return float(image ** -probability("image_exponent", image_exponent, open_low=True, open_high=True))


@claim("P-21f")
@elementwise
def variance_shortfall(image: int, kernel: int) -> float:
    """How many times smaller than Glorot-type variance Theorem 3 assumes the weights, p^2/q^2 (P-21f)."""
    return (whole("image", image, 1) / whole("kernel", kernel, 1)) ** 2


@claim("P-23a")
@elementwise
def kernel_norm_law(kernel: int, sigma: float = 1.0) -> dict[str, float]:
    """Mean and standard deviation of the L1 norm of a q x q normal kernel (App. C.2, P-23a)."""
    q, sigma = whole("kernel", kernel, 1), positive("sigma", sigma)
    return {
        "mean": sigma * q**2 * math.sqrt(2.0 / math.pi),
        "deviation": sigma * q * math.sqrt(1.0 - 2.0 / math.pi),
    }


@claim("P-23b")
@elementwise
def kernel_norm_quantile(kernel: int, level: float, sigma: float = 1.0) -> float:
    """Quantile of the L1 norm of a normal kernel by the central limit theorem: poor in the low tail (P-23b)."""
    law = kernel_norm_law(kernel, sigma)
    level = probability("level", level, open_low=True, open_high=True)
    return law["mean"] + law["deviation"] * float(special.ndtri(level))


@claim("P-23c")
@elementwise
def block_norm(image: int, norm: float) -> float:
    """L1 norm of the circulant block of a kernel: p^2 times the kernel's, so the ordering is the same (P-23c)."""
    return whole("image", image, 1) ** 2 * real("norm", norm, 0.0)


@claim("P-34a")
def unequal_convolution_error(
    norm_bounds: ArrayLike,
    differences: ArrayLike,
    last_norm_bound: float,
    input_image: int,
    channels: int,
    lipschitz: float | ArrayLike = 1.0,
) -> float:
    """Error bound of Theorem 3 for unequal layers: the recursion over the layers' own bounds (P-34a)."""
    norms = reals("norm_bounds", norm_bounds, 0.0)
    parts = reals("differences", differences, 0.0, length=len(norms))
    last = real("last_norm_bound", last_norm_bound, 0.0)
    radius = cube_radius(whole("input_image", input_image, 1), channels)["radius"]
    return recursion_error(np.append(norms, last), np.append(parts, 0.0), lipschitz, radius)


@claim("P-34b")
def unequal_norm_failure(
    images: ArrayLike, kernels: ArrayLike, norm_bounds: ArrayLike, second: float, fourth: float, latala: float
) -> float:
    """Failure of the convolution norm bounds for unequal layers, sum C_3 q_k^2/(p_k a_k) (P-34b)."""
    p, q = _layer_sides(images, kernels)
    bounds = reals("norm_bounds", norm_bounds, 0.0, open_low=True, length=len(p))
    return theorem3_constants(second, fourth, latala)["constant3"] * float((q**2 / (p * bounds)).sum())


@claim("P-34c")
def unequal_difference_failure(
    images: ArrayLike,
    kernels: ArrayLike,
    inputs: ArrayLike,
    outputs: ArrayLike,
    exponents: ArrayLike,
    differences: ArrayLike,
    second: float,
    fourth: float,
    latala: float,
) -> float:
    """Failure of the difference bounds for unequal layers, given that no line is overloaded (P-34c).

    With variance second/(p^2 max(d_in, d_out)), g^(2-exponent) pruned kernels, g = sqrt(d_in d_out), and at most three
    times the mean load per line, the largest line variance is 3 second g^(-exponent)/p^2 in rows and columns alike, and
    the sum of fourth moments is below fourth g^(-exponent)/p^4.
    """
    p, q = _layer_sides(images, kernels)
    count = len(p)
    channels = np.sqrt(wholes("inputs", inputs, 1, length=count) * wholes("outputs", outputs, 1, length=count))
    powers = reals("exponents", exponents, 0.0, length=count)
    if powers.max() > 2.0:
        raise BadInput(f"exponents must hold numbers in [0, 2], got {powers.max():g}.")
    bounds = reals("differences", differences, 0.0, open_low=True, length=count)
    terms = q**2 / p * channels ** (-powers / 4.0) / bounds
    return theorem3_constants(second, fourth, latala)["constant4"] * float(terms.sum())


def _sides(image: int, kernel: int) -> tuple[int, int]:
    kernel = whole("kernel", kernel, 1)
    return whole("image", image, kernel), kernel


def _layer_sides(images: ArrayLike, kernels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p = wholes("images", images, 1)
    q = wholes("kernels", kernels, 1, length=len(p))
    if (q > p).any():
        raise BadInput("kernels must not be larger than the images of their layers, got a larger one.")
    return p, q


def _last_ratio(image: int, d: int, outputs: int) -> float:
    return whole("outputs", outputs, 1) / (whole("image", image, 1) ** 2 * whole("d", d, 1))


def _last_constant(value: float | None, constants: dict[str, float]) -> float:
    """C_5, which the paper leaves open: C_3 unless given."""
    return constants["constant3"] if value is None else positive("last_constant", value)


def _theorem3_terms(
    layers: int,
    image: int,
    kernel: int,
    d: int,
    exponent: float,
    image_exponent: float,
    width_exponent: float,
    constants: dict[str, float],
) -> tuple[int, float, float, float]:
    """Layers, failure of one norm bound, failure of all difference bounds, probability of the mask events."""
    layers, d = whole("layers", layers, 3), whole("d", d, 3)
    image = whole("image", image, 2)
    kernel = whole("kernel", kernel, 1, image)
    cap = theorem3_exponent_cap(d)
    exponent = real("exponent", exponent, 0.0, cap * (1.0 + _ROUNDING), open_low=True)
    image_exponent = probability("image_exponent", image_exponent, open_low=True, open_high=True)
    width_exponent = real("width_exponent", width_exponent, 0.0, exponent / 4.0, open_low=True, open_high=True)
    norms = constants["constant3"] * kernel**2 * image ** (image_exponent - 1.0)
    shrink = d ** (width_exponent - exponent / 4.0)
    differences = (layers - 2) * constants["constant4"] * kernel**2 / image * shrink
    return layers, norms, differences, (1.0 - d ** (-1.0 / 3.0)) ** (2 * (layers - 2))


def _theorem3_error(
    layers: int, image: int, d: int, image_exponent: float, width_exponent: float, lipschitz: float
) -> tuple[float, float]:
    """Norm bound L^(l-1) x^(l-1) of the convolution part, and the error relative to it, (1+y/x)^(l-2)-1."""
    layers, image, d = whole("layers", layers, 3), whole("image", image, 2), whole("d", d, 3)
    image_exponent = probability("image_exponent", image_exponent, open_low=True, open_high=True)
    # Theorem 3 has width_exponent < exponent / 4, and its exponent is below 1.
    width_exponent = real("width_exponent", width_exponent, 0.0, 0.25, open_low=True, open_high=True)
    x, y = image**-image_exponent, d**-width_exponent
    slope = real("lipschitz", lipschitz, 0.0)
    return power(slope * x, layers - 1), excess_power(y / x, layers - 2)
