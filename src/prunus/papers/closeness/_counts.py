"""How many weights the theorems prune, and what random and global magnitude pruning draw (P-1 to P-4, P-13).

The theorems' `exponent` fixes the number pruned: floor(D^(1-exponent)) of D weights in Theorems 1 and 2,
floor(d^(2-exponent)) of d^2 kernels in Theorem 3, so the latter exponent is twice the former.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from prunus.formulas.binding import claim, printed
from prunus.formulas.domain import choice, probability, real, whole
from prunus.formulas.numbers import elementwise, reals
from prunus.papers.closeness._loads import balls_needed
from prunus.papers.closeness._numbers import ceil_near, floor_near, rate, stirling, wholes

_SLACK = 1e-9  # tolerance

_CLOSE = {"xtol": 1e-300, "rtol": 1e-14}  # tolerance


@claim("P-1")
@elementwise
def cube_radius(image: int, channels: int) -> dict[str, float]:
    """Largest norm of an input in the unit cube of images, and the radius around the cube's midpoint (P-1)."""
    radius = whole("image", image, 1) * math.sqrt(whole("channels", channels, 1))
    return {"radius": radius, "half_diagonal": radius / 2.0}


@claim("P-2a")
@elementwise
def pruned_weights(weights: int, exponent: float) -> dict[str, float]:
    """Number of weights Theorems 1 and 2 prune from a layer of D weights, floor(D^(1-exponent)) (P-2a)."""
    weights = whole("weights", weights, 2)
    exponent = real("exponent", exponent, 0.0, 1.0)
    pruned = floor_near(float(weights) ** (1.0 - exponent))
    return {"pruned": pruned, "sparsity": pruned / weights, "density": (weights - pruned) / weights}


@claim("P-2b")
@elementwise
def exponent_for_sparsity(weights: int, sparsity: float) -> float:
    """Exponent at which the theorems would prune the given fraction: tiny for useful rates (P-2b)."""
    weights = whole("weights", weights, 2)
    return 0.0 - math.log(probability("sparsity", sparsity, open_low=True)) / math.log(weights)


@claim("P-2c")
@elementwise
def pruned_from_density(weights: int, density: float) -> int:
    """floor((1-density)D), the number pruned when a fraction is kept (Sec. 3 corrected, P-2c)."""
    weights = whole("weights", weights, 1)
    return weights - ceil_near(probability("density", density) * weights)  # 1 - density would lose digits


@printed("P-2c")
@elementwise
def pruned_from_density_printed(weights: int, density: float) -> int:
    """floor(density D), as printed: defined as the kept fraction, then used as the pruned one."""
    weights = whole("weights", weights, 1)
    return floor_near(probability("density", density) * weights)


@claim("P-3a")
@elementwise
def distinct_mean(weights: int, count: int) -> float:
    """Expected number of distinct zeros after `count` draws with replacement, D(1-(1-1/D)^N) (P-3a)."""
    weights, count = whole("weights", weights, 1), whole("count", count, 0)
    if weights == 1:
        return float(min(count, 1))
    return -weights * math.expm1(count * math.log1p(-1.0 / weights)) + 0.0


@claim("P-3b")
@elementwise
def no_repeat_probability(weights: int, count: int) -> dict[str, float]:
    """Probability that draws with replacement never repeat, D!/((D-N)! D^N) (App. E.2 corrected, P-3b)."""
    weights, count = whole("weights", weights, 1), whole("count", count, 0)
    log_p = _log_no_repeat(weights, count)
    return {
        "probability": math.exp(log_p),
        "log_probability": log_p,
        "approximation": math.exp(-count * (count - 1) / (2 * weights)),
    }


@printed("P-3b")
@elementwise
def no_repeat_probability_printed(weights: int, count: int) -> dict[str, float]:
    """d^2/d^(2N) as printed: the factorial signs are lost."""
    weights, count = whole("weights", weights, 1), whole("count", count, 0)
    log_p = (1 - count) * math.log(weights)
    return {"probability": math.exp(log_p), "log_probability": log_p}


@claim("P-3c")
@elementwise
def without_replacement_failure(weights: int, count: int, failure: float) -> float:
    """Failure without replacement: failure with it over the no-repeat probability, capped (P-3c).

    App. E.2 multiplies instead. Useless once count exceeds the root of weights: count directly (P-12c) there.
    """
    weights = whole("weights", weights, 1)
    count = whole("count", count, 0, weights)
    failure = probability("failure", failure)
    if failure == 0.0:
        return 0.0
    return math.exp(min(0.0, math.log(failure) - _log_no_repeat(weights, count)))


