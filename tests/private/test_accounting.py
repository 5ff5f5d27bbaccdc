"""Composition never says less than an independent computation, and the meter stops in time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from prunus.errors import BadInput
from prunus.papers.noisy_topk import gaussian_delta
from prunus.private import accounting
from prunus.private.accounting import Accountant, BudgetSpent, Meter, Release, noise_for_budget

pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
DELTA = 1e-5


def test_gaussian_rounds_are_one_gaussian() -> None:
    """T releases with noise z are one with z / sqrt(T), whose curve is known exactly."""
    epsilon = Accountant({Release(noise_multiplier=8.0): 16}).epsilon(DELTA)
    assert gaussian_delta(epsilon, 8.0 / 4.0) <= DELTA * (1 + 1e-9)
    assert gaussian_delta(epsilon * 0.99, 8.0 / 4.0) > DELTA


def test_pure_rounds_are_optimal_composition() -> None:
    """Against the exact sum over randomised responses (Kairouz, Oh, Viswanath)."""
    single, rounds = 0.05, 200
    epsilon = Accountant({Release(index_epsilon=single): rounds}).epsilon(DELTA)
    heads = np.arange(rounds + 1)
    p = 1 / (1 + math.exp(-single))
    up, down = stats.binom.pmf(heads, rounds, p), stats.binom.pmf(heads, rounds, 1 - p)
    assert np.maximum(up - math.exp(epsilon) * down, 0).sum() <= DELTA * (1 + 1e-9)
    assert epsilon < rounds * single
    assert np.maximum(up - math.exp(epsilon - 0.01) * down, 0).sum() > DELTA


def test_subsampled_gaussian_is_not_below_numerical_integration() -> None:
    """One sampled step: the hockey-stick divergence by integration, add and remove."""
    noise, rate, epsilon = 0.8, 0.1, 0.6
    x = np.linspace(-12, 14, 400_001)
    base = stats.norm.pdf(x, 0, noise)
    mixed = (1 - rate) * base + rate * stats.norm.pdf(x, 1, noise)
    step = x[1] - x[0]
    exact = max(
        np.maximum(mixed - math.exp(epsilon) * base, 0).sum() * step,
        np.maximum(base - math.exp(epsilon) * mixed, 0).sum() * step,
    )
    ours = Accountant({Release(0.0, noise, rate): 1}).epsilon(exact)
    assert epsilon - 1e-6 <= ours < epsilon + 0.01


@pytest.mark.parametrize("index, noise, rate", [(0.7, 1.0, 0.2), (2.0, 1.0, 0.1), (3.0, 0.8, 0.9), (1.0, 1.0, 0.01)])
def test_joint_release_is_the_exact_joint_computation(index: float, noise: float, rate: float) -> None:
    """Indices (randomised response at epsilon) and Gaussian values of the same sampled batch, integrated together."""
    x = np.linspace(-12, 14, 200_001)
    step = x[1] - x[0]
    p = 1 / (1 + math.exp(-index))
    zero = np.concatenate([(1 - p) * stats.norm.pdf(x, 0, noise), p * stats.norm.pdf(x, 0, noise)])
    one = np.concatenate([p * stats.norm.pdf(x, 1, noise), (1 - p) * stats.norm.pdf(x, 1, noise)])
    mixed = (1 - rate) * zero + rate * one
    release = Release(index, noise, rate)
    for epsilon in (0.1, 0.4, 0.8):
        exact = max(
            np.maximum(mixed - math.exp(epsilon) * zero, 0).sum() * step,
            np.maximum(zero - math.exp(epsilon) * mixed, 0).sum() * step,
        )
        assert epsilon - 1e-6 <= Accountant({release: 1}).epsilon(exact) < epsilon + 1e-3


def test_joint_releases_compose_as_simulated() -> None:
    """Eight sampled releases, 200,000 draws of the loss from both sides, within 4.5 standard errors (1e-5 each)."""
    index, noise, rate, steps, draws = 1.0, 1.0, 0.1, 8, 200_000
    random, p = np.random.default_rng(0), 1 / (1 + math.exp(-index))
    exact = []
    for side in ("remove", "add"):
        loss = np.zeros(draws)
        for _ in range(steps):
            shifted = random.random(draws) < (rate if side == "remove" else 0.0)
            sign = np.where(random.random(draws) < np.where(shifted, p, 1 - p), 1.0, -1.0)
            ratio = sign * index + (random.normal(size=draws) * noise + shifted - 0.5) / noise**2
            loss += np.log1p(rate * np.expm1(ratio)) * (1.0 if side == "remove" else -1.0)
        exceeding = np.maximum(-np.expm1(1.0 - loss), 0.0)
        exact.append((exceeding.mean(), exceeding.std() / math.sqrt(draws)))
    delta, error = max(exact)
    accountant = Accountant({Release(index, noise, rate): steps})
    assert accountant.epsilon(delta + 4.5 * error) <= 1.0 + 1e-3
    assert accountant.epsilon(delta - 4.5 * error) >= 1.0


@pytest.mark.parametrize(
    "release, steps, delta, together, apart",
    [
        (Release(1.0, 0.75, 1 / 79), 237, 1e-5, 4.334, 6.789),  # both as the guide says
        (Release(1.0, 1.5, 0.03), 30, 1e-6, 1.537, 2.160),
    ],
)
def test_joint_release_lies_between_its_parts_and_the_bound_for_wide_ones(
    release: Release, steps: int, delta: float, together: float, apart: float, monkeypatch
) -> None:
    values = Accountant({replace(release, index_epsilon=0.0): steps}).epsilon(delta)
    assert values < Accountant({release: steps}).epsilon(delta) == pytest.approx(together, abs=2e-3)
    monkeypatch.setattr(accounting, "_WIDEST", 0.0)
    accounting._composed.cache_clear()
    assert Accountant({release: steps}).epsilon(delta) == pytest.approx(apart, abs=2e-3)
    accounting._composed.cache_clear()


def test_treating_both_as_sampled_apart_would_be_below_the_truth_somewhere() -> None:
    """Why the values are amplified at the raised rate: the rate given the indices is higher."""
    release = Release(2.0, 1.0, 0.1)
    assert release.raised_sampling == pytest.approx(0.1 * math.e**2 / (0.9 + 0.1 * math.e**2))
    assert Release(0.0, 1.0, 0.1).raised_sampling == pytest.approx(0.1)


def test_discrete_noise_composes_on_renyi_curves() -> None:
    epsilon = Accountant({Release(rho=0.01): 50}).epsilon(DELTA)
    assert gaussian_delta(epsilon, 1.0) <= DELTA  # rho = 0.5 in all is a Gaussian with noise 1
    assert epsilon < 0.5 + 2 * math.sqrt(0.5 * math.log(1 / DELTA))
    both = Accountant({Release(rho=0.01, index_epsilon=0.1): 50}).epsilon(DELTA)
    assert both > epsilon


def test_large_pure_parts_add_up_and_nothing_private_is_infinite() -> None:
    assert Accountant({Release(index_epsilon=5280.0): 3}).epsilon(DELTA) == pytest.approx(15840.0)
    assert Accountant({Release(value_epsilon=2.0): 3}).epsilon(0.0) == pytest.approx(6.0)
    assert Accountant({Release(noise_multiplier=0.0): 1}).epsilon(DELTA) == math.inf
    assert Accountant().epsilon(DELTA) == 0.0


def test_meter_stops_before_the_budget_and_counts_nothing_more() -> None:
    meter = Meter(1.0, DELTA)
    release = Release(0.0, 4.0, 0.5)
    steps = 0
    with pytest.raises(BudgetSpent, match="nothing was released"):
        while True:
            meter.spend(release)
            steps += 1
    assert meter.accountant.releases[release] == steps
    assert meter.epsilon <= 1.0 < meter.accountant.with_more(release, 1).epsilon(DELTA)


def test_noise_for_a_budget_meets_it() -> None:
    noise = noise_for_budget(3.0, DELTA, 100, 0.05)
    assert 2.8 < Accountant({Release(0.0, noise, 0.05): 100}).epsilon(DELTA) <= 3.0
    with pytest.raises(BadInput, match="indices alone"):
        noise_for_budget(1.0, DELTA, 1000, 0.1, index_epsilon=50.0)


@pytest.mark.parametrize(
    "arguments",
    [{"index_epsilon": -1.0}, {"sampling": 0.0}, {"noise_multiplier": -1.0}, {"rho": 1.0, "sampling": 0.5}],
)
def test_bad_releases(arguments) -> None:
    with pytest.raises(BadInput):
        Release(**arguments)
