"""Privacy of a selection that was perturbed by swaps: pure, approximate and Renyi; amplification by sampling."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.formulas import domain
from prunus.formulas.binding import claim
from prunus.formulas.swap_counts import law_of
from prunus.formulas.swap_law import Array, outward

_CUT = 1e-40  # tolerance


@claim("N-7a")
def swap_privacy(theta: float, swaps: int) -> dict[str, float]:
    """N-7a: metric privacy of the indices, 2 theta per exchanged index; tight."""
    theta = domain.real("theta", theta, 0.0)
    return {"epsilon": 2.0 * theta * domain.whole("swaps", swaps, 0), "per_swap": 2.0 * theta}


@claim("N-7c")
def theta_for_local_epsilon(d: int, m: int, epsilon: float) -> float:
    """N-7c: concentration with a wanted pure local privacy, epsilon / (2 min(m, d-m)).

    Twice what the generic exponential mechanism would allow: the normaliser does not depend on the centre.
    """
    return domain.real("epsilon", epsilon, 0.0) / (2.0 * most_swaps(d, m))


@claim("N-7d")
def theta_for_swap_epsilon(epsilon: float) -> float:
    """N-7d: concentration with a wanted metric privacy per exchanged index, epsilon / 2."""
    return 0.5 * domain.real("epsilon", epsilon, 0.0)


@claim("N-7e")
def leakage(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-7e: Kullback-Leibler divergence at a swap distance, and how likely true and other indices are released."""
    law = law_of(m, others, theta)
    swaps = domain.whole("swaps", swaps, 0, law.most)
    # The gain is kept - inclusion without their cancellation near theta = 0.
    divergence = 2.0 * law.theta * swaps * law.gain * (1.0 / law.m + 1.0 / law.others)
    return {"divergence": divergence, "kept": 1.0 - law.mean / law.m, "inclusion": law.mean / law.others}


@claim("N-7f")
def privacy_delta(m: int, others: int, theta: float, swaps: int, epsilon: ArrayLike) -> Any:
    """N-7f: exact privacy curve, E(1 - exp(epsilon - L))_+; `epsilon` may be an array. 0 from 2 theta swaps on."""
    losses, logs = loss_law(m, others, theta, swaps)
    level = domain.reals("epsilon", epsilon, 0.0)
    gaps = np.minimum(level[..., None] - losses, 0.0)
    delta = -(np.expm1(gaps) * np.exp(logs)).sum(axis=-1)
    return domain.plain(np.clip(delta, 0.0, 1.0))


@claim("N-7g")
def renyi_divergence(m: int, others: int, theta: float, swaps: int, order: ArrayLike) -> Any:
    """N-7g: exact Renyi divergence log E exp((order-1) L) / (order-1); `order` may be an array."""
    losses, logs = loss_law(m, others, theta, swaps)
    power = domain.reals("order", order, 1.0, open_low=True) - 1.0
    exponents = power[..., None] * losses
    with np.errstate(over="ignore"):
        # Close to order 1 the logarithm is of a number close to 1.
        near = np.log1p((np.expm1(np.minimum(exponents, 1.0)) * np.exp(logs)).sum(axis=-1))
    far = special.logsumexp(exponents + logs, axis=-1)
    return domain.plain(np.where(exponents.max(axis=-1) < 1.0, near, far) / power)


def loss_law(m: int, others: int, theta: float, swaps: int) -> tuple[Array, Array]:
    """Law of the privacy loss L at swap distance `swaps`: values 2 theta (-swaps .. swaps) and log probabilities.

    Given the rest of the index set the two groups of `swaps` indices are independent randomised responses, so with
    T(s) the weight of all completions by m - s indices of the rest, P(X_A = a, X_B = b) is proportional to
    C(j, a) C(j, b) exp(-theta (j - a + b)) T(a + b). Exact; O(swaps) windows of the swap law.
    """
    law = law_of(m, others, theta)
    return _loss_law(law.m, law.others, law.theta, domain.whole("swaps", swaps, 1, law.most))


