"""Propagation of the error through layers: the papers' induction, its sharp form, joins, losses, confidence.

Qian & Klabjan, induction (20)-(22) (P-14), with biases (P-26), labels (P-27), residual and other joins (P-31g-j),
losses (P-35), and the statistical statements about a measured error (P-28, P-30). `norms` bound the spectral norms of
the weight layers, `differences` those of the pruned parts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from prunus.errors import BadInput
from prunus.formulas.binding import claim
from prunus.formulas.closeness import layer_slopes
from prunus.formulas.domain import delta_in, positive, probability, real, whole
from prunus.formulas.numbers import elementwise, per_layer, reals
from prunus.papers.closeness._numbers import ceil_near, grown

_ROUNDING = 1e-6  # tolerance

_CLOSE = {"xtol": 1e-300, "rtol": 1e-15}  # tolerance


@claim("P-14b")
@elementwise
def equal_norm_error(norm_bound: float, difference: float, layers: int, lipschitz: float = 1.0) -> float:
    """Exact solution of the recursion for equal norms, L c^2((c+t)^(l-2) - c^(l-2)), without cancellation (P-14b)."""
    layers = whole("layers", layers, 3)
    c, t = positive("norm_bound", norm_bound), real("difference", difference, 0.0)
    slope = real("lipschitz", lipschitz, 0.0)
    if t == 0.0 or slope == 0.0:
        return 0.0
    return c * grown(slope * c, layers - 1, t / c, layers - 2)


@claim("P-14c")
@elementwise
def doubling_error(norm_bound: float, difference: float, layers: int, lipschitz: float = 1.0) -> float:
    """The papers' closed form (2^(l-2)-1) t L c^(l-1), valid for t <= c and c >= 1 (P-14c)."""
    layers = whole("layers", layers, 3)
    c = real("norm_bound", norm_bound, 1.0)
    t = real("difference", difference, 0.0, c)
    slope = real("lipschitz", lipschitz, 0.0)
    if t == 0.0 or slope == 0.0:
        return 0.0
    return t * grown(slope * c, layers - 1, 1.0, layers - 2)


@claim("P-14d")
def union_failure(norm_failures: ArrayLike, difference_failures: ArrayLike, mask_failure: float = 0.0) -> float:
    """Failure probability that counts every event once, uniformly over inputs (P-14d)."""
    norms = _probabilities("norm_failures", norm_failures)
    differences = _probabilities("difference_failures", difference_failures)
    return min(1.0, math.fsum(norms) + math.fsum(differences) + probability("mask_failure", mask_failure))


@claim("P-26")
def layer_recursion(
    norms: ArrayLike,
    pruned_norms: ArrayLike,
    differences: ArrayLike,
    biases: ArrayLike | None = None,
    pruned_biases: ArrayLike | None = None,
    bias_differences: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    lipschitz: float | ArrayLike = 1.0,
    radius: float = 1.0,
) -> float:
    """Error of a pruned network from the norms of both networks, with biases, over a ball around 0 (P-26).

    Both ways of splitting W y - V y' are tried in every layer, with the output radii of both networks; `offsets` are
    the norms of the activations at zero.
    """
    w = reals("norms", norms, 0.0)
    count = len(w)
    v = reals("pruned_norms", pruned_norms, 0.0, length=count)
    d = reals("differences", differences, 0.0, length=count)
    b = _optional("biases", biases, np.zeros(count))
    vb = _optional("pruned_biases", pruned_biases, b)
    db = _optional("bias_differences", bias_differences, np.zeros(count))
    at_zero = np.append(_optional("offsets", offsets, np.zeros(count - 1)), 0.0)
    slopes = layer_slopes(lipschitz, count)
    error, reach = 0.0, real("radius", radius, 0.0)
    pruned_reach = reach
    for k in range(count):
        through_pruned = v[k] * error + d[k] * reach
        through_original = w[k] * error + d[k] * pruned_reach
        error = slopes[k] * (min(through_pruned, through_original) + db[k])
        reach = slopes[k] * (w[k] * reach + b[k]) + at_zero[k]
        pruned_reach = slopes[k] * (v[k] * pruned_reach + vb[k]) + at_zero[k]
    return float(error)


