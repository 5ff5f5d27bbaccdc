from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.papers.noisy_topk import SwapLaw, log_binomial
from prunus.theory import claims
from prunus.theory import noisy_topk as s
from support.theory import cases, checks_of, unchecked, verify

few = settings(max_examples=60, deadline=None, derandomize=True)
SIZES = st.integers(1, 400)
THETAS = st.floats(0.0, 6.0)


@pytest.mark.parametrize("claim, case", cases("noisy_topk"))
def test_case(claim, case):
    verify(claim, case)


@pytest.mark.parametrize("check", checks_of("noisy_topk"))
def test_check(check):
    assert check.run()


def test_every_claim_has_a_check():
    assert not unchecked("noisy_topk")


def exact_weights(law: SwapLaw, low: int, high: int, bits: int = 200) -> list[int]:
    """Integer weights of the law on [low, high] relative to the mode, odds rounded at `bits` bits."""
    odds = s.published_theta(law.theta, bits)["integer"]
    one = 1 << bits
    scaled = {law.mode: 1 << (2 * bits)}
    for i in range(law.mode, high):
        scaled[i + 1] = scaled[i] * (law.m - i) * (law.others - i) * odds // (one * (i + 1) ** 2)
    for i in range(law.mode, low, -1):
        scaled[i - 1] = scaled[i] * i * i * one // ((law.m - i + 1) * (law.others - i + 1) * odds)
    return [scaled[i] for i in range(low, high + 1)]


@pytest.mark.parametrize(
    "m, others, theta",
    [(10**6, 99 * 10**6, 2.65), (10**5, 10**8 - 10**5, 0.0), (1000, 10**8, 1.0), (700, 300, 0.6), (10**6, 10**6, 1e-7)],
)
def test_probabilities_have_twelve_digits(m, others, theta):
    law = SwapLaw(m, others, theta)
    low, probabilities = law.window
    weights = exact_weights(law, low, low + len(probabilities) - 1)
    total = sum(weights)
    scale = 1 << 300
    for place in range(0, len(weights), max(1, len(weights) // 500)):
        exact = weights[place] * scale // total / scale
        assert probabilities[place] == pytest.approx(exact, rel=1e-13)
    mean = sum((low + i) * weight for i, weight in enumerate(weights)) * scale // total / scale
    assert law.mean == pytest.approx(mean, rel=1e-14)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-14)


def test_windows_reach_far_enough():
    law = SwapLaw(10**6, 99 * 10**6, 2.65)
    low, probabilities = law.window
    sd = math.sqrt(law.variance)
    assert low < law.mean - 12 * sd
    assert low + len(probabilities) > law.mean + 12 * sd
    assert len(probabilities) < 40 * sd
    assert 0.0 < probabilities[0] < 1e-55 * probabilities.max()
    assert 0.0 < probabilities[-1] < 1e-55 * probabilities.max()


@few
@given(SIZES, SIZES, THETAS)
def test_the_law(m, others, theta):
    law = SwapLaw(m, others, theta)
    low, probabilities = law.window
    counts = low + np.arange(len(probabilities))
    assert low >= 0
    assert counts[-1] <= law.most == min(m, others)
    assert (probabilities >= 0).all()
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-13)
    assert law.mean == pytest.approx(float(counts @ probabilities), rel=1e-12)
    assert law.variance == pytest.approx(float((counts - law.mean) ** 2 @ probabilities), rel=1e-9)
    assert probabilities[law.mode - low] == probabilities.max()
    other = SwapLaw(others, m, theta)
    assert other.mean == pytest.approx(law.mean, rel=1e-12)
    assert other.log_psi == pytest.approx(law.log_psi, rel=1e-12, abs=1e-15)
    center = m * others / (m + others)
    assert law.gain == pytest.approx(center - law.mean, abs=1e-11 * center)
    assert law.mean <= center * (1 + 1e-13)
    # Lemma 4: the mean falls in theta.
    assert SwapLaw(m, others, theta + 0.1).mean < law.mean


