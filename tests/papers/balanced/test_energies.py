from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from prunus.errors import BadInput
from prunus.formulas import quadrature
from prunus.theory import balanced as o
from prunus.theory import claims

LAWS = st.sampled_from(["normal", "uniform", "laplace"])
few = settings(max_examples=40, deadline=None, derandomize=True)


# Kept of every bank, removed share, excess in percent, dB lost, equivalent sparsity (ledger B-3).
PATTERNS = """
1:2 0.1816901138 154.7322 4.0608 0.66500
2:4 0.1324474031 85.6932 2.6880 0.60515
4:8 0.1033067181 44.8376 1.6088 0.56099
8:16 0.0876333816 22.8633 0.8942 0.53318
16:32 0.0795514223 11.5323 0.4740 0.51736
32:64 0.0754554868 5.7897 0.2444 0.50889
3:4 0.0301755353 261.5162 5.5813 0.38017
1:4 0.3824474031 38.3709 1.4104 0.81883
2:8 0.3353637624 21.3358 0.8399 0.79079
4:16 0.3074940638 11.2525 0.4631 0.77240
16:64 0.2844765834 2.9247 0.1252 0.75603
64:256 0.2784331180 0.7381 0.0319 0.75154
1:8 0.5678207748 14.0991 0.5728 0.90261
2:16 0.5363249528 7.7703 0.3250 0.89074
4:32 0.5179692912 4.0819 0.1738 0.88344
1:16 0.7156577701 5.9769 0.2521 0.94863
2:32 0.6973981295 3.2730 0.1399 0.94372
1:32 0.8215779593 2.7238 0.1167 0.97332
"""


@pytest.mark.parametrize("row", PATTERNS.split("\n")[1:-1])
def test_patterns(row):
    name, *numbers = row.split()
    energy, percent, decibels, equivalent = map(float, numbers)
    kept, n = map(int, name.split(":"))
    cost = o.bank_cost(n, n - kept)
    assert o.bank_energy(n, n - kept) == pytest.approx(energy, abs=1e-10)
    assert 100 * cost["relative"] == pytest.approx(percent, abs=1e-4)
    assert cost["decibels"] == pytest.approx(decibels, abs=1e-4)
    assert cost["equivalent_sparsity"] == pytest.approx(equivalent, abs=1e-5)


def test_small_sparsity_does_not_cancel():
    for sparsity in (1e-6, 1e-9, 1e-30):
        assert o.limit_energy(sparsity)["energy"] == pytest.approx(math.pi * sparsity**3 / 6, rel=1e-9)
    assert o.limit_energy(1e-12, "laplace")["energy"] == pytest.approx(1e-36 / 6, rel=1e-9)


def test_ends_of_the_limit():
    nothing, everything = o.limit_energy(0.0), o.limit_energy(1.0)
    assert nothing["decibels"] == math.inf
    assert everything["threshold"] == everything["slope"] == math.inf
    assert everything["decibels"] == 0.0
    assert math.copysign(1.0, everything["decibels"]) == 1.0
    assert o.limit_energy(1.0, "laplace")["energy"] == 1.0
    assert o.limit_energy(1.0, "uniform")["threshold"] == pytest.approx(math.sqrt(3.0), rel=1e-15)
    assert o.sparsity_for_energy(1.0)["threshold"] == math.inf


def test_arrays_and_scalars_agree():
    levels = np.array([[0.0, 0.1, 0.5], [0.75, 0.999, 1.0]])
    for law in ("normal", "uniform", "laplace"):
        many = o.limit_energy(levels, law)
        for name, values in many.items():
            assert values.shape == levels.shape
            assert [o.limit_energy(float(level), law)[name] for level in levels.flat] == values.ravel().tolist()
    assert type(o.limit_energy(0.5)["energy"]) is float
    assert o.limit_fourth_moment(levels)["mean_fourth"][1, 2] == 3.0
    assert o.small_sparsity_energy(levels).shape == levels.shape
    inverse = o.sparsity_for_energy(o.limit_energy(levels)["energy"])["sparsity"]
    assert inverse == pytest.approx(levels, rel=1e-12)