@lru_cache
def _loss_law(m: int, others: int, theta: float, j: int) -> tuple[Array, Array]:
    if theta == 0.0:
        return np.zeros(1), np.zeros(1)
    completions = _completions(m, others, theta, j)
    steps = np.arange(j, dtype=np.float64)
    binomial = np.concatenate((np.zeros(1), np.cumsum(np.log((j - steps) / (steps + 1.0)))))
    logs = np.full(2 * j + 1, -np.inf)
    for total, completion in enumerate(completions):
        if completion == -math.inf:
            continue
        a = np.arange(max(0, total - j), min(j, total) + 1)
        b = total - a
        terms = binomial[a] + binomial[b] - theta * (j - a + b) + completion
        place = a - b + j
        logs[place] = np.logaddexp(logs[place], terms)
    losses: Array = 2.0 * theta * np.arange(-j, j + 1, dtype=np.float64)
    logs = np.asarray(logs - special.logsumexp(logs), dtype=np.float64)
    losses.flags.writeable = logs.flags.writeable = False
    return losses, logs


def _completions(m: int, others: int, theta: float, j: int) -> list[float]:
    """log T(s) for s = 0 .. 2j up to a constant, T(s) = sum over u of C(M, u) C(N, e) exp(-theta (u + e)).

    u of the M = m - j other true indices are lost, e = u + j - s of the N = others - j remaining ones come in. The
    largest term of each s is reached from that of the one before by a few ratios, so no digits are lost.
    """
    size, rest, q = m - j, others - j, math.exp(-2.0 * theta)
    width = int(14.0 * math.sqrt(law_of(m, others, theta).saddle[1])) + 24  # tolerance
    result: list[float] = []
    anchor: tuple[int, float] | None = None
    for s in range(2 * j + 1):
        shift = j - s
        low, high = max(0, -shift), min(size, rest - shift)
        if low > high:
            result.append(-math.inf)
            anchor = None
            continue

        def up(u: Any, shift: int = shift) -> Any:
            return (size - u) * (rest - shift - u) * q / ((u + 1.0) * (u + shift + 1.0))

        def log_up(u: int, shift: int = shift) -> float:  # exp(-2 theta) may be too small for a float
            return math.log((size - u) * (rest - shift - u) / ((u + 1.0) * (u + shift + 1.0))) - 2.0 * theta

        def down(u: Any, shift: int = shift) -> Any:
            return u * (u + shift) / ((size - u + 1.0) * (rest - shift - u + 1.0) * q)

        mode = _first_fall(up, low, high)
        level = 0.0 if anchor is None else _carried(anchor, mode, s, (size, rest, j, theta), log_up)
        anchor = (mode, level)
        above = outward(up, mode, 1, high - mode, width, _CUT)
        below = outward(down, mode, -1, mode - low, width, _CUT)
        result.append(level + math.log1p(float(above.sum()) + float(below.sum())))
    return result


def _carried(anchor: tuple[int, float], mode: int, s: int, sizes: tuple[int, int, int, float], log_up: Any) -> float:
    """log of the term at (mode, s) from that at the mode of s - 1: one step to s, then along u."""
    size, rest, j, theta = sizes
    u, level = anchor
    if u < size:
        level += math.log((size - u) / (u + 1.0)) - theta
        u += 1
    else:
        coming = u + j - (s - 1)
        level += math.log(coming / (rest - coming + 1.0)) + theta
    while u < mode:
        level += log_up(u)
        u += 1
    while u > mode:
        u -= 1
        level -= log_up(u)
    return level


def _first_fall(up: Any, low: int, high: int) -> int:
    """Smallest u in [low, high] whose ratio to the next is below 1; the ratios fall."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if up(middle) < 1.0 else (middle + 1, high)
    return low


def most_swaps(d: int, m: int) -> int:
    d = domain.whole("d", d, 2)
    m = domain.whole("m", m, 1, d - 1)
    return min(m, d - m)


@claim("N-10g")
def subsampled_privacy(epsilon: float, sampling: float, delta: float = 0.0) -> dict[str, float]:
    """N-10g: privacy after subsampling, ln(1 + sampling (exp(epsilon) - 1)); only if nobody learns who took part."""
    epsilon = domain.real("epsilon", epsilon, 0.0)
    sampling = domain.probability("sampling", sampling, open_low=True)
    delta = domain.real("delta", delta, 0.0)
    if epsilon < 1.0:  # tolerance
        reduced = math.log1p(sampling * math.expm1(epsilon))
    else:
        reduced = epsilon + math.log(sampling + (1.0 - sampling) * math.exp(-epsilon))
    return {"epsilon": reduced, "delta": sampling * delta}
