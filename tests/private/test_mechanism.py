"""Noisy top-k draws from exactly its law, on vectors, lists and groups, and says what it costs."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from prunus import select
from prunus.errors import BadInput
from prunus.private import NoisyTopK, Rounded, TwoLevelTopK
from prunus.theory import noisy_topk as theory
from support import scale

ALARM = 1e-6  # false-alarm rate of the statistical tests here


def _subset_counts(mech, vector: torch.Tensor, m: int, draws: int, group: int | None = None) -> np.ndarray:
    """How often each m-subset came out, in the order of itertools.combinations."""
    d = vector.numel()
    number = {subset: place for place, subset in enumerate(itertools.combinations(range(d), m))}
    counts = np.zeros(len(number))
    if group is None:
        for seed in range(draws):
            counts[number[tuple(mech.select(vector, insecure_seed=seed).tolist())]] += 1
        return counts
    kept = mech.select(vector.repeat(draws), group=d, insecure_seed=7).view(draws, m) % d
    for row in kept.tolist():
        counts[number[tuple(row)]] += 1
    return counts


def _overlaps(d: int, m: int, top: set[int]) -> np.ndarray:
    return np.array([len(top & set(subset)) for subset in itertools.combinations(range(d), m)])


CASES = [(6, 2, 0.7), (7, 3, 0.25), (8, 2, 1.2), (7, 5, 0.4)]


@pytest.mark.prove
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("d, m, theta", CASES)
def test_every_subset_comes_as_often_as_the_law_says(d: int, m: int, theta: float, grouped: bool) -> None:
    vector = torch.linspace(1.0, 2.0, d) * torch.tensor([(-1.0) ** i for i in range(d)])
    top = set(select.top_indices(vector, m).tolist())
    draws = scale(40_000, full=200_000) if grouped else scale(3000, full=40_000)
    counts = _subset_counts(NoisyTopK(m, theta), vector, m, draws, group=d if grouped else None)
    density = np.exp(2.0 * theta * _overlaps(d, m, top))
    assert stats.chisquare(counts, draws * density / density.sum()).pvalue > ALARM


@pytest.mark.prove
@pytest.mark.parametrize("d, m, epsilon", [(6, 2, 2.0), (6, 3, 0.5), (8, 3, 1.0)])
def test_two_level_draws_from_its_law(d: int, m: int, epsilon: float) -> None:
    vector = torch.arange(d, 0.0, -1.0)
    draws = scale(40_000, full=200_000)
    counts = _subset_counts(TwoLevelTopK(m, epsilon), vector, m, draws, group=d)
    level = theory.two_level_rule(d, m, epsilon)["level"]
    density = np.where(_overlaps(d, m, set(range(m))) >= level, math.exp(epsilon), 1.0)
    assert stats.chisquare(counts, draws * density / density.sum()).pvalue > ALARM


def test_secure_draws_follow_the_law_too() -> None:
    mech, draws = NoisyTopK(2, 0.7), 20_000
    kept = mech.select(torch.arange(6.0).repeat(draws), group=6).view(draws, 2) % 6
    overlap = (kept >= 4).sum(dim=1)
    law = theory.SwapLaw(2, 4, 0.7).window[1]
    observed = np.array([int((overlap == 2 - i).sum()) for i in range(3)])
    assert stats.chisquare(observed, draws * law).pvalue > ALARM


@pytest.mark.prove
@pytest.mark.parametrize("m, others, theta", [(10_000, 990_000, 3.0), (500_000, 500_000, 0.5)])
def test_swap_counts_at_a_million_coordinates(m: int, others: int, theta: float) -> None:
    from prunus.private.randomness import source

    draws = 10_000
    drawn = NoisyTopK(m, theta).table(m, others).draw(draws, source(3))
    law = theory.SwapLaw(m, others, theta)
    assert abs(drawn.mean() - law.mean) < 4 * math.sqrt(law.variance / draws)
    assert abs(drawn.var() - law.variance) < 4 * law.variance * math.sqrt(2 / draws)


def test_secure_by_default_and_repeatable_with_a_seed() -> None:
    vector = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    mech = NoisyTopK(0.05, 1.0)
    assert not torch.equal(mech.select(vector), mech.select(vector))
    assert torch.equal(mech.select(vector, insecure_seed=4), mech.select(vector, insecure_seed=4))


@pytest.mark.parametrize("mech", [NoisyTopK(0.2, 0.8), TwoLevelTopK(0.2, 4.0), NoisyTopK(0.9, 0.3)])
def test_sets_are_exact_ascending_and_distinct(mech) -> None:
    vector = torch.randn(997, generator=torch.Generator().manual_seed(1))
    with pytest.warns(Rounded, match="not whole"):
        kept = mech.select(vector)
    assert kept.numel() == round(mech.k * 997) == kept.unique().numel()
    assert bool((kept[1:] > kept[:-1]).all())
    assert int(kept.min()) >= 0
    assert int(kept.max()) < 997


def test_a_list_is_ranked_as_one_vector_or_layer_by_layer() -> None:
    tensors = [torch.randn(30, 20), torch.randn(400) * 10.0]
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    mech = NoisyTopK(0.1, 3.0)
    parts = mech.select(tensors, insecure_seed=5)
    joined = torch.cat([parts[0], parts[1] + 600])
    assert torch.equal(joined, mech.select(flat, insecure_seed=5))
    layers = mech.select(tensors, scope="layer", insecure_seed=5)
    assert [part.numel() for part in layers] == [60, 40]
    grouped = mech.select(tensors, group=50, insecure_seed=5)
    assert sum(part.numel() for part in grouped) == 100


def test_groups_keep_their_own_counts_with_a_short_last_one() -> None:
    vector = torch.randn(256 * 40 + 100)
    kept = NoisyTopK(0.1, 1.0).select(vector, group=256)
    counts = torch.bincount(kept // 256, minlength=41).tolist()
    assert counts == [26] * 40 + [10]


def test_groups_keep_the_reference_fraction() -> None:
    """N-15: (256, 26), theta 1 keeps 0.3663208240; 4000 groups, 5 standard errors (false alarm 6e-7)."""
    vector = torch.randn(256 * 4000, generator=torch.Generator().manual_seed(2))
    kept = NoisyTopK(26 / 256, 1.0).select(vector, group=256, insecure_seed=1)
    true = select.drop_smallest_in_banks(vector.view(-1, 256), [230], 256, absolute=True).view(-1)
    law = theory.SwapLaw(26, 230, 1.0)
    error = math.sqrt(law.variance / 4000) / 26
    assert abs(float(true[kept].double().mean()) - 0.3663208240) < 5 * error


def test_sparsify_in_place_keeps_what_was_selected() -> None:
    tensors = [torch.randn(40, 5), torch.randn(100)]
    before = [tensor.clone() for tensor in tensors]
    kept = NoisyTopK(30, 2.0).sparsify_(tensors)
    assert sum(part.numel() for part in kept) == 30
    for tensor, old, places in zip(tensors, before, kept):
        mask = torch.zeros(tensor.numel(), dtype=torch.bool)
        mask[places] = True
        assert torch.equal(tensor.view(-1), torch.where(mask, old.view(-1), torch.zeros(())))


def test_keeping_everything_is_the_identity() -> None:
    vector = torch.randn(50)
    mech = NoisyTopK(1.0, 1.0)
    assert torch.equal(mech.select(vector), torch.arange(50))
    assert mech.expected_error(vector) == 0.0
    assert mech.kept_fraction(50) == 1.0
    assert mech.privacy(50).local == 0.0


@pytest.mark.prove
def test_expected_error_and_variance_of_a_vector_match_draws() -> None:
    """4.9 standard errors, false alarm 1e-6."""
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(400, generator=generator, dtype=torch.float64) * torch.rand(400, generator=generator)
    draws = scale(20_000, full=200_000)
    mech = NoisyTopK(40, 1.2)
    kept = mech.select(vector.repeat(draws), group=400, insecure_seed=9).view(draws, 40) % 400
    errors = vector.square().sum() - vector.square()[kept].sum(dim=1)
    expected, variance = mech.expected_error(vector), mech.error_variance(vector)
    assert abs(float(errors.mean()) - expected) < 4.9 * math.sqrt(variance / draws)
    assert float(errors.var()) == pytest.approx(variance, rel=0.06)


def test_expected_error_of_a_size_is_the_theorems() -> None:
    assert NoisyTopK(0.05, 2.0).expected_error(2000, sigma=0.5) / 2000 == pytest.approx(0.206571, abs=1e-6)
    grouped = NoisyTopK(0.1, 1.0).expected_error(1000, group=100)
    assert grouped == pytest.approx(10 * NoisyTopK(0.1, 1.0).expected_error(100), rel=1e-12)


def test_constructors() -> None:
    assert NoisyTopK.from_swap_epsilon(k=0.01, epsilon=5.28).theta == 2.64
    local = NoisyTopK.from_local_epsilon(k=0.01, epsilon=3.0, d=10_000)
    assert local.privacy(10_000).local == pytest.approx(3.0, rel=1e-15)
    by_error = NoisyTopK.from_error(k=0.1, error=650.0, d=1000)
    assert by_error.expected_error(1000) == pytest.approx(650.0, rel=1e-10)
    with pytest.raises(BadInput, match="exact top-k costs"):
        NoisyTopK.from_error(k=0.1, error=10.0, d=1000)


def test_privacy_says_both_readings_the_unit_and_the_warnings() -> None:
    privacy = NoisyTopK(0.01, 2.64).privacy(d=100_000, swaps=3)
    assert (privacy.per_swap, privacy.local) == (5.28, pytest.approx(5280.0))
    assert privacy.at_distance == pytest.approx(15.84)
    assert not privacy.values_private
    text = str(privacy)
    assert "not private" in text
    assert "no protection" in text
    assert "client" in text
    modest = NoisyTopK.from_local_epsilon(0.01, 1.0, 1000).privacy(1000)
    assert "no protection" not in str(modest)
    assert NoisyTopK(0.1, 1.0).privacy(1000, group=100).local == pytest.approx(200.0)


def test_curves_are_the_ledgers() -> None:
    mech = NoisyTopK(10, 1.0)
    assert mech.delta(1.0, d=100, swaps=1) == pytest.approx(0.2168533471, rel=1e-9)
    assert mech.renyi(2.0, d=100, swaps=10) == pytest.approx(10.3854620372, rel=1e-9)
    assert mech.divergence(100, swaps=1) == pytest.approx(0.59325847, rel=1e-7)
    assert TwoLevelTopK(100, 8.0).kept_fraction(10_000) == pytest.approx(0.047764, abs=1e-6)


def test_used_theta_is_never_less_private() -> None:
    for theta in (0.0, 1e-9, 0.3, 2.65, 40.0, 400.0):
        mech = NoisyTopK(5, theta)
        assert theta - 1e-12 * max(theta, 1.0) <= mech.published_theta <= theta


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: NoisyTopK(0, 1.0), "At least 1"),
        (lambda: NoisyTopK(-0.1, 1.0), "fraction"),
        (lambda: NoisyTopK(1.5, 1.0), "fraction"),
        (lambda: NoisyTopK(True, 1.0), "fraction"),
        (lambda: NoisyTopK(0.1, -1.0), "theta"),
        (lambda: NoisyTopK(0.1, math.nan), "theta"),
        (lambda: NoisyTopK(0.1, 5000.0), "no privacy"),
        (lambda: TwoLevelTopK(0.1, 0.0), "epsilon"),
        (lambda: NoisyTopK(0.1, 1.0).select(torch.tensor([1.0, math.nan] * 10)), "NaN"),
        (lambda: NoisyTopK(0.1, 1.0).select(torch.tensor([1.0, math.inf] * 10)), "infinite"),
        (lambda: NoisyTopK(0.1, 1.0).select([torch.tensor([1.0, math.nan] * 5), torch.ones(10)]), "NaN"),
        (lambda: NoisyTopK(0.1, 1.0).select(torch.tensor([1.0, math.inf] * 10), group=10), "NaN or infinite"),
        (lambda: NoisyTopK(0.1, 1.0).select(torch.empty(0)), "none|empty"),
        (lambda: NoisyTopK(0.001, 1.0).select(torch.ones(10)), "keeps none"),
        (lambda: NoisyTopK(11, 1.0).select(torch.ones(10)), "Cannot keep 11"),
        (lambda: NoisyTopK(5, 1.0).select(torch.ones(10), group=0), "group"),
        (lambda: NoisyTopK(5, 1.0).select([torch.ones(10), torch.ones(10)], scope="bucket"), "scope"),
        (lambda: NoisyTopK(5, 1.0).select(torch.ones(10), insecure_seed=-1), "insecure_seed"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Rounded)
        with pytest.raises(BadInput, match=words):
            make()