@few
@given(st.integers(1, 60), st.integers(1, 60), st.floats(-4.0, 4.0), st.data())
def test_probabilities_and_tails(m, others, theta, data):
    law = SwapLaw(m, others, theta)
    i = data.draw(st.integers(0, law.most))
    logs = [math.log(math.comb(m, k)) + math.log(math.comb(others, k)) - 2 * theta * k for k in range(law.most + 1)]
    psi = math.log(sum(math.exp(x - max(logs)) for x in logs)) + max(logs)
    assert law.log_psi == pytest.approx(psi, rel=1e-11, abs=1e-12)
    assert law.log_probability(i) == pytest.approx(logs[i] - psi, rel=1e-10, abs=1e-11)
    upper = sum(math.exp(x - psi) for x in logs[i:])
    lower = sum(math.exp(x - psi) for x in logs[: i + 1])
    assert law.at_least(i) == pytest.approx(upper, rel=1e-9, abs=1e-15)
    assert law.at_most(i) == pytest.approx(lower, rel=1e-9, abs=1e-15)
    assert law.at_least(i) + law.at_most(i - 1) == pytest.approx(1.0, abs=1e-12)
    assert (law.at_least(0), law.at_most(law.most)) == (1.0, 1.0)
    assert (law.at_least(law.most + 1), law.at_most(-1)) == (0.0, 0.0)
    rises = [k for k in range(1, law.most + 1) if logs[k] >= logs[k - 1]]
    near = [k for k in range(1, law.most + 1) if abs(logs[k] - logs[k - 1]) < 1e-12]
    if not near:
        assert law.mode == (rises[-1] if rises else 0)


def test_mode_takes_the_larger_of_two():
    # m = others = 1, theta = 0: both counts have probability 1/2.
    assert s.swap_mode(1, 1, 0.0) == 1
    assert s.swap_mode(2, 3, 0.0) == 1
    assert [s.swap_mode(5, 5, theta) for theta in (0.0, 0.5, 1.0, 3.0)] == [3, 2, 1, 0]


def test_far_probabilities():
    law = SwapLaw(1000, 99_000, 2.0)
    assert law.log_probability(0) == pytest.approx(-law.log_psi, rel=1e-12)
    exact = log_binomial(99_000, 1000) - 4000.0 - law.log_psi
    assert law.log_probability(1000) == pytest.approx(exact, rel=1e-12)
    wide = SwapLaw(3 * 10**6, 10**8, 1.0)
    assert wide.log_probability(0) == pytest.approx(-wide.log_psi, rel=1e-12)
    assert wide.at_most(10) == pytest.approx(math.exp(wide.log_probability(10)), rel=1e-3, abs=0.0)
    assert law.at_least(900) == pytest.approx(math.exp(law.log_probability(900)), rel=0.1)
    assert law.at_least(900) > math.exp(law.log_probability(900))


def test_extreme_concentrations():
    frozen = SwapLaw(10, 90, 1e6)
    assert (frozen.mode, frozen.mean, frozen.variance, frozen.log_psi) == (0, 0.0, 0.0, 0.0)
    assert frozen.log_probability(0) == 0.0
    assert frozen.log_probability(1) == pytest.approx(math.log(900) - 2e6, rel=1e-14)
    assert frozen.at_least(1) == 0.0
    assert SwapLaw(10, 90, 390.0).mean == 0.0
    assert SwapLaw(10, 90, 300.0).mean == pytest.approx(900 * math.exp(-600), rel=1e-12)
    assert SwapLaw(10, 90, 20.0).log_psi == pytest.approx(900 * math.exp(-40), rel=1e-12, abs=0.0)
    driven = SwapLaw(10, 90, -1e6)
    assert (driven.mode, driven.mean, driven.variance) == (10, 10.0, 0.0)
    assert SwapLaw(5, 2, -3.0).mode == 2
    assert SwapLaw(7, 7, -20.0).mean == pytest.approx(7 - 49 * math.exp(-40), rel=1e-15)
    assert s.flip_probability(1e6) == 0.0


@pytest.mark.parametrize("theta", [-3.0, -0.2, 0.0, 0.4, 5.0, 30.0])
def test_saddle_solves_its_equation(theta):
    for m, others in ((40, 40), (7, 900), (900, 7)):
        mean, variance = SwapLaw(m, others, theta).saddle
        assert (m - mean) * (others - mean) * math.exp(-2 * theta) == pytest.approx(mean**2, rel=1e-9)
        assert 1 / variance == pytest.approx(2 / mean + 1 / (m - mean) + 1 / (others - mean), rel=1e-9)