@few
@given(LAWS, st.integers(1, 60), st.data())
def test_energies_grow_with_what_is_removed(law, n, data):
    r = data.draw(st.integers(0, n))
    removed, kept = o.energy_split(n, r, law)
    assert removed == o.bank_energy(n, r, law)
    assert 0.0 <= removed <= r / n + 1e-15
    assert removed + kept == pytest.approx(1.0, abs=1e-14)
    if 0 < r < n:
        assert o.bank_energy(n, r - 1, law) < removed < o.bank_energy(n, r + 1, law)
        assert o.rank_energy(n, r, law) < o.rank_energy(n, r + 1, law)
        step = o.bank_energy(n, r, law) - o.bank_energy(n, r - 1, law)
        assert o.rank_energy(n, r, law) == pytest.approx(n * step, rel=1e-9)


@few
@given(LAWS, st.integers(1, 20), st.integers(1, 20), st.integers(2, 40))
def test_larger_banks_lose_less(law, r, kept, factor):
    n = r + kept
    small, large = o.bank_cost(n, r, law), o.bank_cost(factor * n, factor * r, law)
    assert 0.0 < large["excess"] < small["excess"]
    assert 0.0 < large["decibels"] < small["decibels"]
    assert r / n < large["equivalent_sparsity"] < small["equivalent_sparsity"] < 1.0
    assert small["limit"] + small["excess"] == pytest.approx(o.bank_energy(n, r, law), rel=1e-13)


@few
@given(st.floats(1e-6, 1 - 1e-9), LAWS)
def test_limit_and_inverse(sparsity, law):
    level = o.limit_energy(sparsity, law)
    assert 0.0 < level["energy"] <= sparsity
    assert level["mean_square"] == pytest.approx(level["energy"] / sparsity, rel=1e-15)
    assert level["decibels"] == pytest.approx(-10 * math.log10(level["energy"]), rel=1e-9, abs=1e-9)
    back = o.sparsity_for_energy(level["energy"], law)
    assert back["sparsity"] == pytest.approx(sparsity, rel=1e-9)
    assert back["threshold"] == pytest.approx(level["threshold"], rel=1e-6)


@pytest.mark.parametrize("n, r", [(10**9, 1), (10**9, 1000), (10**9, 5 * 10**8), (10**9, 10**9 - 1), (10**6, 999_990)])
def test_very_large_samples(n, r):
    uniform = r * (r + 1) * (r + 2) / (n * (n + 1) * (n + 2))
    assert o.bank_energy(n, r, "uniform") == pytest.approx(uniform, rel=1e-12)
    removed, kept = o.energy_split(n, r)
    limit = o.limit_energy(r / n)["energy"]
    assert limit < removed <= limit * 6.1
    assert removed + kept == pytest.approx(1.0, abs=1e-14)


def test_the_excess_keeps_its_digits():
    n, r = 10**8, 3 * 10**7
    exact = r * (r + 1) * (r + 2) / (n * (n + 1) * (n + 2)) - (r / n) ** 3
    assert o.bank_cost(n, r, "uniform")["excess"] == pytest.approx(3 * 0.3**2 * 0.7 / n, rel=1e-6)
    assert o.bank_cost(n, r, "uniform")["excess"] == pytest.approx(exact, rel=1e-6)


def test_kept_energy_of_a_few():
    # The kept share of 10 out of a million would lose eight digits as 1 - removed.
    kept = o.energy_split(10**6, 10**6 - 10)[1]
    assert kept == pytest.approx(sum(o.rank_energy(10**6, 10**6 - i) for i in range(10)) / 10**6, rel=1e-11)


@pytest.mark.parametrize("a, b", [(1, 1), (1, 999), (999, 1), (7, 3), (10**6, 10**9), (10**9, 10**6)])
def test_negligible_levels_are_negligible_and_not_far(a, b):
    level = quadrature.negligible_level(a, b)
    assert special.betainc(a, b, level) < math.exp(-43.9)
    assert special.betainc(a, b, min(level * (1 + 3 / math.sqrt(a)), 1.0)) > 1e-26


def test_rank_variances_scale():
    assert o.rank_variance(50, 20, 3.0) == pytest.approx(9.0 * o.rank_variance(50, 20), rel=1e-14)
    assert o.rank_variance_printed(50, 20, 3.0) == pytest.approx(9.0 * o.rank_variance_printed(50, 20), rel=1e-14)
    many = o.rank_variances(50, np.arange(1.0, 50.0))
    assert many == pytest.approx([o.rank_variance(50, rank) for rank in range(1, 50)], rel=1e-12)
    assert o.rank_variance_printed(50, 20) == pytest.approx(o.rank_variance_printed(50, 30), rel=1e-12)


