"""What the checks simulate: norms of batches, small networks, circular convolutions, and one-sided tests."""

from __future__ import annotations

import itertools
import math
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special, stats

from prunus.papers.checking import FALSE_ALARM

Array = NDArray[np.float64]


def norms(batch: Array) -> Array:
    """Spectral norms of a batch of matrices."""
    return cast("Array", np.linalg.norm(batch, 2, axis=(1, 2)))


def spectral(weights: list[Array]) -> list[float]:
    """Spectral norms of matrices of different shapes."""
    return [float(np.linalg.norm(w, 2)) for w in weights]


def at_most(name: str, hits: int, trials: int, allowed: float) -> None:
    """A one-sided binomial test at rate FALSE_ALARM: the true probability may be at most `allowed`."""
    tail = float(special.bdtrc(hits - 1, trials, allowed)) if hits else 1.0
    assert tail >= FALSE_ALARM, f"{name}: {hits} of {trials} where at most {allowed:.4g} is allowed"


def random_network(rng: np.random.Generator, sizes: list[int], keep: float) -> tuple[list[Array], list[Array]]:
    """Weights of a network and of a pruned copy; the first and last layer stay."""
    weights = [rng.standard_normal((b, a)) / math.sqrt(a) for a, b in itertools.pairwise(sizes)]
    pruned = [w * (rng.random(w.shape) < keep) if 0 < k < len(weights) - 1 else w for k, w in enumerate(weights)]
    return weights, pruned


def outputs(weights: list[Array], biases: list[Array], x: Array) -> Array:
    """A ReLU network on the rows of x."""
    for k, (w, b) in enumerate(zip(weights, biases)):
        x = x @ w.T + b
        if k < len(weights) - 1:
            x = np.maximum(x, 0)
    return x


def unit_rows(rng: np.random.Generator, count: int, size: int) -> Array:
    """Random points on the unit sphere."""
    x = rng.standard_normal((count, size))
    return cast("Array", x / np.linalg.norm(x, axis=1, keepdims=True))


def circular_norm(kernels: Array, image: int) -> float:
    """Norm of a circular convolution with kernels of shape (out, in, q, q), by the Fourier transform (Lemma 7)."""
    spectrum = np.fft.fft2(kernels, (image, image)).transpose(2, 3, 0, 1).reshape(-1, *kernels.shape[:2])
    return float(np.linalg.norm(spectrum, 2, axis=(1, 2)).max())


def dense_convolution(kernel: Array, size: int, padding: int | None) -> Array:
    """The dense matrix of a one-dimensional convolution; padding None means circular."""
    matrix = np.zeros((size, size))
    for i in range(size):
        for j, weight in enumerate(kernel):
            source = i + j - (padding or 0)
            if padding is None:
                matrix[i, source % size] += weight
            elif 0 <= source < size:
                matrix[i, source] += weight
    return matrix


def normal_order_moment(n: int, r: int, power: float) -> float:
    """E |W|_(r)^power of few standard normal weights, by adaptive quadrature of the density over log |W|."""
    law = stats.halfnorm

    def integrand(y: float) -> float:
        x = math.exp(y)
        return float(math.exp((power + 1) * y) * law.cdf(x) ** (r - 1) * law.sf(x) ** (n - r) * law.pdf(x))

    total = integrate.quad(integrand, -70, 0, limit=400)[0] + integrate.quad(integrand, 0, 3.5, limit=400)[0]
    return float(n * math.comb(n - 1, r - 1) * total)
