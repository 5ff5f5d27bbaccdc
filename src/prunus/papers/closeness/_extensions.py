"""Norm bounds for the settings of appendices C.1, C.2 and E.1, without unknown constants (P-37, P-38).

C.1: weights of another law than the uniform. C.2: filters instead of weights. E.1: weights that are not independent.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import signal, special

from prunus.errors import BadInput
from prunus.formulas.binding import claim
from prunus.formulas.domain import array, delta_in, positive, real, whole
from prunus.papers.closeness._thresholds import magnitude_order_moment

_STEPS = 4000  # cells of the grid for the L1 norm of a filter: more make the bound tighter, not truer
_LARGEST_KERNEL = 15
_ROUNDING = 1e-12  # tolerance


@claim("P-37a")
def pruned_norm_mean(rows: int, columns: int, r: int, sigma: float = 1.0, law: str = "normal") -> dict[str, float]:
    """Mean norm of the r smallest weights of a matrix, for any symmetric law (App. C.1, P-37a).

    Signs are independent of magnitudes, all of which are at most the r-th: by contraction the mean norm is at most
    E|W|_(r) times that of a matrix of signs, sqrt(pi/2)(sqrt(rows) + sqrt(columns)), or the Frobenius norm's sqrt(r).
    """
    rows, columns = whole("rows", rows, 1), whole("columns", columns, 1)
    r = whole("r", r, 1, rows * columns)
    magnitude = float(magnitude_order_moment(rows * columns, r, 1.0, sigma, law))
    signs = math.sqrt(math.pi / 2.0) * (math.sqrt(rows) + math.sqrt(columns))
    return {"magnitude": magnitude, "bound": magnitude * min(signs, math.sqrt(r))}


@claim("P-37b")
def pruned_filters_norm_mean(filters: int, r: int, kernel: int, sigma: float = 1.0) -> dict[str, float]:
    """Mean norm of a circular convolution made of the r filters with the smallest L1 norms (App. C.2, P-37b).

    At every frequency an entry is at most its filter's L1 norm, hence all together at most sqrt(r) times the r-th. The
    law of the L1 norm of kernel^2 normal weights is rounded upwards on a grid, so the bound is never too small.
    """
    filters, kernel = whole("filters", filters, 1, 10**9), whole("kernel", kernel, 1, _LARGEST_KERNEL)
    r, sigma = whole("r", r, 1, filters), positive("sigma", sigma)
    levels, below = _l1_law(kernel)
    # P(r-th smallest > x) = P(Bin(filters, F(x)) < r), summed over the cells.
    beyond = special.betainc(filters - r + 1, r, 1.0 - below)
    smallest = sigma * float(levels[0] + np.sum(np.diff(levels) * beyond[:-1]))
    return {"smallest": smallest, "bound": smallest * math.sqrt(r)}


@claim("P-38a")
def correlated_norm_mean(rows: int, columns: int, correlation: float, sigma: float = 1.0) -> dict[str, float]:
    """Mean norm of normal weights with one correlation for all pairs (App. E.1, P-38a).

    W = sigma (sqrt(c) z 11' + sqrt(1-c) Z): the common part has norm sqrt(c) |z| sqrt(rows columns), the rest
    is that of an independent matrix.
    """
    rows, columns = whole("rows", rows, 1), whole("columns", columns, 1)
    share = real("correlation", correlation, 0.0, 1.0)
    common = math.sqrt(2.0 * share / math.pi) * math.sqrt(rows * columns)
    own = math.sqrt(1.0 - share) * (math.sqrt(rows) + math.sqrt(columns))
    return {"common": positive("sigma", sigma) * common, "bound": sigma * (common + own)}


@claim("P-38b")
def correlated_rows_norm(rows: int, eigenvalues: ArrayLike, delta: float) -> dict[str, float]:
    """Norm of a matrix with independent normal rows of any covariance (App. E.1, P-38b).

    Chevet's inequality and Gaussian concentration: sqrt(largest)(sqrt(rows) + sqrt(2 ln(1/delta))) + sqrt(trace).
    """
    spectrum = array("eigenvalues", eigenvalues, 1)
    if spectrum.size == 0 or bool((spectrum < 0).any()) or not float(spectrum.max()) > 0:
        raise BadInput("eigenvalues must list at least one, none below 0 and one above it.")
    top, trace = math.sqrt(float(spectrum.max())), math.sqrt(math.fsum(spectrum))
    mean = top * math.sqrt(whole("rows", rows, 1)) + trace
    return {"mean": mean, "bound": mean + top * math.sqrt(2.0 * math.log(1.0 / delta_in(delta)))}


def _l1_law(kernel: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Grid and distribution function of the L1 norm of kernel^2 standard normal weights, rounded upwards."""
    count = kernel * kernel
    # Nine standard deviations above the mean; what lies beyond is put on the last point, which only a rank
    # at the very top would notice (probability below 1e-18).
    top = count * math.sqrt(2.0 / math.pi) + 9.0 * kernel
    edges: NDArray[np.float64] = np.linspace(0.0, top, _STEPS + 1)
    single = np.concatenate(([0.0], np.diff(special.erf(edges / math.sqrt(2.0)))))
    law = np.ones(1)
    for _ in range(count):
        law = np.clip(signal.fftconvolve(law, single), 0.0, None)[: _STEPS + 1]
    # Rounding of the transforms is taken off, so that it cannot make the norm look smaller.
    return edges, np.clip(np.cumsum(law) - _ROUNDING, 0.0, 1.0)