def test_sums_of_printed_variances_come_in_chunks():
    whole = o.signed_variance_sum(2**20, 2**20 - 1)
    halves = o.signed_variance_sum(2**20, 2**19)
    middle = o.rank_variance_printed(2**20, 2**19)
    assert whole == pytest.approx(2 * halves - middle, rel=1e-12)
    assert o.signed_variance_sum(64, 3, step=8) == pytest.approx(
        sum(o.rank_variance_printed(64, rank) for rank in (8, 16, 24)), rel=1e-13
    )
    assert o.bank_energy_printed(64, 0) == 0.0


@pytest.mark.parametrize("identifier", ["B-3", "B-8c"])
def test_errata(identifier):
    claim = claims[identifier]
    arguments = {"n": 64, "r": 32} if identifier == "B-3" else {"n": 64, "rank": 32}
    (right,), (printed,) = claim(**arguments).values(), claim.printed(**arguments).values()
    assert abs(printed / right - 1) > 0.5
    assert claims["B-2a"].printed(sparsity=0.5) is None


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: o.limit_energy(1.1), r"sparsity must be a finite number in \[0, 1\], got 1.1"),
        (lambda: o.limit_energy([0.5, math.nan]), "sparsity must hold finite numbers only"),
        (lambda: o.limit_energy(0.5, "cauchy"), "no law named 'cauchy'. Known: laplace, normal, uniform"),
        (lambda: o.limit_fourth_moment(-0.1), r"sparsity .* \[0, 1\]"),
        (lambda: o.small_sparsity_energy(-1e-9), r"sparsity .* \[0, 1\]"),
        (lambda: o.small_sparsity_energy(1.1), r"sparsity .* \[0, 1\]"),
        (lambda: o.limit_fourth_moment(1.1), r"sparsity .* \[0, 1\]"),
        (lambda: o.sparsity_for_energy(1.5), r"energy .* \[0, 1\]"),
        (lambda: o.sparsity_for_energy(-0.5), r"energy .* \[0, 1\]"),
        (lambda: o.bank_energy(0, 0), r"n must be a whole number in \[1, 1000000000\], got 0"),
        (lambda: o.bank_energy(10**9 + 1, 0), r"n must be a whole number in \[1, 1000000000\]"),
        (lambda: o.bank_energy(4, 5), r"r must be a whole number in \[0, 4\], got 5"),
        (lambda: o.bank_energy(4, -1), r"r must be a whole number in \[0, 4\], got -1"),
        (lambda: o.bank_energy(4, 1.5), "r must be a whole number"),
        (lambda: o.bank_energy_printed(4, 4), r"r must be a whole number in \[0, 3\], got 4"),
        (lambda: o.bank_energy_printed(1, 0), r"n must be a whole number in \[2, 1000000000\]"),
        (lambda: o.bank_cost(1, 1), r"n must be a whole number in \[2, "),
        (lambda: o.bank_cost(4, 0), r"r must be a whole number in \[1, 3\], got 0"),
        (lambda: o.bank_cost(4, 4), r"r must be a whole number in \[1, 3\], got 4"),
        (lambda: o.rank_energy(4, 0), r"rank must be a whole number in \[1, 4\], got 0"),
        (lambda: o.rank_energy(4, 5), r"rank must be a whole number in \[1, 4\], got 5"),
        (lambda: o.rank_energy(0, 1), r"n must be a whole number in \[1, "),
        (lambda: o.rank_variance(4, 4), r"rank must be a whole number in \[1, 3\], got 4"),
        (lambda: o.rank_variance(4, 0), r"rank must be a whole number in \[1, 3\], got 0"),
        (lambda: o.rank_variance(1, 1), r"n must be a whole number in \[2, "),
        (lambda: o.rank_variance(4, 1, 0.0), "sigma_weight must be a finite number above 0"),
        (lambda: o.rank_variance_printed(4, 1, -1.0), "sigma_weight must be a finite number above 0"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
