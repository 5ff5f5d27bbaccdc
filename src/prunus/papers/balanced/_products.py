"""Law of one lost product z = dw x: characteristic function, density and moments (B-8d, B-9).

dw is a pruned normal weight, x a normal input of mean 0. The printed characteristic functions are not 1 at t = 0.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import special

from prunus.errors import BadInput
from prunus.formulas import domain, laws, quadrature
from prunus.formulas.binding import claim, printed
from prunus.formulas.energy import bank_energy, limit_energy
from prunus.papers.balanced._energies import limit_fourth_moment
from prunus.papers.balanced._energies import signed_variance_sum as signed_sum
from prunus.papers.balanced._outputs import rank_mixture

# The normal density is negligible beyond this many standard deviations.
_FAR = 12.0  # tolerance

# Above this argument of the exponent a normal density underflows.
_UNDERFLOW = 39.0  # tolerance

_NODES = 24  # tolerance

_ROOT2 = math.sqrt(2.0)


@claim("B-9a")
def limit_characteristic(t: float, sparsity: float, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> float:
    """B-9a: characteristic function of a large layer, erf(a c/sqrt 2)/(s c), c^2 = 1 + (t sigma_x sigma_w)^2."""
    scale = _scale(t, sigma_input, sigma_weight)
    level = domain.probability("sparsity", sparsity, open_low=True)
    return float(special.erf(laws.NORMAL.quantile(level) * scale / _ROOT2)) / (level * scale)


@claim("B-9b")
def bank_characteristic(t: float, n: int, r: int, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> float:
    """B-9b: characteristic function in a bank of n with r pruned; exactly 1 at t = 0."""
    scale = _scale(t, sigma_input, sigma_weight)
    n = domain.whole("n", n, 1)
    r = domain.whole("r", r, 1, n)
    if r == n:
        return 1.0 / scale
    law = laws.NORMAL
    center = float(law.quantile(r / n))
    below = float(special.erf(center * scale / _ROOT2)) / scale
    over = quadrature.excess(law, r, n - r, center, lambda x: law.density(scale * x), end=_FAR / scale)
    return (below + over) * n / r


@printed("B-9b")
def bank_characteristic_printed(t: float, n: int, r: int, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> float:
    """B-9b as printed: (sigma_x/r)(1+t^2)^(-1/2) times the sum of rank variances of the signed law; far from 1 at 0."""
    t = domain.real("t", t)
    n = domain.whole("n", n, 2)
    r = domain.whole("r", r, 1, n - 1)
    scale = domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight) ** 2
    return scale * signed_sum(n, r) / (r * math.hypot(1.0, t))


@claim("B-9c")
def mixture_characteristic(t: float, n: int, r: int, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> float:
    """B-9c: characteristic function from a normal approximation of every rank (B-8b)."""
    frequency = math.sqrt(_scale(t, sigma_input, sigma_weight) ** 2 - 1.0) if t else 0.0
    means, variances = rank_mixture(n, r)
    spread = 1.0 + variances * frequency**2
    return float(np.mean(np.exp(-0.5 * np.square(frequency * means) / spread) / np.sqrt(spread)))


@claim("B-9d")
def product_moments(sparsity: float, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> dict[str, float]:
    """B-9d: second and fourth moment of one lost product in the large-layer limit."""
    level = domain.probability("sparsity", sparsity, open_low=True)
    scale = domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)
    square, fourth = limit_energy(level)["mean_square"], limit_fourth_moment(level)["mean_fourth"]
    return {"variance": scale**2 * square, "fourth": 3.0 * scale**4 * fourth}


@claim("B-9e")
def bank_product_moments(n: int, r: int, sigma_input: float = 1.0, sigma_weight: float = 1.0) -> dict[str, float]:
    """B-9e: second and fourth moment of one lost product in a bank of n with r pruned."""
    n = domain.whole("n", n, 1)
    r = domain.whole("r", r, 1, n)
    scale = domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)
    fourth = 3.0
    if r < n:
        law = laws.NORMAL
        center = float(law.quantile(r / n))
        below = 3.0 * float(special.gammainc(2.5, 0.5 * center**2))
        fourth = below + quadrature.excess(law, r, n - r, center, lambda x: x**4 * law.density(x))
    return {"variance": scale**2 * bank_energy(n, r) * n / r, "fourth": 3.0 * scale**4 * fourth * n / r}


@claim("B-8d")
def product_density(x: float, sparsity: float, sigma_input: float = 1.0) -> float:
    """B-8d: density of one lost product in the large-layer limit; the printed integral lacks the Jacobian 1/|x|.

    (2/(s sigma)) int phi(w) phi(z/(sigma w)) dw/w over 0 < w <= a, on a logarithmic axis.
    """
    ratio, threshold, level, sigma_input = _density_arguments(x, sparsity, sigma_input)
    w, weights = _logarithmic(ratio / _UNDERFLOW, min(threshold, _UNDERFLOW))
    integrand = laws.normal_density(w) * laws.normal_density(ratio / w)
    return 2.0 * float(weights @ integrand) / (level * sigma_input)


@printed("B-8d")
def product_density_printed(x: float, sparsity: float, sigma_input: float = 1.0) -> float:
    """B-8d as printed: the integral over the input without the factor 1/|x|."""
    ratio, threshold, level, sigma_input = _density_arguments(x, sparsity, sigma_input)
    u, weights = _logarithmic(ratio / min(threshold, _UNDERFLOW), _UNDERFLOW)
    integrand = laws.normal_density(ratio / u) * laws.normal_density(u) * u
    return 2.0 * float(weights @ integrand) / level


def _density_arguments(x: float, sparsity: float, sigma_input: float) -> tuple[float, float, float, float]:
    level = domain.probability("sparsity", sparsity, open_low=True)
    sigma_input = domain.positive("sigma_input", sigma_input)
    x = domain.real("x", x)
    if x == 0.0:
        raise BadInput("x must not be 0: the density has a logarithmic pole there.")
    return abs(x) / sigma_input, float(laws.NORMAL.quantile(level)), level, sigma_input


def _logarithmic(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on [low, high] and weights of int g(w) dw/w; empty where low >= high."""
    if low >= high:
        return np.ones(1), np.zeros(1)
    count = max(2, math.ceil(math.log(high / low))) + 1  # tolerance
    edges = np.linspace(math.log(low), math.log(high), count)
    panels = [quadrature.panel(a, b, _NODES) for a, b in itertools.pairwise(edges)]
    return np.exp(np.concatenate([x for x, _ in panels])), np.concatenate([w for _, w in panels])


def _scale(t: float, sigma_input: float, sigma_weight: float) -> float:
    t = domain.real("t", t)
    product = t * domain.positive("sigma_input", sigma_input) * domain.positive("sigma_weight", sigma_weight)
    return math.hypot(1.0, product)
