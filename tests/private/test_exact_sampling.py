"""The integer tables are the laws to all digits, and their tails are never cut."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from prunus.private import integer_weights
from prunus.private.randomness import Source, source
from prunus.theory import noisy_topk as theory


@pytest.mark.parametrize("m, others, theta", [(10, 90, 1.0), (1000, 99_000, 2.0), (1_000_000, 99_000_000, 2.65)])
def test_swap_weights_are_the_law(m: int, others: int, theta: float) -> None:
    table = integer_weights.swap_table(m, others, theta)
    low, law = theory.SwapLaw(m, others, theta).window
    for place in np.linspace(0, len(table.positions) - 1, 200).astype(int):
        i = int(table.positions[place])
        if low <= i < low + len(law):
            assert float(Fraction(table.weights[place], table.total)) == pytest.approx(law[i - low], rel=1e-12)


@pytest.mark.parametrize("m, others, theta", [(30, 50, 0.9), (400, 800, 0.01), (8, 8, 3.0), (2000, 8000, 1.5)])
def test_one_swap_never_costs_more_than_said(m: int, others: int, theta: float) -> None:
    """Per index set the weights of neighbouring swap counts differ by at most 2^W / Q, in exact arithmetic."""
    table = integer_weights.swap_table(m, others, theta)
    odds, bits, used = integer_weights.used_odds(theta)
    most = Fraction(1 << bits, odds)
    assert used <= theta
    assert math.log(most) == pytest.approx(2 * used, rel=1e-12)
    for place in range(len(table.positions) - 1):
        i = int(table.positions[place])
        # f(i) / f(i+1) with f the weight over C(m, i) C(others, i)
        ratio = Fraction(table.weights[place], table.weights[place + 1]) * Fraction(
            (m - i) * (others - i), (i + 1) ** 2
        )
        assert 1 / most <= ratio <= most


def test_two_level_weights_stay_within_epsilon() -> None:
    d, m, epsilon = 300, 40, 12.0
    table = integer_weights.two_level_table(m, d - m, epsilon)
    density = [
        Fraction(weight, math.comb(m, int(i)) * math.comb(d - m, int(i)))
        for i, weight in zip(table.positions, table.weights)
    ]
    assert float(max(density) / min(density)) <= math.exp(epsilon) * (1 + 1e-12)
    assert max(density) / min(density) < Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**12))
    low, law = theory.two_level_law(d, m, epsilon)
    for i, weight in zip(table.positions, table.weights):
        if 0 <= i - low < len(law) and law[i - low] > 1e-30:
            assert float(Fraction(weight, table.total)) == pytest.approx(law[i - low], rel=1e-9)


class _Scripted(Source):
    """All bits one: a draw that lands at the very end of the table."""

    def __init__(self) -> None:
        super().__init__(lambda size: b"\xff" * size, secure=False)

    def below(self, bound: int) -> int:
        return bound - 1


def test_tails_are_extended_and_weighted_right() -> None:
    """Points in the remainder map to positions beyond the window, each with its exact share."""
    m, others, theta = 5000, 20_000, 0.5
    table = integer_weights.swap_table(m, others, theta)
    low, high = int(table.positions[0]), int(table.positions[-1])
    law = theory.SwapLaw(m, others, theta)
    assert low > 0
    assert high < law.most
    zero = Source(lambda size: bytes(size), secure=False)
    found = table.beyond(0, 64, zero)
    assert found == low - 1
    # Walk through the first tail weights: their widths must be the law's probabilities.
    weight_below = Fraction(math.exp(law.log_probability(low - 1) - law.log_probability(low))) * table.weights[0]
    point = int(weight_below * (1 << 64))
    assert table.beyond(int(point * 0.999), 64, zero) == low - 1
    assert table.beyond(int(point * 1.001), 64, zero) == low - 2


def test_the_slack_of_the_bound_is_refused() -> None:
    table = integer_weights.swap_table(5000, 20_000, 0.5)
    rest = table.total - table._ends[-1]
    assert table.beyond((rest << 64) - 1, 64, _Scripted()) is None
    assert rest * (1 << 130) < table.total


def test_far_tail_needs_several_extensions() -> None:
    """A point just below all the tail's weight lies many orders of magnitude down, at the end of the support."""
    table = integer_weights.swap_table(60, 60, 3.0)
    positions = {int(i) for i in table.positions}
    beyond = set(range(61)) - positions
    assert beyond, "this law must have a tail beyond its window"
    reached = set()
    for fraction in range(1, 4000):
        rest = table.total - table._ends[-1]
        found = table.beyond((rest << 64) * fraction // 4000, 64, source(fraction))
        if found is not None:
            reached.add(found)
    assert reached
    assert reached <= beyond


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_noise_tables_are_their_laws(name: str) -> None:
    size = Fraction(7, 2)
    table = integer_weights.gaussian_table(size) if name == "gaussian" else integer_weights.laplace_table(size)
    x = table.positions.astype(float)
    log = -(x**2) / (2 * 3.5**2) if name == "gaussian" else -np.abs(x) / 3.5
    ours = np.array([float(Fraction(weight, table.weights[len(x) // 2])) for weight in table.weights])
    assert np.allclose(ours, np.exp(log), rtol=1e-12, atol=0)
    drawn = table.draw(40_000, source(11))
    near = np.abs(table.positions) <= 9
    law = np.array([float(Fraction(weight, table.total)) for weight in table.weights])
    expected = np.append(law[near], law[~near].sum()) * 40_000
    counts = np.array([(drawn == i).sum() for i in table.positions[near]])
    observed = np.append(counts, 40_000 - counts.sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


def test_subsets_are_uniform() -> None:
    bits = source(5)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(10_000):
        subset = tuple(bits.subset(3, 6).tolist())
        counts[subset] = counts.get(subset, 0) + 1
    assert len(counts) == 20
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, (1 << 32) - 5, (1 << 40) + 3])
def test_uniform_integers_stay_below_and_reach_everywhere(bound: int) -> None:
    values = source(6).uniform(5000, bound)
    assert values.min() >= 0
    assert values.max() < bound
    assert stats.kstest(values / bound, "uniform").pvalue > 1e-6 or bound < 1000