@claim("P-4")
def global_threshold(weights: ArrayLike, scales: ArrayLike, sparsity: float, law: str = "normal") -> dict[str, object]:
    """Threshold and layer shares of global magnitude pruning: sum_k D_k F_k(threshold) = N (App. E.3, P-4)."""
    sizes, widths, sparsity = _layers(weights, scales, sparsity, law)
    if sparsity == 0.0:
        return {"threshold": 0.0, "shares": [0.0] * len(sizes)}
    if law == "uniform":
        threshold = _uniform_threshold(sizes, widths, sparsity)
        shares = np.minimum(1.0, threshold / widths)
    else:
        threshold = _normal_threshold(sizes, widths, sparsity)
        shares = special.erf(threshold / (widths * math.sqrt(2.0)))
    return {"threshold": threshold, "shares": [float(share) for share in shares]}


@printed("P-4")
def global_threshold_printed(
    weights: ArrayLike, scales: ArrayLike, sparsity: float, law: str = "normal"
) -> dict[str, object]:
    """The overall sparsity for every layer, as App. E.3 concludes from Lemma 6."""
    sizes, _, sparsity = _layers(weights, scales, sparsity, law)
    return {"shares": [sparsity] * len(sizes)}


@claim("P-13a")
@elementwise
def theorem2_exponent_cap(rows: int, columns: int) -> dict[str, float]:
    """Largest admissible exponent of Theorem 2: enough balls for Lemma 6 in rows and columns ((3), (4), P-13a)."""
    rows, columns = whole("rows", rows, 3), whole("columns", columns, 3)
    cap, balls = _cap(rows, columns, 1.0)
    return {"cap": cap, "balls": balls, "needed": balls_needed(max(rows, columns))}


@printed("P-13a")
@elementwise
def theorem2_exponent_cap_printed(rows: int, columns: int) -> dict[str, float]:
    """The cap with -log log n as printed in (3), (4): it throws far too few balls."""
    cap, balls = _cap(whole("rows", rows, 3), whole("columns", columns, 3), -1.0)
    return {"cap": cap, "balls": balls}


@claim("P-13b")
@elementwise
def theorem3_exponent_cap(d: int) -> float:
    """Largest admissible exponent of Theorem 3, for d channels (P-13b)."""
    d = whole("d", d, 3)
    return 2.0 - (math.log(d + 1.0) + math.log(math.log(d))) / math.log(d)


def _cap(rows: int, columns: int, sign: float) -> tuple[float, float]:
    log_weights = math.log(rows) + math.log(columns)
    need = max(math.log(n + 1.0) + sign * math.log(math.log(n)) for n in (rows, columns))
    return 1.0 - need / log_weights, math.exp(need)


def _log_no_repeat(weights: int, count: int) -> float:
    if count > weights:
        return -math.inf
    if count <= 10_000:  # tolerance
        return float(np.log1p(-np.arange(float(count)) / weights).sum()) + 0.0
    left = weights - count
    if left < 16:  # tolerance
        return math.lgamma(weights + 1.0) - math.lgamma(left + 1.0) - count * math.log(weights)
    # Stirling on both factorials; the leading terms combine to -D rate(-N/D), where a difference would cancel.
    x = count / weights
    return -weights * rate(-x) - 0.5 * math.log1p(-x) + stirling(weights) - stirling(left)


def _layers(
    weights: ArrayLike, scales: ArrayLike, sparsity: float, law: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    choice("law", law, ("normal", "uniform"))
    sizes = wholes("weights", weights, 1)
    widths = reals("scales", scales, 0.0, open_low=True, length=len(sizes))
    return sizes, widths, probability("sparsity", sparsity, open_high=law == "normal")


def _uniform_threshold(sizes: NDArray[np.float64], widths: NDArray[np.float64], sparsity: float) -> float:
    """The smallest root of a piecewise linear function: layers fill up in the order of their widths."""
    order = np.argsort(widths)
    sizes, widths = sizes[order], widths[order]
    wanted = sparsity * sizes.sum()
    full = 0.0
    for k in range(len(sizes)):
        threshold = (wanted - full) / (sizes[k:] / widths[k:]).sum()
        if threshold <= widths[k]:
            return float(threshold)
        full += sizes[k]
    return float(widths[-1])  # all weights, up to rounding


def _normal_threshold(sizes: NDArray[np.float64], widths: NDArray[np.float64], sparsity: float) -> float:
    shares = sizes / sizes.sum()
    root = math.sqrt(2.0)
    low_half = sparsity <= 0.5  # tolerance
    unit = root * float(special.erfinv(sparsity) if low_half else special.erfcinv(1.0 - sparsity))

    def gap(threshold: float) -> float:
        z = threshold / (widths * root)
        if low_half:
            return float(shares @ special.erf(z)) - sparsity
        return (1.0 - sparsity) - float(shares @ special.erfc(z))

    low, high = unit * float(widths.min()) * (1.0 - _SLACK), unit * float(widths.max()) * (1.0 + _SLACK)
    return float(optimize.brentq(gap, low, high, **_CLOSE))
