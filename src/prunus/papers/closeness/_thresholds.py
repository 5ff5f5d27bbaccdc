"""Order statistics of weights and what magnitude pruning takes from them (Qian & Klabjan, Lemma 1, App. C.1, E.1).

`n` weights, `r` the rank of a magnitude counted from the smallest, or the number of pruned weights. Uniform weights
have half-width `half_width`; other laws are given by their standard deviation `sigma`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import special

from prunus.formulas.binding import claim, printed
from prunus.formulas.domain import choice, positive, real, whole
from prunus.formulas.numbers import elementwise
from prunus.papers.closeness._numbers import log_gamma_ratio

Array = NDArray[np.float64]

# An integrand DROP nats below its peak is nothing in float64; left of the logit TAIL every quantile function here is
# linear in u, to full precision.
DROP = 60.0  # tolerance

TAIL = -60.0  # tolerance

BISECTIONS = 30  # tolerance

ORDER, COARSE_ORDER = 16, 10  # tolerance

PANELS = 20  # tolerance

MOST_POWER = 1e4  # nodes of the integrals grow with the power
LAWS = ("normal", "uniform", "laplace")


@claim("P-5")
@elementwise
def squared_order_moment(n: int, r: int, power: float = 1.0, half_width: float = 1.0) -> float:
    """E X_(r)^power of squared uniform weights X (Lemma 1, P-5), for any real power > -r/2.

    a^(2p) Gamma(r+2p) Gamma(n+1) / (Gamma(r) Gamma(n+2p+1)).
    """
    n, r = _rank(n, r)
    power = real("power", power, -r / 2, open_low=True)
    half_width = positive("half_width", half_width)
    twice = 2.0 * power
    return float(half_width**twice * math.exp(log_gamma_ratio(r, twice) - log_gamma_ratio(n + 1.0, twice)))


@claim("P-6a")
@elementwise
def pruned_entry_moments(n: int, r: int, half_width: float = 1.0) -> dict[str, float]:
    """Second and fourth moment of an entry of the pruned difference (P-6a): zero unless among the r smallest.

    The proof of Theorem 1 bounds every entry by the r-th order statistic instead: see `pruned_entry_moments_printed`.
    """
    n = whole("n", n, 1)
    r = whole("r", r, 0, n)
    half_width = positive("half_width", half_width)
    second = half_width**2 * math.prod((r + i) / (n + i) for i in range(3)) / 3.0
    fourth = half_width**4 * math.prod((r + i) / (n + i) for i in range(5)) / 5.0
    return {"second": second, "fourth": fourth}


@printed("P-6a")
@elementwise
def pruned_entry_moments_printed(n: int, r: int, half_width: float = 1.0) -> dict[str, float]:
    """The bounds E X_(r) and E X_(r)^2 that the proof of Theorem 1 uses for every entry."""
    n = whole("n", n, 1)
    r = whole("r", r, 0, n)
    half_width = positive("half_width", half_width)
    if r == 0:
        return {"second": 0.0, "fourth": 0.0}
    return {
        "second": squared_order_moment(n, r, 1.0, half_width),
        "fourth": squared_order_moment(n, r, 2.0, half_width),
    }


@claim("P-6b")
@elementwise
def pruned_threshold_mean(n: int, r: int, half_width: float = 1.0) -> float:
    """E |W|_(r+1), the smallest kept magnitude of uniform weights (P-6b)."""
    n = whole("n", n, 1)
    r = whole("r", r, 0, n - 1)
    return positive("half_width", half_width) * (r + 1) / (n + 1)


@claim("P-6c")
@elementwise
def pruned_entry_correlation(n: int, r: int) -> float:
    """Correlation of the squares of two entries of the pruned difference (P-6c); not zero, so Lemma 4 needs care.

    In rational arithmetic: covariance and product of means agree to about n digits of each other.
    """
    n = whole("n", n, 2)
    r = whole("r", r, 1, n)
    second = Fraction(math.prod(r + i for i in range(3)), 3 * math.prod(n + i for i in range(3)))
    fourth = Fraction(math.prod(r + i for i in range(5)), 5 * math.prod(n + i for i in range(5)))
    both = Fraction(r * (r - 1) * math.prod(r + i for i in range(1, 5)), 9 * n * (n - 1))
    both /= math.prod(n + i for i in range(1, 5))
    return float((both - second**2) / (fourth - second**2))


@claim("P-22a")
@elementwise
def magnitude_order_moment(n: int, r: int, power: float = 1.0, sigma: float = 1.0, law: str = "normal") -> float:
    """E |W|_(r)^power of independent weights (P-22a), exactly: F(|W|_(r)) is Beta(r, n-r+1).

    Replaces Theorem 4 of App. C.1, which centres nothing and is about the m-th largest.
    """
    n, r = _rank(n, r)
    power = real("power", power, -float(r), MOST_POWER, open_low=True)
    sigma = positive("sigma", sigma)
    law = choice("law", law, LAWS)
    if law == "uniform":
        return squared_order_moment(n, r, power / 2.0, sigma * math.sqrt(3.0))
    t, weights, left = _logit_nodes(n, r, power)
    logs = _log_beta(t, n, r)
    density = np.exp(logs) * weights
    # In one exponential: far out the density vanishes where the power passes every float.
    total = float((np.exp(logs + power * np.log(_quantile(t, law))) * weights).sum())
    if left > TAIL:
        return float(sigma**power * total / float(density.sum()))
    # Left of TAIL the integrand is exponential with rate r + power: what is left is its value there over the rate.
    edge = np.array([TAIL])
    rest = math.exp(_log_beta(edge, n, r)[0]) * _quantile(edge, law)[0] ** power / (r + power)
    return float(sigma**power * (total + float(rest)) / float(density.sum()))


@claim("P-22b")
@elementwise
def magnitude_order_cdf(n: int, r: int, x: float, sigma: float = 1.0) -> dict[str, float]:
    """P(|W|_(r) <= x) of normal weights: exact binomial tail, and Phi((nF-r)/sqrt r) (Theorem 4 corrected, P-22b)."""
    n, r, mean = _expected_below(n, r, x, sigma)
    return {
        "probability": float(special.betainc(r, n - r + 1, mean / n)),
        "approximation": float(special.ndtr((mean - r) / math.sqrt(r))),
    }


@printed("P-22b")
@elementwise
def magnitude_order_cdf_printed(n: int, r: int, x: float, sigma: float = 1.0) -> float:
    """Phi(nF/sqrt r), the argument as printed in App. C.1: not centred, so it is one wherever it matters."""
    n, r, mean = _expected_below(n, r, x, sigma)
    return float(special.ndtr(mean / math.sqrt(r)))


@claim("P-22c")
@elementwise
def small_order_mean(n: int, r: int, sigma: float = 1.0) -> float:
    """First-order mean of a low normal magnitude, sigma sqrt(pi/2) r/(n+1) (P-22c)."""
    n, r = _rank(n, r)
    return positive("sigma", sigma) * math.sqrt(math.pi / 2.0) * r / (n + 1)


@claim("P-22d")
@elementwise
def small_order_mean_general(n: int, r: int, peak: float) -> float:
    """First-order mean r/(n peak) of a low magnitude whose density at zero is `peak` (P-22d)."""
    n, r = _rank(n, r)
    return r / (n * positive("peak", peak))


@claim("P-33")
@elementwise
def correlated_order_moment(n: int, r: int, correlation: float, power: float = 1.0, sigma: float = 1.0) -> float:
    """E |w|_(r)^power of equicorrelated normal weights w_i = sigma(sqrt(c) z_0 + sqrt(1-c) z_i) (P-33, App. E.1).

    Given z_0 the weights are independent with a common mean; the conditional moments are averaged over z_0.
    """
    n, r = _rank(n, r)
    correlation = real("correlation", correlation, 0.0, 1.0, open_high=True)
    power = real("power", power, 0.0, MOST_POWER, open_low=True)
    sigma = positive("sigma", sigma)
    if correlation == 0.0:
        return magnitude_order_moment(n, r, power, sigma)
    own = math.sqrt(1.0 - correlation)  # standard deviation given z_0
    ratio = math.sqrt(correlation) / own
    centres, weights = _common_nodes(ratio)
    conditional = _shifted_order_moment(n, r, power, ratio * centres)
    weights = weights * np.exp(-(centres**2) / 2.0)
    return float((sigma * own) ** power * (weights * conditional).sum() / weights.sum())


def _rank(n: int, r: int) -> tuple[int, int]:
    n = whole("n", n, 1)
    return n, whole("r", r, 1, n)


def _expected_below(n: int, r: int, x: float, sigma: float) -> tuple[int, int, float]:
    n, r = _rank(n, r)
    x = real("x", x, 0.0)
    return n, r, n * float(special.erf(x / (positive("sigma", sigma) * math.sqrt(2.0))))


def _quantile(t: Array, law: str) -> Array:
    """Quantile of the unit-variance magnitude at u = 1/(1+exp(-t)), from whichever of u, 1-u is small."""
    if law == "laplace":
        return np.logaddexp(0.0, t) / math.sqrt(2.0)  # -log(1-u)
    return cast(
        "Array",
        math.sqrt(2.0) * np.where(t < 0.0, special.erfinv(special.expit(t)), special.erfcinv(special.expit(-t))),
    )


def _log_beta(t: Array, n: int, r: int) -> Array:
    """Logarithm of the Beta(r, n-r+1) density in the logit t, up to a constant."""
    left, right = _relative_logs(special.expit(t), special.log_expit(t), special.log_expit(-t), r / (n + 1.0))
    return r * left + (n - r + 1.0) * right


def _relative_logs(u: Array, log_u: Array, log_v: Array, centre: float) -> tuple[Array, Array]:
    """log(u/centre) and log((1-u)/(1-centre)), near the centre both from the one difference u - centre.

    Taken separately they would carry independent rounding errors, which the density multiplies by n.
    """
    shift = u - centre
    near = np.abs(shift) < 0.5 * min(centre, 1.0 - centre)  # tolerance
    safe = np.where(near, shift, 0.0)
    left = np.where(near, np.log1p(safe / centre), log_u - math.log(centre))
    right = np.where(near, np.log1p(-safe / (1.0 - centre)), log_v - math.log1p(-centre))
    return left, right


def _logit_nodes(n: int, r: int, power: float) -> tuple[Array, Array, float]:
    """Gauss-Legendre nodes in the logit of Beta(r, n-r+1), covering both the density and its tilt by u^power."""
    bounds = []
    widths = []
    for low in (float(r), r + power):
        high = n - r + 1.0
        centre = math.log(low / high)
        width = math.sqrt((low + high) / (low * high))
        widths.append(width)
        bounds += [centre - _reach(low, high, -width, power), centre + _reach(low, high, width, power)]
    left, right = min(bounds), max(bounds)
    longest = min(4.0, 3.0 * min(widths))  # tolerance
    nodes, weights = _panels(np.linspace(max(left, TAIL), right, 2 + int((right - left) / longest)))
    return nodes, weights, left


def _reach(low: float, high: float, step: float, power: float) -> float:
    """Distance from the mode of u^low (1-u)^high (in the logit) at which it has fallen far enough."""
    centre = math.log(low / high)
    top = low * -np.logaddexp(0.0, -centre) + high * -np.logaddexp(0.0, centre)
    drop = DROP + 3.0 * abs(power)  # tolerance
    while top - (low * -np.logaddexp(0.0, -centre - step) + high * -np.logaddexp(0.0, centre + step)) < drop:
        if centre + step < TAIL:
            break
        step *= 1.3  # tolerance
    return abs(step)


def _panels(edges: Array, order: int = ORDER) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on every interval between neighbouring edges."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2.0
    middle = (edges[:-1] + edges[1:])[:, None] / 2.0
    return (middle + half * x).ravel(), (half * w).ravel()


def _common_nodes(ratio: float) -> tuple[Array, Array]:
    """Nodes for the common factor z_0 >= 0 (the law is symmetric): fine where ratio*z_0 is of order one."""
    edges = [0.0]
    while edges[-1] < 9.5:  # tolerance
        reached = ratio * edges[-1]
        edges.append(edges[-1] + min(1.0, max(0.75, 0.5 * (reached - 8.0)) / ratio))  # tolerance
    return _panels(np.array(edges), order=COARSE_ORDER)


def _shifted_order_moment(n: int, r: int, power: float, means: Array) -> Array:
    """E |m + z|_(r)^power for every m >= 0 of `means`: quadrature over the logarithm of the magnitude."""
    # Panels between equally spaced logits of u: the magnitude itself may be crowded at 0, around m, or both.
    logits = np.linspace(_logit_bound(n, r, -1.0), _logit_bound(n, r, 1.0), PANELS + 1)
    edges = _folded_root(means[:, None], logits[None, :])
    x, w = np.polynomial.legendre.leggauss(ORDER)
    half, middle = np.diff(edges)[:, :, None] / 2.0, (edges[:, 1:] + edges[:, :-1])[:, :, None] / 2.0
    y, weights = (middle + half * x).reshape(len(means), -1), (half * w).reshape(len(means), -1)
    size, m = np.exp(y), means[:, None]
    log_lower, log_upper = _folded_logs(m, size)
    left, right = _relative_logs(np.exp(log_lower), log_lower, log_upper, r / (n + 1.0))
    log_density = y - (size - m) ** 2 / 2.0 + np.log1p(np.exp(-2.0 * m * size))
    exponent = (r - 1.0) * left + (n - r) * right + log_density
    density = np.exp(exponent - exponent.max(axis=1, keepdims=True)) * weights
    return cast("Array", (density * size**power).sum(axis=1) / density.sum(axis=1))


def _folded_logs(m: Array, size: Array) -> tuple[Array, Array]:
    """log P(|m+z| <= size) and log P(|m+z| > size), m >= 0, without cancellation or underflow."""
    outer, inner = special.log_ndtr(size - m), special.log_ndtr(-size - m)
    # Small sizes: 2 size phi(m) (1 + (m^2-1) size^2/6 + ...), where the difference of the two would lose its digits.
    small = size * np.maximum(1.0, m) < 1e-3  # tolerance
    gap = np.where(small, -1.0, inner - outer)
    correction = np.where(small, (m**2 - 1.0) * size**2 / 6.0, 0.0)
    series = np.log(2.0 * size) - m**2 / 2.0 - 0.5 * math.log(2.0 * math.pi) + np.log1p(correction)
    lower = np.where(small, series, outer + np.log(-np.expm1(gap)))
    return lower, np.logaddexp(special.log_ndtr(m - size), inner)


def _logit_bound(n: int, r: int, side: float) -> float:
    """Logit of u at which Beta(r, n-r+1) has fallen by DROP on the given side of its mode."""
    low, high = float(r), n - r + 1.0
    step = side * math.sqrt((low + high) / (low * high))
    return math.log(low / high) + side * _reach(low, high, step, 0.0)


def _folded_root(m: Array, logit: Array) -> Array:
    """log of the size with P(|m+z| <= size) = 1/(1+exp(-logit)), roughly: it only places the panels' edges."""
    m, logit = np.broadcast_arrays(m, logit)
    low = np.full_like(m, -100.0)  # tolerance
    high = np.log(m + 40.0)  # tolerance
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        lower, upper = _folded_logs(m, np.exp(middle))
        above = lower - upper > logit
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return (low + high) / 2.0
