"""Privacy of noisy top-k: the files `_privacy`, `_optimum` and `_values` of prunus.theory.swaps, and bad counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prunus.errors import BadInput
from prunus.theory import noisy_topk as s

few = settings(max_examples=40, deadline=None, derandomize=True)


def brute_loss(m, others, theta, j):
    """Law of X_A - X_B from the mixture over the swap count (ledger N-7)."""
    law = s.SwapLaw(m, others, theta)
    low, probabilities = law.window
    result = np.zeros(2 * j + 1)
    for i, chance in enumerate(probabilities, start=low):
        first = stats.hypergeom.pmf(np.arange(j + 1), m, j, m - i)
        second = stats.hypergeom.pmf(np.arange(j + 1), others, j, i)
        result += chance * np.convolve(first, second[::-1])
    return result


@few
@given(st.integers(1, 25), st.integers(1, 25), st.floats(0.05, 3.0), st.data())
def test_loss_law(m, others, theta, data):
    j = data.draw(st.integers(1, min(m, others)))
    losses, logs = s.loss_law(m, others, theta, j)
    assert losses == pytest.approx(2 * theta * np.arange(-j, j + 1))
    assert np.exp(logs) == pytest.approx(brute_loss(m, others, theta, j), rel=1e-9, abs=1e-14)
    assert np.exp(logs).sum() == pytest.approx(1.0, abs=1e-12)
    # The two centres play the same part: P(L = x) = exp(x) P(L = -x).
    possible = np.isfinite(logs)
    assert (possible == possible[::-1]).all()
    assert logs[possible] - logs[::-1][possible] == pytest.approx(losses[possible], rel=1e-8, abs=1e-9)


@few
@given(st.integers(2, 200), st.integers(2, 200), st.floats(0.01, 3.0), st.integers(1, 2))
def test_privacy_curves(m, others, theta, j):
    worst = s.swap_privacy(theta, j)["epsilon"]
    levels = np.linspace(0.0, worst, 7)
    deltas = s.privacy_delta(m, others, theta, j, levels)
    assert deltas.shape == (7,)
    assert ((deltas >= 0) & (deltas <= 1)).all()
    assert (np.diff(deltas) <= 1e-15).all()
    assert deltas[-1] == pytest.approx(0.0, abs=1e-13)
    assert s.privacy_delta(m, others, theta, j, worst + 1.0) == 0.0
    assert deltas[2] == pytest.approx(s.privacy_delta(m, others, theta, j, float(levels[2])), rel=1e-12)
    orders = np.array([1.0 + 1e-7, 1.5, 4.0, 60.0, 1e4])
    curve = s.renyi_divergence(m, others, theta, j, orders)
    assert (np.diff(curve) >= -1e-9).all()
    assert curve[-1] <= worst * (1 + 1e-12)
    assert curve[0] == pytest.approx(s.leakage(m, others, theta, j)["divergence"], rel=1e-4)
    assert curve[2] == pytest.approx(s.renyi_divergence(m, others, theta, j, 4.0), rel=1e-12)
    assert type(s.privacy_delta(m, others, theta, j, 0.1)) is float


def test_no_concentration_no_loss():
    assert s.privacy_delta(10, 90, 0.0, 3, 0.0) == 0.0
    assert s.renyi_divergence(10, 90, 0.0, 3, 2.0) == 0.0
    assert s.leakage(10, 90, 0.0, 3)["divergence"] == pytest.approx(0.0, abs=1e-14)


def test_full_exchange():
    # All of m = 2 against all of the 2 others: two index sets face each other.
    theta = 0.8
    losses, logs = s.loss_law(2, 2, theta, 2)
    weights = np.array([math.exp(-4 * theta), 4 * math.exp(-2 * theta), 1.0])
    assert np.exp(logs[[0, 2, 4]]) == pytest.approx(weights / weights.sum(), rel=1e-13)
    assert np.isneginf(logs[[1, 3]]).all()
    assert losses[-1] == pytest.approx(4 * theta)


def test_curves_at_scale():
    m, others, theta = 10**6, 99 * 10**6, 2.65
    law = s.SwapLaw(m, others, theta)
    kept, inclusion = 1 - law.mean / m, law.mean / others
    # One exchanged index: L is 2 theta if kept and the other is out, and so on; the pair is nearly independent.
    delta = s.privacy_delta(m, others, theta, 1, 0.0)
    assert delta == pytest.approx(kept - inclusion, rel=1e-9)
    assert s.renyi_divergence(m, others, theta, 20, 1 + 1e-8) == pytest.approx(
        s.leakage(m, others, theta, 20)["divergence"], rel=1e-6
    )
    many = s.loss_law(m, others, theta, 200)
    assert float((np.exp(many[1]) * many[0]).sum()) == pytest.approx(
        s.leakage(m, others, theta, 200)["divergence"], rel=1e-10
    )
    assert s.privacy_delta(m, others, theta, 200, 100.0) <= 1.0


def test_tiny_concentration_keeps_its_digits():
    leak = s.leakage(3277, 32_768 - 3277, 2.13e-8, 5)
    k = 3277 / 32_768
    variance = s.swap_law(3277, 32_768 - 3277, 0.0)["variance"]
    expected = 2 * 2.13e-8 * 5 * 2 * 2.13e-8 * variance * (1 / 3277 + 1 / (32_768 - 3277))
    assert leak["divergence"] == pytest.approx(expected, rel=1e-5)
    assert leak["kept"] == pytest.approx(k, rel=1e-6)
    assert leak["inclusion"] == pytest.approx(k, rel=1e-6)


@pytest.mark.parametrize(
    "size, kept, theta, fraction",
    [
        (256, 26, 0.5, 0.2110894817),
        (256, 26, 1.0, 0.3663208240),
        (256, 26, 2.0, 0.6814077789),
        (1024, 104, 0.5, 0.2105510892),
        (1024, 104, 1.0, 0.3645894590),
        (1024, 104, 2.0, 0.6768340900),
        (32_768, 3277, 1e-3, 0.1001682199),
        (32_768, 3277, 1e-2, 0.1016366164),
        (32_768, 3277, 1e-1, 0.1172601352),
    ],
)
def test_kept_fractions_of_the_ledger(size, kept, theta, fraction):
    assert s.metric_optimum(size, kept, theta) == pytest.approx(fraction, abs=1e-10)


def test_gain_over_random():
    for theta, kept in ((1e-3, 0.1001681112), (1e-2, 0.1016261804), (1e-1, 0.1162068725)):
        result = s.gain_over_random(32_768, 3277, theta)
        gain = (kept - 3277 / 32_768) * 32_768 / 32_767
        assert result["kept"] == pytest.approx(3277 / 32_768 + gain, abs=1e-10)
        assert result["gain"] == pytest.approx(gain, abs=1e-10)
    assert s.gain_over_random(32_768, 3277, 2.13e-8)["gain"] == pytest.approx(3.45e-9, rel=0.01)


def test_groups_add_up():
    one = s.local_privacy(256, 26, 0.3)["epsilon"]
    assert s.grouped_privacy([256] * 4, [26] * 4, 0.3)["epsilon"] == pytest.approx(4 * one, rel=1e-14)
    assert s.grouped_privacy([8, 8], [8, 0], 0.3)["epsilon"] == 0.0
    assert s.grouped_privacy(np.array([8]), np.array([6]), 0.5) == {"epsilon": 2.0, "per_swap": 1.0}


@few
@given(st.integers(2, 400), st.data())
def test_optimum_orders(d, data):
    m = data.draw(st.integers(1, d - 1))
    epsilon = data.draw(st.floats(0.01, 30.0))
    rule = s.two_level_rule(d, m, epsilon)
    noisy, bound = s.kept_at_local_epsilon(d, m, epsilon), s.kept_fraction_bound(d, m, epsilon)
    assert m / d * (1 - 1e-12) <= noisy <= rule["kept"] * (1 + 1e-12)
    assert rule["kept"] <= bound * (1 + 1e-12) <= 1 + 1e-11
    assert max(0, 2 * m - d) <= rule["level"] <= m
    # Every other level does worse.
    overlap = np.arange(max(0, 2 * m - d), m + 1)
    chances = stats.hypergeom.pmf(overlap, d, m, m)
    values = [
        float((overlap * chances * np.where(overlap >= t, math.exp(epsilon), 1.0)).sum())
        / float((chances * np.where(overlap >= t, math.exp(epsilon), 1.0)).sum())
        for t in overlap
    ]
    assert rule["kept"] * m == pytest.approx(max(values), rel=1e-9)
    low, probabilities = s.two_level_law(d, m, epsilon)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert m - float((low + np.arange(len(probabilities))) @ probabilities) == pytest.approx(rule["kept"] * m, rel=1e-9)


@pytest.mark.parametrize(
    "d, m, epsilon, level, kept, noisy",
    [
        (10**4, 100, 1, 2, 0.014304, 0.010098),
        (10**4, 100, 8, 5, 0.047764, 0.010815),
        (10**4, 100, 32, 14, 0.138623, 0.013669),
        (10**5, 1000, 8, 20, 0.019731, 0.010079),
        (10**6, 10**4, 8, 129, 0.012834, 0.010008),
    ],
)
def test_two_levels_of_the_ledger(d, m, epsilon, level, kept, noisy):
    rule = s.two_level_rule(d, m, epsilon)
    assert rule["level"] == level
    assert rule["kept"] == pytest.approx(kept, abs=5e-7)
    assert s.kept_at_local_epsilon(d, m, epsilon) == pytest.approx(noisy, abs=5e-7)


def test_two_levels_far_out():
    d, m = 10**6, 1000
    last = 0.0
    for epsilon in (100.0, 900.0, 3000.0):
        rule = s.two_level_rule(d, m, epsilon)
        assert last < rule["kept"] < s.kept_fraction_bound(d, m, epsilon) < 1.0
        assert rule["kept"] == pytest.approx(s.rough_kept_fraction(m, m / d, epsilon), rel=0.1)
        last = rule["kept"]
    everything = s.two_level_rule(d, m, 1e5)
    assert everything == {"level": m, "kept": pytest.approx(1.0, rel=1e-15)}
    assert s.kept_fraction_bound(d, m, 1e5) == 1.0
    assert s.two_level_law(d, m, 1e5)[0] == 0
    large = s.two_level_rule(10**8, 10**7, 8.0)
    assert large["level"] == 1_002_470
    assert large["kept"] == pytest.approx(0.10024694526457, rel=1e-11)


@few
@given(st.integers(1, 10**6), st.floats(1e-4, 0.999), st.floats(1e-6, 50.0))
def test_rough_fraction(m, k, epsilon):
    p = s.rough_kept_fraction(m, k, epsilon)
    assert k <= p <= 1.0
    if p < 1.0:
        divergence = p * math.log(p / k) + (1 - p) * math.log((1 - p) / (1 - k))
        assert m * divergence == pytest.approx(epsilon, rel=1e-5, abs=1e-9 * m)
    else:
        assert -m * math.log(k) <= epsilon * (1 + 1e-9)


@few
@given(st.floats(0.01, 20.0), st.floats(1e-14, 0.5), st.floats(0.1, 5.0))
def test_gaussian_noise(epsilon, delta, sensitivity):
    found = s.gaussian_sigma(epsilon, delta, sensitivity)
    assert s.gaussian_delta(epsilon, found["sigma"], sensitivity) == pytest.approx(delta, rel=1e-9)
    assert s.gaussian_delta(epsilon, 1.01 * found["sigma"], sensitivity) < delta
    assert found["sigma"] == pytest.approx(sensitivity * s.gaussian_sigma(epsilon, delta)["sigma"], rel=1e-10)
    assert found["classical"] == pytest.approx(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon, rel=1e-12)


def test_gaussian_curve_in_both_tails():
    assert s.gaussian_delta(0.1, 1e-3) == pytest.approx(1.0, rel=1e-12)
    assert s.gaussian_delta(1.0, 50.0) < 1e-300
    both = [s.gaussian_delta(0.5, 1.0 * (1 + shift)) for shift in (-1e-9, 1e-9)]
    assert both[0] == pytest.approx(both[1], rel=1e-8)
    assert s.gaussian_delta(0.5, 1.0) == pytest.approx(
        stats.norm.cdf(0.0) - math.exp(0.5) * stats.norm.cdf(-1.0), rel=1e-12
    )
    assert s.gaussian_delta(1.0, 1.0) == s.gaussian_delta(1.0, 1.0, 1.0)
    assert s.gaussian_renyi(3.0, 2.0) == s.gaussian_renyi(3.0, 2.0, 1.0) == 0.375


def test_composition():
    assert s.composed_message(1.0, 2.0) == {"epsilon": 3.0, "delta": 0.0}
    assert s.composed_rounds(0.5, 3) == {"epsilon": 1.5, "delta": 0.0}
    assert s.subsampled_privacy(5.0, 0.01)["delta"] == 0.0
    assert s.subsampled_privacy(800.0, 0.5)["epsilon"] == pytest.approx(800 - math.log(2), rel=1e-14)
    close = [s.subsampled_privacy(1.0 + shift, 0.3)["epsilon"] for shift in (-1e-12, 0.0)]
    assert close[0] == pytest.approx(close[1], rel=1e-10)
    assert s.subsampled_privacy(0.5, 1.0)["epsilon"] == pytest.approx(0.5, rel=1e-15)
    assert s.theta_for_local_epsilon(10, 7, 3.0) == 0.5
    assert s.local_privacy(10, 7, 0.5) == {"epsilon": 3.0, "sensitivity": 6}


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: s.swap_law(0, 5, 1.0), "m must be a whole number of at least 1"),
        (lambda: s.swap_law(5, 0, 1.0), "others must be a whole number of at least 1"),
        (lambda: s.swap_law(5, 5, -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.SwapLaw(5, 5, math.nan), "theta must be a finite number"),
        (lambda: s.SwapLaw(0, 5, 1.0), "m must be a whole number of at least 1"),
        (lambda: s.SwapLaw(5, 0, 1.0), "others must be a whole number of at least 1"),
        (lambda: s.swap_probability(5, 3, 1.0, 4), r"swaps must be a whole number in \[0, 3\]"),
        (lambda: s.swap_probability(5, 3, 1.0, -1), r"swaps must be a whole number in \[0, 3\]"),
        (lambda: s.swap_sets(0, 3, 1), "m must be a whole number of at least 1"),
        (lambda: s.swap_sets(3, 0, 1), "others must be a whole number of at least 1"),
        (lambda: s.swap_sets(3, 3, -1), "swaps must be a whole number of at least 0"),
        (lambda: s.swap_mode(3, 3, -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.swap_saddle(3, 3, -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.flip_probability(-1.0), "theta must be a finite number of at least 0"),
        (lambda: s.swap_mean_derivative(3, 3, math.inf), "theta must be a finite number"),
        (lambda: s.swap_ratio(5, 3, 1.0, 4), r"swaps must be a whole number in \[0, 3\]"),
        (lambda: s.truncation_delta(5, 3, 1.0, -1, 2, 0), "low must be a whole number of at least 0"),
        (lambda: s.truncation_delta(5, 3, 1.0, 3, 2, 0), "high must be a whole number of at least 3"),
        (lambda: s.truncation_delta(5, 3, 1.0, 0, 2, -1), "swaps must be a whole number of at least 0"),
        (lambda: s.published_theta(-1.0, 8), "theta must be a finite number of at least 0"),
        (lambda: s.published_theta(1.0, 0), r"bits must be a whole number in \[1, 65536\]"),
        (lambda: s.index_bits(1, 1), "d must be a whole number of at least 2"),
        (lambda: s.index_bits(8, 9), r"m must be a whole number in \[0, 8\]"),
        (lambda: s.swap_privacy(-1.0, 1), "theta must be a finite number of at least 0"),
        (lambda: s.swap_privacy(1.0, -1), "swaps must be a whole number of at least 0"),
        (lambda: s.local_privacy(1, 1, 1.0), "d must be a whole number of at least 2"),
        (lambda: s.local_privacy(5, 5, 1.0), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.local_privacy(5, 0, 1.0), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.local_privacy(5, 2, -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.theta_for_local_epsilon(5, 2, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.theta_for_swap_epsilon(-1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.leakage(5, 3, 1.0, 4), r"swaps must be a whole number in \[0, 3\]"),
        (lambda: s.leakage(5, 3, 1.0, -1), r"swaps must be a whole number in \[0, 3\]"),
        (lambda: s.privacy_delta(5, 3, 1.0, 0, 1.0), r"swaps must be a whole number in \[1, 3\]"),
        (lambda: s.privacy_delta(5, 3, 1.0, 4, 1.0), r"swaps must be a whole number in \[1, 3\]"),
        (lambda: s.privacy_delta(5, 3, 1.0, 1, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.renyi_divergence(5, 3, 1.0, 1, 1.0), "order must be a finite number above 1"),
        (lambda: s.gain_over_random(5, 5, 1.0), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.gain_over_random(5, 2, -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.grouped_privacy([8, 8], [2], 1.0), "equally long and not empty, got 2 and 1 groups"),
        (lambda: s.grouped_privacy([], [], 1.0), "equally long and not empty, got 0 and 0 groups"),
        (lambda: s.grouped_privacy([8, 8], [2, 9], 1.0), r"kept\[1\] must be a whole number in \[0, 8\], got 9"),
        (lambda: s.grouped_privacy([8, 0], [2, 0], 1.0), r"sizes\[1\] must be a whole number of at least 1"),
        (lambda: s.grouped_privacy([8], [2], -1.0), "theta must be a finite number of at least 0"),
        (lambda: s.metric_optimum(5, 5, 1.0), r"m must be a whole number in \[1, 4\]"),
        (lambda: s.metric_optimum(1, 1, 1.0), "d must be a whole number of at least 2"),
        (lambda: s.two_level_rule(5, 2, 0.0), "epsilon must be a finite number above 0"),
        (lambda: s.kept_at_local_epsilon(5, 2, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.kept_fraction_bound(5, 2, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.rough_kept_fraction(0, 0.5, 1.0), "m must be a whole number of at least 1"),
        (lambda: s.rough_kept_fraction(5, 1.0, 1.0), r"k .* \(0, 1\)"),
        (lambda: s.rough_kept_fraction(5, 0.0, 1.0), r"k .* \(0, 1\)"),
        (lambda: s.rough_kept_fraction(5, 0.5, -1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.composed_message(-1.0, 1.0), "epsilon_index .* at least 0"),
        (lambda: s.composed_message(1.0, -1.0), "epsilon_values .* at least 0"),
        (lambda: s.composed_message(1.0, 1.0, 1.0), r"delta .* \[0, 1\)"),
        (lambda: s.gaussian_sigma(0.0, 1e-5), "epsilon must be a finite number above 0"),
        (lambda: s.gaussian_sigma(1.0, 0.0), r"delta .* \(0, 1\)"),
        (lambda: s.gaussian_sigma(1.0, 1.0), r"delta .* \(0, 1\)"),
        (lambda: s.gaussian_sigma(1.0, 0.1, 0.0), "sensitivity .* above 0"),
        (lambda: s.gaussian_delta(-1.0, 1.0), "epsilon must be a finite number of at least 0"),
        (lambda: s.gaussian_delta(1.0, 0.0), "sigma .* above 0"),
        (lambda: s.gaussian_delta(1.0, 1.0, 0.0), "sensitivity .* above 0"),
        (lambda: s.laplace_scale(0.0, 1.0), "clip .* above 0"),
        (lambda: s.laplace_scale(1.0, 0.0), "epsilon .* above 0"),
        (lambda: s.clip_sensitivity(0.0, 1), "clip .* above 0"),
        (lambda: s.clip_sensitivity(1.0, 0), "m must be a whole number of at least 1"),
        (lambda: s.subsampled_privacy(-1.0, 0.5), "epsilon must be a finite number of at least 0"),
        (lambda: s.subsampled_privacy(1.0, 0.0), r"sampling .* \(0, 1\]"),
        (lambda: s.subsampled_privacy(1.0, 0.5, -1.0), "delta must be a finite number of at least 0"),
        (lambda: s.composed_rounds(-1.0, 1), "epsilon must be a finite number of at least 0"),
        (lambda: s.composed_rounds(1.0, 0), "rounds must be a whole number of at least 1"),
        (lambda: s.composed_rounds(1.0, 1, -1.0), "delta must be a finite number of at least 0"),
        (lambda: s.gaussian_renyi(1.0, 1.0), "order must be a finite number above 1"),
        (lambda: s.gaussian_renyi(2.0, 0.0), "sigma .* above 0"),
        (lambda: s.gaussian_renyi(2.0, 1.0, 0.0), "sensitivity .* above 0"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