@claim("P-28b")
@elementwise
def conformal_rank(n: int, delta: float) -> dict[str, int | bool]:
    """Rank ceil((n+1)(1-delta)) of the split-conformal quantile, and whether n points are enough (P-28b)."""
    n = whole("n", n, 1)
    rank = ceil_near((n + 1) * (1.0 - delta_in(delta)))
    return {"rank": rank, "finite": rank <= n}


@claim("P-31g")
@elementwise
def batch_norm_fold(
    weight: float, bias: float, scale: float, shift: float, mean: float, variance: float, stabilizer: float
) -> dict[str, float]:
    """Weight and bias after folding batch normalization in evaluation mode (P-31g)."""
    total = real("variance", variance, 0.0) + real("stabilizer", stabilizer, 0.0)
    if total == 0.0:
        raise BadInput("variance + stabilizer must be a finite number above 0, got 0.")
    factor = real("scale", scale) / math.sqrt(total)
    return {
        "weight": real("weight", weight) * factor,
        "bias": real("shift", shift) + (real("bias", bias) - real("mean", mean)) * factor,
    }


@claim("P-31h")
@elementwise
def residual_error(skip_norm: float, error: float, branch_error: float) -> float:
    """Error after a residual connection; radii combine in the same way (P-31h)."""
    skipped = real("skip_norm", skip_norm, 0.0) * real("error", error, 0.0)
    return skipped + real("branch_error", branch_error, 0.0)


@claim("P-31i")
def concatenation_error(errors: ArrayLike) -> float:
    """Error after concatenation: the root of the sum of squares (P-31i)."""
    return math.hypot(*reals("errors", errors, 0.0).tolist())


@claim("P-31j")
def softmax_jacobian_norm(probabilities: ArrayLike) -> dict[str, float]:
    """Norm of the softmax derivative diag(p)-pp^T at class probabilities p, never above 1/2 (P-31j).

    The largest eigenvalue lies between the two largest probabilities, where sum p_i^2/(p_i-x) = 1.
    """
    p = np.sort(_probabilities("probabilities", probabilities))[::-1]
    if abs(p.sum() - 1.0) > _ROUNDING:
        raise BadInput(f"probabilities must sum to 1, got a sum of {p.sum():.10g}.")
    top, second = float(p[0]), float(p[1]) if len(p) > 1 else 0.0
    if second == 0.0:
        return {"norm": 0.0, "bound": 0.5}
    low, high = math.nextafter(second, 1.0), math.nextafter(top, 0.0)
    if low >= high:
        return {"norm": top, "bound": 0.5}
    norm = optimize.brentq(lambda x: 1.0 - float((p * p / (p - x)).sum()), low, high, **_CLOSE)
    return {"norm": float(norm), "bound": 0.5}


@claim("P-35a")
@elementwise
def cross_entropy_change(error: float) -> float:
    """Change of the cross-entropy from the distance of the logits: its gradient has norm <= sqrt 2 (P-35a)."""
    return math.sqrt(2.0) * real("error", error, 0.0)


@claim("P-35b")
@elementwise
def squared_error_change(error: float, residual: float) -> float:
    """Change of |output-target|^2 when both outputs are within `residual` of the target (P-35b)."""
    return 2.0 * real("residual", residual, 0.0) * real("error", error, 0.0)


def _optional(name: str, value: ArrayLike | None, default: NDArray[np.float64]) -> NDArray[np.float64]:
    return default if value is None else per_layer(name, value, len(default))


def _probabilities(name: str, value: ArrayLike) -> NDArray[np.float64]:
    numbers = reals(name, value, 0.0)
    if numbers.max() > 1.0:
        raise BadInput(f"{name} must hold numbers in [0, 1], got {numbers.max():g}.")
    return numbers
