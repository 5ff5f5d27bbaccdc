"""Privacy of the released indices (N-7, N-14, N-15), derived from the swap law.

Two centres (true top sets) at swap distance j differ in j indices each way. For every released set the log ratio of
its probabilities is 2 theta (X_A - X_B), where X_A counts the released ones of the j indices of the first centre and
X_B those of the second: at most 2 theta j, with equality at the first centre itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prunus.errors import BadInput
from prunus.theory import _domain
from prunus.theory.swaps._counts import law_of
from prunus.theory.swaps._law import Array, outward

_CUT = 1e-40  # accuracy only


def swap_privacy(theta: float, swaps: int) -> dict[str, float]:
    """N-7a: metric privacy of the indices, 2 theta per exchanged index; tight."""
    theta = _domain.real("theta", theta, 0.0)
    return {"epsilon": 2.0 * theta * _domain.whole("swaps", swaps, 0), "per_swap": 2.0 * theta}


def local_privacy(d: int, m: int, theta: float) -> dict[str, Any]:
    """N-7b: pure local privacy of the indices, 2 theta min(m, d-m); tight. Sensitivity is in Hamming distance."""
    most = _most(d, m)
    return {"epsilon": 2.0 * _domain.real("theta", theta, 0.0) * most, "sensitivity": 2 * most}


def theta_for_local_epsilon(d: int, m: int, epsilon: float) -> float:
    """N-7c: concentration with a wanted pure local privacy, epsilon / (2 min(m, d-m)).

    Twice what the generic exponential mechanism would allow: the normaliser does not depend on the centre.
    """
    return _domain.real("epsilon", epsilon, 0.0) / (2.0 * _most(d, m))


def theta_for_swap_epsilon(epsilon: float) -> float:
    """N-7d: concentration with a wanted metric privacy per exchanged index, epsilon / 2."""
    return 0.5 * _domain.real("epsilon", epsilon, 0.0)


def leakage(m: int, others: int, theta: float, swaps: int) -> dict[str, float]:
    """N-7e: Kullback-Leibler divergence at a swap distance, and how likely true and other indices are released."""
    law = law_of(m, others, theta)
    swaps = _domain.whole("swaps", swaps, 0, law.most)
    # The gain is kept - inclusion without their cancellation near theta = 0.
    divergence = 2.0 * law.theta * swaps * law.gain * (1.0 / law.m + 1.0 / law.others)
    return {"divergence": divergence, "kept": 1.0 - law.mean / law.m, "inclusion": law.mean / law.others}


def privacy_delta(m: int, others: int, theta: float, swaps: int, epsilon: ArrayLike) -> Any:
    """N-7f: exact privacy curve, E(1 - exp(epsilon - L))_+; `epsilon` may be an array. 0 from 2 theta swaps on."""
    losses, logs = loss_law(m, others, theta, swaps)
    level = _domain.reals("epsilon", epsilon, 0.0)
    gaps = np.minimum(level[..., None] - losses, 0.0)
    delta = -(np.expm1(gaps) * np.exp(logs)).sum(axis=-1)
    return _domain.plain(np.clip(delta, 0.0, 1.0))


def renyi_divergence(m: int, others: int, theta: float, swaps: int, order: ArrayLike) -> Any:
    """N-7g: exact Renyi divergence log E exp((order-1) L) / (order-1); `order` may be an array."""
    losses, logs = loss_law(m, others, theta, swaps)
    power = _domain.reals("order", order, 1.0, open_low=True) - 1.0
    exponents = power[..., None] * losses
    with np.errstate(over="ignore"):
        # Close to order 1 the logarithm is of a number close to 1.
        near = np.log1p((np.expm1(np.minimum(exponents, 1.0)) * np.exp(logs)).sum(axis=-1))
    far = special.logsumexp(exponents + logs, axis=-1)
    return _domain.plain(np.where(exponents.max(axis=-1) < 1.0, near, far) / power)


def loss_law(m: int, others: int, theta: float, swaps: int) -> tuple[Array, Array]:
    """Law of the privacy loss L at swap distance `swaps`: values 2 theta (-swaps .. swaps) and log probabilities.

    Given the rest of the index set the two groups of `swaps` indices are independent randomised responses, so with
    T(s) the weight of all completions by m - s indices of the rest, P(X_A = a, X_B = b) is proportional to
    C(j, a) C(j, b) exp(-theta (j - a + b)) T(a + b). Exact; O(swaps) windows of the swap law.
    """
    law = law_of(m, others, theta)
    return _loss_law(law.m, law.others, law.theta, _domain.whole("swaps", swaps, 1, law.most))


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
    width = int(14.0 * math.sqrt(law_of(m, others, theta).saddle[1])) + 24  # accuracy only
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

        def down(u: Any, shift: int = shift) -> Any:
            return u * (u + shift) / ((size - u + 1.0) * (rest - shift - u + 1.0) * q)

        mode = _first_fall(up, low, high)
        level = 0.0 if anchor is None else _carried(anchor, mode, s, (size, rest, j, theta), up)
        anchor = (mode, level)
        above = outward(up, mode, 1, high - mode, width, _CUT)
        below = outward(down, mode, -1, mode - low, width, _CUT)
        result.append(level + math.log1p(float(above.sum()) + float(below.sum())))
    return result


def _carried(anchor: tuple[int, float], mode: int, s: int, sizes: tuple[int, int, int, float], up: Any) -> float:
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
        level += math.log(up(u))
        u += 1
    while u > mode:
        u -= 1
        level -= math.log(up(u))
    return level


def _first_fall(up: Any, low: int, high: int) -> int:
    """Smallest u in [low, high] whose ratio to the next is below 1; the ratios fall."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if up(middle) < 1.0 else (middle + 1, high)
    return low


def gain_over_random(d: int, m: int, theta: float) -> dict[str, float]:
    """N-14: kept fraction of the true top set to first order in theta, k + 2 theta k (1-k)^2.

    Under the worst-case calibration of a whole gradient the gain is lost in rounding: the noisy top-k is a random mask.
    """
    _most(d, m)
    k = m / d
    gain = 2.0 * _domain.real("theta", theta, 0.0) * k * (1.0 - k) ** 2
    return {"kept": k + gain, "gain": gain}


def grouped_privacy(sizes: Sequence[int], kept: Sequence[int], theta: float) -> dict[str, float]:
    """N-15: worst-case privacy of independent draws in groups, 2 theta times the sum of min(kept, size - kept)."""
    theta = _domain.real("theta", theta, 0.0)
    if len(sizes) != len(kept) or len(sizes) == 0:
        raise BadInput(f"sizes and kept must be equally long and not empty, got {len(sizes)} and {len(kept)} groups.")
    most = 0
    for number, (size, count) in enumerate(zip(sizes, kept)):
        size = _domain.whole(f"sizes[{number}]", size, 1)
        count = _domain.whole(f"kept[{number}]", count, 0, size)
        most += min(count, size - count)
    return {"epsilon": 2.0 * theta * most, "per_swap": 2.0 * theta}


def _most(d: int, m: int) -> int:
    d = _domain.whole("d", d, 2)
    m = _domain.whole("m", m, 1, d - 1)
    return min(m, d - m)
