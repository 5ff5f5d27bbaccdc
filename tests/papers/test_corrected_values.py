"""Values that were once wrong or unsound, each against an independent computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from prunus.errors import BadInput
from prunus.theory import balanced, claims, closeness, iterand, noisy_topk, tangent

MOMENTS = {"second": 1.0, "fourth": 3.0, "latala": 1.0}


@pytest.mark.parametrize("inner", [0.6, 0.999])
def test_theorem_2_refuses_norms_below_one_in_pruned_layers(inner: float) -> None:
    for call in (
        lambda: closeness.theorem2_constants(5, [2.0, inner, 1.5, 1.5, 2.0], **MOMENTS),
        lambda: closeness.theorem2_width(0.3, 5, 0.1, 0.05, inner, **MOMENTS),
        lambda: closeness.theorem2_width_floor(5, 0.1, 0.05, inner, **MOMENTS),
        lambda: closeness.theorem2_best_claim(1024, 5, inner, **MOMENTS),
    ):
        with pytest.raises(BadInput, match="at least 1"):
            call()


def test_theorem_2_is_never_below_the_recursion() -> None:
    for d in (64, 1024, 10**6):
        for layers in (3, 4, 5, 8):
            for bound in (1.0, 1.2, 2.0, 5.0):
                claim = closeness.theorem2_best_claim(d, layers, bound, **MOMENTS)
                difference = d ** (-claim["exponent"] / 4)
                differences = [0.0, *[difference] * (layers - 2), 0.0]
                assert claim["error"] >= closeness.recursion_error([bound] * layers, differences) * (1 - 1e-12)


def test_outer_layers_may_have_small_norms_and_do_not_count_in_c1() -> None:
    found = closeness.theorem2_constants(4, [0.1, 2.0, 1.1, 3.0], **MOMENTS)
    assert found["constant1"] == pytest.approx(1 / 1.1)
    differences = [0.0, 0.5, 0.5, 0.0]
    assert found["constant2"] * 0.5 >= closeness.recursion_error([0.1, 2.0, 1.1, 3.0], differences)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("deviation", [0.1, 0.5, 1.0, 2.0, 8.0])
def test_rows_of_masks_keep_their_share_at_the_promised_width(density: float, deviation: float) -> None:
    delta, depth, rows = 0.05, 3, 1024
    width = tangent.balanced_row_width(density, deviation, delta, depth, rows)
    mean = density * width
    above = stats.binom.sf(math.floor(mean * (1 + deviation)), width, density)
    below = stats.binom.cdf(math.ceil(mean * (1 - deviation)) - 1, width, density)
    assert -math.expm1(depth * rows * math.log1p(-(above + below))) <= delta


@pytest.mark.parametrize("d, m", [(2, 1), (10, 3), (256, 26)])
def test_gain_over_random_is_the_slope_at_zero(d: int, m: int) -> None:
    step = 1e-6
    law = noisy_topk.SwapLaw(m, d - m, step)
    slope = ((m - law.mean) / m - m / d) / step
    assert noisy_topk.gain_over_random(d, m, step)["gain"] / step == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("window", [1e-17, 1e-9, 1e-3])
def test_small_windows_keep_their_digits(window: float) -> None:
    """One neuron and one output: the chance is exactly (hit u) times (hit v)."""
    for resamples in (1, 3):
        hit = -math.expm1(resamples * math.log1p(-window))
        assert iterand.coordinate_success(window, resamples, 1, 1) == pytest.approx(hit * hit, rel=1e-12)
        many = iterand.coordinate_success(window, resamples, 10, 1)
        assert many == pytest.approx(-math.expm1(10 * math.log1p(-hit * hit)), rel=1e-9)


@pytest.mark.parametrize("error", [1e-60, 1e-17, 1e-9, 1e-3])
def test_a_construction_with_small_windows_keeps_its_digits(error: float) -> None:
    """One weight, one neuron for each sign: both factors lie within error / 2, one-sided where the target is at 1."""
    chance = error / 4
    for weight, sides in ((1.0, 1.0), (-1.0, 1.0), (0.3, 2.0)):
        found = claims["I-16a"](weights=[[weight]], error=error, resamples=1, half=1)["success"]
        assert found == pytest.approx((chance * sides * chance) ** 2, rel=1e-12)


def test_a_window_that_cuts_nothing_costs_nothing() -> None:
    for swaps in range(5):
        assert noisy_topk.truncation_delta(10, 90, 0.2, 0, 10, swaps) == 0.0
        assert noisy_topk.truncation_delta(10, 90, 0.2, 0, 99, swaps) == 0.0
    assert noisy_topk.truncation_delta(10, 90, 0.2, 1, 10, 1) > 0.0


@pytest.mark.parametrize("exponent", [0.25, 1.0, 5.0])
def test_theorem_3_refuses_width_exponents_that_no_exponent_allows(exponent: float) -> None:
    with pytest.raises(BadInput, match="width_exponent"):
        closeness.theorem3_error(3, 64, 256, 64, 3, 0.2, exponent, 1.1)


def test_share_of_a_rows_own_energy_scatters_otherwise() -> None:
    """4,000 rows of 400 columns: the two spreads within 12 % (five standard errors of a variance are 11 %)."""
    rng = np.random.default_rng(5)
    rows = np.square(rng.standard_normal((4000, 400)))
    removed = np.where(rows <= stats.norm.ppf(0.8) ** 2, rows, 0.0).sum(axis=1)
    found = balanced.row_energy_spread(0.6)
    assert 400 * np.var(removed / 400) == pytest.approx(found["spread"], rel=0.12)
    assert 400 * np.var(removed / rows.sum(axis=1)) == pytest.approx(found["own_share"], rel=0.12)
    assert found["own_share"] > 2 * found["spread"]


def test_normal_approximation_of_every_rank_is_off_by_what_its_erratum_says() -> None:
    """Over all banks up to 20, against the exact energy."""
    off = {
        (n, r): claims["B-8b"](n=n, r=r)["variance"] / (claims["B-3"](n=n, r=r)["energy"] * n / r)
        for n in range(2, 21)
        for r in range(1, n)
    }
    assert min(off, key=off.__getitem__) == (11, 10)
    assert max(off, key=off.__getitem__) == (2, 1)
    assert off[11, 10] == pytest.approx(1 - 0.057, abs=5e-4)
    assert off[2, 1] == pytest.approx(1.36, abs=5e-3)


@pytest.mark.parametrize("rows, banks", [(1, 2), (2, 1), (4, 2), (16, 4)])
@pytest.mark.parametrize("bank", [2, 4, 16, 32])
def test_the_printed_variances_put_balanced_first_and_the_right_ones_last(rows: int, banks: int, bank: int) -> None:
    """What the errata B-4 and B-8a say of the printed formulas, wherever there is more than one bank."""
    for r in {1, bank // 2, bank - 1}:
        given = {"rows": rows, "columns": banks * bank, "banks": banks, "r": r}
        printed, right = claims["B-8a"].printed(**given), claims["B-8a"](**given)
        assert printed["balanced"] < printed["unstructured"]
        assert right["unstructured"] <= right["balanced"] * (1 + 1e-12)


def test_numbers_in_the_errata_of_the_balanced_paper() -> None:
    """True over printed variance (B-8a), and the printed characteristic function at 0 (B-9b), for the sizes named."""
    for columns, r, stated in ((16, 4, 0.33), (64, 16, 0.74), (4096, 3072, 558.0)):
        given = {"rows": 1, "columns": columns, "banks": 1, "r": r}
        ratio = claims["B-8a"](**given)["unstructured"] / claims["B-8a"].printed(**given)["unstructured"]
        assert ratio == pytest.approx(stated, rel=0.01)
    for n, r, stated in ((4, 2, 0.43), (64, 16, 0.05), (65_536, 49_152, 4e-5)):
        assert claims["B-9b"].printed(t=0.0, n=n, r=r, sigma_input=1.0)["value"] == pytest.approx(stated, rel=0.12)
        assert claims["B-9b"](t=0.0, n=n, r=r, sigma_input=1.0)["value"] == pytest.approx(1.0, abs=1e-9)


def test_numbers_in_the_errata_of_the_ticket_paper() -> None:
    failures = [
        claims["I-9d"].printed(error=error, delta=delta)["failure"]
        for error in (0.05, 0.1, 0.5, 0.9)
        for delta in (1e-4, 1e-2, 0.1)
    ]
    assert (min(failures), max(failures)) == (pytest.approx(0.11, abs=5e-3), pytest.approx(0.53, abs=5e-3))
    given = {"layers": 2, "inputs": 4, "outputs": 3, "error": 0.5}
    printed = claims["I-12b"].printed(delta=0.1, **given)["resamples"]
    assert claims["I-12c"](resamples=printed, width=8, **given)["success"] == pytest.approx(0.063, abs=5e-4)


def test_numbers_of_the_worst_case_calibration() -> None:
    """N-14: 256 coordinates, 26 kept, local epsilon 8."""
    law = noisy_topk.SwapLaw(26, 230, 8.0 / 52)
    assert (26 - law.mean) / 26 == pytest.approx(0.129, abs=5e-4)
    million = noisy_topk.gain_over_random(10**6, 10**5, 1.0 / (2 * 10**5))
    assert million["gain"] < 1e-6


def test_the_low_quantile_of_a_kernels_norm_that_the_erratum_names() -> None:
    """P-23b: nine magnitudes of standard normals, their law convolved on a grid of 1/1024."""
    step, count = 1.0 / 1024, 2**15
    single = np.diff(2.0 * stats.norm.cdf(step * np.arange(count + 1)) - 1.0)
    law = np.cumsum(np.fft.irfft(np.fft.rfft(single, 2 * count) ** 9, 2 * count))
    true = step * (np.searchsorted(law, 0.01) + 4.5)
    assert true == pytest.approx(3.457, abs=2e-3)
    assert claims["P-23b"](kernel=3, level=0.01, sigma=1.0)["quantile"] == pytest.approx(2.974, abs=1e-3)
