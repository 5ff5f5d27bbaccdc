"""Exact intervals for a success probability: Clopper and Pearson, and their one-sided form."""

from __future__ import annotations

from scipy import special

from prunus.formulas.binding import claim
from prunus.formulas.domain import delta_in, whole
from prunus.formulas.numbers import elementwise


@claim("P-28a")
@elementwise
def exceedance_upper(n: int, exceedances: int, delta: float = 0.05, comparisons: int = 1) -> float:
    """Clopper-Pearson upper bound on the probability of an error above the one stated (P-28a).

    Either the level is fixed and its exceedances are counted, or their number is fixed in advance and the level is the
    order statistic: the bound is the same. `comparisons` masks on the same points share delta.
    """
    n = whole("n", n, 1)
    k = whole("exceedances", exceedances, 0, n)
    delta = delta_in(delta) / whole("comparisons", comparisons, 1)
    return 1.0 if k == n else float(special.betainccinv(k + 1, n - k, delta))


@claim("P-30")
@elementwise
def success_interval(n: int, successes: int, delta: float = 0.05) -> dict[str, float]:
    """Two-sided Clopper-Pearson interval for a success probability, for instance over random masks (P-30)."""
    n = whole("n", n, 1)
    k = whole("successes", successes, 0, n)
    half = delta_in(delta) / 2.0
    low = 0.0 if k == 0 else float(special.betaincinv(k, n - k + 1, half))
    high = 1.0 if k == n else float(special.betainccinv(k + 1, n - k, half))
    return {"low": low, "high": high}
