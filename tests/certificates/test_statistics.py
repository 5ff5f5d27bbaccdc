from __future__ import annotations

import copy

import pytest
import torch
from scipy import stats
from torch import nn

import prunus
from certificates.networks import fully_connected
from prunus.certificates import certify_over_masks
from prunus.errors import BadInput
from prunus.theory import closeness
from support import scale


def pruned_pair(seed: int = 0) -> tuple[nn.Module, prunus.Masks, tuple[int, ...]]:
    model, shape = fully_connected(seed, width=32, inputs=8)
    return model, prunus.find_masks(model, 0.5, exclude=("0",)), shape


@pytest.mark.parametrize(
    ("k", "n", "upper"),
    [
        (0, 59, 0.049508),
        (0, 299, 0.009969),
        (0, 600, 0.004980),
        (1, 600, 0.007882),
        (5, 600, 0.017441),
        (30, 600, 0.067210),
    ],
)
def test_the_upper_bounds_of_the_ledger(k, n, upper):
    model, masks, shape = pruned_pair()
    inputs = torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))
    found = prunus.certify_statistically(model, masks, inputs, confidence=0.95, exceedances=k)
    assert found.probability == pytest.approx(upper, abs=1e-6)
    assert closeness.exceedance_upper(n, k, 0.05) == pytest.approx(upper, abs=1e-6)


def test_order_statistic_and_fixed_error_agree():
    model, masks, shape = pruned_pair()
    inputs = torch.randn(200, *shape, generator=torch.Generator().manual_seed(1))
    free = prunus.certify_statistically(model, masks, inputs, exceedances=3)
    fixed = prunus.certify_statistically(model, masks, inputs, error=free.bound)
    assert fixed.exceedances == 3
    assert fixed.probability == free.probability
    with torch.no_grad():
        other = masks.apply_(copy.deepcopy(model))
        distances = (other(inputs) - model(inputs)).double().norm(dim=1)
    assert free.largest == pytest.approx(float(distances.max()), rel=1e-6)
    assert "200 points" in free.statement


@pytest.mark.prove
def test_the_statement_fails_as_rarely_as_it_says():
    """Fresh samples, one large population: failures stay within the binomial law of 1 - confidence (alarm 1e-6)."""
    model, masks, shape = pruned_pair(2)
    other = masks.apply_(copy.deepcopy(model))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        population = torch.randn(200_000, *shape, generator=generator)
        distances = (other(population) - model(population)).norm(dim=1).double().sort().values
    trials, failures = scale(400, full=4000), 0
    for _ in range(trials):
        sample = torch.randn(60, *shape, generator=generator)
        found = prunus.certify_statistically(model, masks, sample, confidence=0.9, exceedances=2)
        beyond = 1 - float(torch.searchsorted(distances, found.bound, right=True)) / distances.numel()
        failures += beyond > found.probability
    assert stats.binom.sf(failures - 1, trials, 0.1) > 1e-6
    assert failures > 0.02 * trials  # and it is not idle: the bound is exact for continuous distances


def test_labels_and_margins_stand_beside_the_distance():
    model, masks, shape = pruned_pair()
    found = prunus.certify_statistically(model, masks, torch.randn(300, *shape))
    assert found.kept_by_margin <= found.agreement  # a margin above sqrt(2) times the distance keeps the label
    assert found.agreement_low < found.agreement


def test_data_sets_work_as_tensors_do():
    model, masks, shape = pruned_pair()
    inputs = torch.randn(20, *shape)
    pairs = [(row, 0) for row in inputs]
    whole = torch.utils.data.TensorDataset(inputs, torch.zeros(20))
    results = [prunus.certify_statistically(model, masks, data).to_dict() for data in (inputs, pairs, whole)]
    assert results[0] == results[1] == results[2]


def test_bad_samples_are_refused():
    model, masks, shape = pruned_pair()
    inputs = torch.randn(5, *shape)
    for confidence in (0, 1, -0.5, 2, "0.9"):
        with pytest.raises(BadInput, match="strictly between"):
            prunus.certify_statistically(model, masks, inputs, confidence=confidence)
    with pytest.raises(BadInput, match="empty"):
        prunus.certify_statistically(model, masks, inputs[:0])
    with pytest.raises(BadInput, match="set aside"):
        prunus.certify_statistically(model, masks, inputs, exceedances=5)
    with pytest.raises(BadInput, match="0 or a positive"):
        prunus.certify_statistically(model, masks, inputs, error=-1.0)


def test_random_masks_give_an_exact_interval():
    model, _, shape = pruned_pair()
    inputs = torch.randn(30, *shape)
    every = certify_over_masks(model, inputs, 1e9, sparsity=0.5, trials=10)
    assert (every.successes, every.high) == (10, 1.0)
    assert every.low == pytest.approx(closeness.success_interval(10, 10)["low"])
    none = certify_over_masks(model, prunus.Ball(1.0), 1e-9, sparsity=0.5, trials=5)
    assert (none.successes, none.low) == (0, 0.0)
    assert len(set(none.values)) == 5  # five different masks
    with pytest.raises(BadInput, match="At least one"):
        certify_over_masks(model, inputs, 1.0, sparsity=0.5, trials=0)
