"""I-9g: is the statement of Lemma A.4 itself false, or only its proof? The best possible use of two neurons."""

from __future__ import annotations

import math

import numpy as np

from prunus.formulas import domain
from prunus.formulas.binding import claim

_STEP = 1 / 32  # tolerance

_REACH = 4  # tolerance


@claim("I-9g")
def best_pair_failure(error: float, resamples: int) -> dict[str, float]:
    """I-9g: failure at target weight 1 when any pair with uv >= 1 - error counts and either neuron takes either sign.

    A neuron can serve x > 0 if its largest u times its largest v reaches c = 1 - error, and x < 0 if its smallest u
    times its smallest v does. With m the chance to miss one role and n the chance to miss both,
    failure = 2 m^2 + 2 n + n^2 - 4 m n: nothing cancels. `independent` takes n = m^2.
    """
    c = 1 - domain.real("error", error, 0.0, 1.0, open_low=True)
    miss_one, miss_both = _misses(c, domain.whole("resamples", resamples, 1))
    failure = 2 * miss_one**2 + 2 * miss_both + miss_both**2 - 4 * miss_one * miss_both
    return {"failure": failure, "independent": (miss_one * (2 - miss_one)) ** 2}


def _misses(c: float, r: int) -> tuple[float, float]:
    """Chances that a neuron misses one role, and both.

    Integrals over the largest u (called a) and minus the smallest u (called b), where they reach c; v must then stay
    below c / a and above -c / b. Logarithms keep the r-th powers in range.
    """
    a, weight = _tanh_sinh(c, 1.0)
    with np.errstate(divide="ignore"):
        limit = c / a
        beyond = r * np.log((1 + limit) / 2)
        one_side = weight @ np.exp((r - 1) * np.log((1 + a) / 2) + beyond) * r / 2
        miss_one = ((1 + c) / 2) ** r + one_side
        # All u above -c, the largest reaching c; twice, for the mirrored event.
        lone = weight @ np.exp((r - 1) * np.log((a + c) / 2) + beyond) * r
        joint = 0.0
        if r > 1:
            spans = (r - 2) * np.log((a[:, None] + a) / 2) + r * np.log((limit[:, None] + limit) / 2)
            joint = weight @ np.exp(spans) @ weight * r * (r - 1) / 4
    return float(miss_one), float(c**r + lone + joint)


def _tanh_sinh(low: float, high: float, step: float = _STEP) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of tanh-sinh quadrature: the mass sits within 1/r of either end for large r."""
    t = np.arange(-_REACH, _REACH + step, step)
    inner = math.pi / 2 * np.sinh(t)
    # Distance to the nearer end, so that nodes close to an end keep their digits.
    share = np.exp(inner) / (2 * np.cosh(inner))
    weights = (high - low) * step * math.pi / 4 * np.cosh(t) / np.cosh(inner) ** 2
    return low + (high - low) * share, weights