def test_gain_at_tiny_concentration():
    m, others = 3277, 32_768 - 3277
    free = SwapLaw(m, others, 0.0)
    assert free.gain == pytest.approx(0.0, abs=1e-10)
    for theta in (1e-12, 2.13e-8, 1e-5):
        assert SwapLaw(m, others, theta).gain == pytest.approx(2 * theta * free.variance, rel=1e-3)
    # Both branches agree where they meet.
    edge = 0.5 / math.sqrt(free.variance)
    below, above = SwapLaw(m, others, edge * 0.999), SwapLaw(m, others, edge * 1.001)
    assert below.gain == pytest.approx(m * others / 32_768 - below.mean, rel=1e-9)
    assert above.gain == pytest.approx(m * others / 32_768 - above.mean, rel=1e-15)


@pytest.mark.parametrize("n", [1, 5, 256, 257, 600, 1000, 20_000])
def test_log_binomial(n):
    for k in {0, 1, n // 3, n // 2, n - 1, n, min(256, n), min(257, n)}:
        exact = math.comb(n, k)
        shift = max(exact.bit_length() - 900, 0)
        assert log_binomial(n, k) == pytest.approx(math.log(exact >> shift) + shift * math.log(2), rel=1e-14)


def test_log_binomial_of_large_numbers():
    for n, k in ((10**8, 256), (10**8, 257), (10**9, 300)):
        steps = [math.log((n - k + step) / step) for step in range(1, k + 1)]
        assert log_binomial(n, k) == pytest.approx(math.fsum(steps), rel=1e-15)
        assert log_binomial(n, n - k) == log_binomial(n, k)


def test_published_theta_is_exact():
    for theta in (1e-9, 0.3, 2.65, 40.0):
        for bits in (8, 64, 256):
            used = s.published_theta(theta, bits)
            assert 1 <= used["integer"] <= 1 << bits
            assert 0.0 <= used["theta"] <= theta
    fine = s.published_theta(2.65, 256)
    assert fine["theta"] == pytest.approx(2.65, rel=1e-15)
    assert fine["integer"] >> 192 == s.published_theta(2.65, 64)["integer"] - 1
    assert s.published_theta(1e300, 4) == {"integer": 1, "theta": pytest.approx(2 * math.log(2), rel=1e-15)}


def test_ratios_are_those_of_the_law():
    law = SwapLaw(30, 50, 0.4)
    for i in (0, 1, 12, 29, 30):
        ratio = s.swap_ratio(30, 50, 0.4, i)
        if i < 30:
            gap = law.log_probability(i + 1) - law.log_probability(i)
            assert ratio["up"] == pytest.approx(math.exp(gap), rel=1e-10)
        if i > 0:
            gap = law.log_probability(i - 1) - law.log_probability(i)
            assert ratio["down"] == pytest.approx(math.exp(gap), rel=1e-10)
    assert s.swap_ratio(30, 50, 0.4, 30)["up"] == 0.0
    assert s.swap_ratio(30, 50, 500.0, 1)["down"] == math.inf


def test_truncation():
    law = SwapLaw(100, 900, 1.0)
    whole = s.truncation_delta(100, 900, 1.0, 50, 80, 0)
    assert whole == pytest.approx(law.at_least(81) + law.at_most(49), rel=1e-12)
    assert s.truncation_delta(100, 900, 1.0, 50, 80, 3) == pytest.approx(law.at_least(78) + law.at_most(52), rel=1e-12)
    assert s.truncation_delta(100, 900, 1.0, 64, 64, 200) == 1.0


def test_index_sets_may_come_with_rounded_fractions():
    assert s.index_sets(30, 0.1)["m"] == 3
    assert s.index_sets(2, 0.5) == {"m": 1, "others": 1, "most_swaps": 1}
    printed = s.index_sets_printed(1000, 0.7)
    assert printed != s.index_sets(1000, 0.7)
    assert claims["N-1"].printed(d=1000, k=0.7) == printed


def test_index_bits_are_symmetric():
    assert s.index_bits(1000, 300) == pytest.approx(s.index_bits(1000, 700), rel=1e-15)
    assert s.index_bits(5, 5) == 0.0
    assert s.index_bits(3000, 1500) == pytest.approx(math.log2(math.comb(3000, 1500)), rel=1e-14)
