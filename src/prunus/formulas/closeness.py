"""How far a pruned network can be from the original: the parts that certificates use (P-14a, P-15e, P-17e, P-22d)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from prunus.formulas.binding import claim
from prunus.formulas.domain import delta_in, positive, probability, real, whole
from prunus.formulas.numbers import elementwise, per_layer, reals


@claim("P-16a")
@elementwise
def theorem1_prime_difference(rows: int, columns: int, threshold: float, delta: float, unimodal: bool = True) -> float:
    """Norm of the pruned part with probability 1-delta, given the smallest kept magnitude (Theorem 1', P-16a).

    For independent symmetric weights of any unimodal law; `unimodal=False` drops unimodality at twice the constant.
    """
    sides = math.sqrt(whole("rows", rows, 1)) + math.sqrt(whole("columns", columns, 1))
    constant = math.sqrt(2.0 * math.pi) / 4.0 if unimodal else math.sqrt(math.pi / 2.0)
    return real("threshold", threshold, 0.0) * (constant * sides + math.sqrt(-8.0 * math.log(delta_in(delta))))


@claim("P-24c")
@elementwise
def sample_moment_constants(variance: float, kurtosis: float, rows: int, columns: int) -> dict[str, float]:
    """K_1 and K_2 measured on a trained layer (P-24c); `variance` is the second moment, the mean included."""
    second = positive("variance", variance) * max(whole("rows", rows, 1), whole("columns", columns, 1))
    return {"second": second, "fourth": real("kurtosis", kurtosis, 1.0) * second**2}


@claim("P-14a")
def recursion_error(
    norms: ArrayLike, differences: ArrayLike, lipschitz: float | ArrayLike = 1.0, radius: float = 1.0
) -> float:
    """Error of a pruned network over a ball of inputs, from norms alone (induction (20)-(22), P-14a).

    e_k = L_k((N_k+t_k)e_(k-1) + t_k radius L_(1:k-1) N_(1:k-1)), e_0 = 0; the output layer has no activation.
    """
    n = reals("norms", norms, 0.0)
    t = reals("differences", differences, 0.0, length=len(n))
    slopes = layer_slopes(lipschitz, len(n))
    error, reach = 0.0, real("radius", radius, 0.0)
    for norm, difference, slope in zip(n.tolist(), t.tolist(), slopes.tolist()):
        error = slope * ((norm + difference) * error + difference * reach)
        reach *= slope * norm
    return error


@claim("P-27")
@elementwise
def label_margin(error: float) -> float:
    """Margin of the original network's top score above which the pruned network keeps the label (P-27)."""
    return math.sqrt(2.0) * real("error", error, 0.0)


def layer_slopes(lipschitz: Any, layers: int) -> NDArray[np.float64]:
    """Lipschitz constants of the hidden activations, and 1 for the output layer."""
    return np.append(per_layer("lipschitz", lipschitz, layers - 1), 1.0)


@claim("P-16b")
@elementwise
def threshold_quantile(n: int, r: int, delta: float, half_width: float = 1.0) -> float:
    """Level that the smallest kept magnitude of uniform weights exceeds with probability delta (P-16b)."""
    n = whole("n", n, 1)
    r = whole("r", r, 0, n - 1)
    delta = probability("delta", delta, open_low=True, open_high=True)
    return positive("half_width", half_width) * float(special.betainccinv(r + 1, n - r, delta))
