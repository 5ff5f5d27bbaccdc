"""Independent checks of the extensions: drawn matrices, and filters carried out as circular convolutions."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from prunus.papers import closeness as m
from prunus.papers.checking import check
from prunus.papers.closeness._simulation import circular_norm, norms
from prunus.papers.sampling import assert_close


@check("P-37a", method="Monte Carlo")
def smallest_weights_of_drawn_matrices() -> str:
    """Normal and Laplace matrices: the mean norm of the pruned part over 60 draws is below the bound."""
    rng = np.random.default_rng(37)
    worst = 0.0
    for law, draw in (("normal", rng.standard_normal), ("laplace", lambda size: rng.laplace(size=size) / math.sqrt(2))):
        for rows, columns, r in ((24, 24, 5), (24, 24, 300), (10, 40, 399)):
            weights = draw((60, rows, columns))
            order = np.sort(np.abs(weights).reshape(60, -1), axis=1)[:, r - 1]
            pruned = np.where(np.abs(weights) <= order[:, None, None], weights, 0.0)
            found = m.pruned_norm_mean(rows, columns, r, 1.0, law)
            assert abs(float(order.mean()) / found["magnitude"] - 1) < 0.25
            worst = max(worst, float(norms(pruned).mean()) / found["bound"])
    assert worst < 1
    return f"six settings, 360 matrices: the mean norm is at most {worst:.2f} of the bound"


@check("P-37b", method="Monte Carlo")
def smallest_filters_as_convolutions() -> str:
    """L1 norms against drawn filters and an exact law; the operator of the pruned filters is below the bound."""
    rng = np.random.default_rng(38)
    for kernel, filters, r in ((1, 40, 7), (3, 64, 20), (5, 16, 16)):
        sums = np.sort(np.abs(rng.standard_normal((2000, filters, kernel**2))).sum(axis=2), axis=1)[:, r - 1]
        found = m.pruned_filters_norm_mean(filters, r, kernel)["smallest"]
        error = float(sums.std()) / math.sqrt(2000)
        assert float(sums.mean()) - 6 * error <= found <= 1.02 * float(sums.mean()) + 6 * error
    assert_close("one weight", m.pruned_filters_norm_mean(40, 7, 1)["smallest"], m.magnitude_order_moment(40, 7), 5e-2)
    ratios = []
    for _ in range(20):
        weights = rng.standard_normal((6, 6, 3, 3))
        sizes = np.abs(weights).sum(axis=(2, 3))
        chosen = sizes <= np.sort(sizes.ravel())[9]
        ratios.append(circular_norm(weights * chosen[:, :, None, None], 8) / math.sqrt(10))
    assert float(np.mean(ratios)) <= m.pruned_filters_norm_mean(36, 10, 3)["smallest"]
    return "three laws of the r-th L1 norm within six standard errors; 20 operators below the bound"


@check("P-38a", "P-38b", method="Monte Carlo")
def dependent_weights() -> str:
    """Means and quantiles of 600 norms of correlated matrices, against the bounds and one exact chi tail."""
    rng = np.random.default_rng(39)
    for correlation in (0.0, 0.05, 0.5):
        z, rest = rng.standard_normal((600, 1, 1)), rng.standard_normal((600, 12, 20))
        sample = norms(math.sqrt(correlation) * z + math.sqrt(1 - correlation) * rest)
        found = m.correlated_norm_mean(12, 20, correlation)
        assert found["common"] <= float(sample.mean()) + 1e-9 <= found["bound"] + 1e-9
    spectrum = [4.0, 1.0, 1.0, 0.5, 0.1]
    sample = norms(rng.standard_normal((600, 20, 5)) * np.sqrt(spectrum))
    found = m.correlated_rows_norm(20, spectrum, 0.05)
    assert float(sample.mean()) <= found["mean"]
    assert float((sample > found["bound"]).mean()) <= 0.05
    # one column: the norm is a chi variable times its deviation
    single = m.correlated_rows_norm(30, [2.25], 0.01)["bound"]
    assert float(stats.chi.sf(single / 1.5, 30)) <= 0.01
    return "three correlations and one covariance: 2,400 norms and an exact tail within the bounds"
