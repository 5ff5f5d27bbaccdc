"""Samples held aside choose the fit where they are few; rows count as the batch norm behind them weighs them."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import PrunusWarning
from prunus.recovery import ReconstructOptions
from prunus.recovery._calibration import FOLDS, calibrate_on


def _few_images() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Images whose places all look alike: a thousand places to fit on, but hardly more directions than images."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(96, 48, 1), nn.ReLU(), nn.Conv2d(48, 96, 1), nn.ReLU(), nn.Conv2d(96, 24, 1)).eval()
    mixing = torch.randn(96, 96)

    def draw(count: int) -> torch.Tensor:
        images = torch.relu(torch.randn(count, 96) @ mixing / 8)
        return images[:, :, None, None] + 0.1 * torch.randn(count, 96, 5, 5)

    return dense, draw(60), draw(300)


def test_a_damping_chosen_on_images_held_aside_does_better_on_fresh_ones() -> None:
    dense, seen, fresh = _few_images()
    off = {}
    for aside in (False, True):
        pruned = copy.deepcopy(dense)
        options = ReconstructOptions(batch_size=6, aside=aside)
        prunus.reconstruct(pruned, 0.5, seen, pattern="unstructured", samples=60, options=options)
        with torch.no_grad():
            off[aside] = float((pruned(fresh) - dense(fresh)).square().mean())
    assert off[True] < 0.9 * off[False]


def test_large_batches_are_cut_so_that_some_images_can_be_held_aside() -> None:
    """With the usual batch size a few hundred images are four batches, of which none would be held aside."""
    dense, seen, _ = _few_images()
    found = []
    for size in (6, 60, 64):
        pruned = copy.deepcopy(dense)
        options = ReconstructOptions(batch_size=size)
        prunus.reconstruct(pruned, 0.5, seen, pattern="unstructured", samples=60, options=options)
        found.append(pruned.state_dict())
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())


def test_large_images_run_in_parts_unless_a_size_is_asked_for() -> None:
    photographs, small = torch.zeros(130, 3, 224, 224), torch.zeros(130, 3, 32, 32)
    assert {batch.size for batch in calibrate_on(nn.Identity(), photographs, 70, None, 0)} == {10, 4, 6}
    assert {batch.size for batch in calibrate_on(nn.Identity(), [photographs], 70, None, 0)} == {
        10
    }  # batches of one's own too
    assert {batch.size for batch in calibrate_on(nn.Identity(), photographs, 60, 12, 0)} == {12}
    assert calibrate_on(nn.Identity(), small, 130, None, 0)[0].size == 13  # two full batches: cut into ten, as before


def test_fewer_images_than_can_be_held_aside_change_nothing() -> None:
    dense, seen, _ = _few_images()
    found = []
    for aside in (False, True):
        pruned = copy.deepcopy(dense)
        options = ReconstructOptions(batch_size=15, aside=aside)
        prunus.reconstruct(pruned, 0.5, seen[:4], pattern="unstructured", samples=4, options=options)
        found.append(pruned.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("count", [40, 48, 49, 60, 61])
def test_a_single_image_in_the_last_batch_is_not_what_the_damping_is_chosen_on(count: int) -> None:
    found = calibrate_on(nn.Identity(), torch.randn(count, 3, 2, 2), count, 12, 0)
    assert sum(batch.size for batch in found) == count
    assert count / 10 < sum(batch.size for batch in found[FOLDS - 1 :: FOLDS]) < count / 3


def _lost(pruned: nn.Module, dense: nn.Module, fresh: torch.Tensor) -> float:
    """The part of the outputs' variance that is lost on inputs never seen."""
    with torch.no_grad():
        out, full = pruned(fresh), dense(fresh)
        return float((out - full).square().sum() / (full - full.mean(0)).square().sum())


def _lost_by_samples(
    dense: nn.Module, seen: torch.Tensor, fresh: torch.Tensor, counts: tuple[int, ...], **more: Any
) -> tuple[float, list[float]]:
    """(with magnitude pruning, after reconstruction on the first so many samples of `seen`)."""
    plain, found = copy.deepcopy(dense), []
    prunus.prune(plain, 0.5, pattern="balanced:16")
    for count in counts:
        pruned = copy.deepcopy(dense)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrunusWarning)  # fewer samples than columns
            prunus.reconstruct(pruned, 0.5, seen[:count], samples=count, **more)
        found.append(_lost(pruned, dense, fresh))
    return _lost(plain, dense, fresh), found


def test_a_linear_layer_loses_no_more_with_as_many_samples_as_columns_than_with_one_less() -> None:
    """Inputs without structure: nothing can be learnt from few of them, and as much harm done."""
    torch.manual_seed(0)
    dense, seen, fresh = nn.Linear(128, 48), torch.randn(1024, 128).relu(), torch.randn(1000, 128).relu()
    plain, found = _lost_by_samples(dense, seen, fresh, (96, 127, 128, 150, 256, 512, 1024))
    assert max(found) < 0.85 * plain
    assert all(more < 1.1 * fewer for fewer, more in itertools.pairwise(found))


def test_the_default_number_of_samples_serves_a_head_with_as_many_columns() -> None:
    torch.manual_seed(0)
    dense, seen, fresh = nn.Linear(512, 32), torch.randn(600, 512).relu(), torch.randn(1000, 512).relu()
    plain, found = _lost_by_samples(dense, seen, fresh, (511, 512, 600))
    assert max(found) < 0.85 * plain
    assert max(found) < 1.05 * min(found)


def test_layers_behind_others_lose_less_the_more_samples_there_are() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    seen, fresh = torch.randn(512, 64), torch.randn(1000, 64)
    plain, found = _lost_by_samples(dense, seen, fresh, (48, 63, 64, 80, 128, 256, 512))
    assert max(found) < plain
    assert all(more < 1.1 * fewer for fewer, more in itertools.pairwise(found))


def test_inputs_with_structure_are_fitted_as_closely_below_the_number_of_columns_as_above() -> None:
    """Twelve directions and next to no noise: few samples show them all, and shrinking would only hide them."""
    torch.manual_seed(0)
    mixing, dense = torch.randn(12, 128), nn.Linear(128, 48)
    draw = lambda count: torch.randn(count, 12) @ mixing + 0.03 * torch.randn(count, 128)  # noqa: E731
    plain, found = _lost_by_samples(dense, draw(160), draw(1000), (100, 127, 128, 160))
    assert max(found) < 0.02 * plain
    assert max(found) < 1.5 * min(found)


def test_without_samples_held_aside_the_shrinking_fades_gradually() -> None:
    torch.manual_seed(0)
    dense, seen, fresh = nn.Linear(128, 48), torch.randn(1024, 128).relu(), torch.randn(1000, 128).relu()
    options = ReconstructOptions(aside=False)
    plain, found = _lost_by_samples(dense, seen, fresh, (127, 128, 150, 180, 256, 1024), options=options)
    assert max(found) < plain
    assert all(more < 1.15 * fewer for fewer, more in itertools.pairwise(found))


def test_plenty_of_places_leave_nothing_to_hold_aside() -> None:
    torch.manual_seed(0)
    dense, seen = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), torch.randn(1100, 16)
    found = []
    for aside in (False, True):
        pruned = copy.deepcopy(dense)
        prunus.reconstruct(pruned, 0.5, seen, samples=1100, options=ReconstructOptions(aside=aside))
        found.append(pruned.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_rows_that_the_batch_norm_silences_are_pruned_first() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)).eval()
    with torch.no_grad():
        model[1].weight[:8] = 0.01
    masks = prunus.reconstruct(model, 0.5, torch.randn(64, 32, 4, 4), pattern="unstructured", samples=64)
    kept = masks["0.weight"].flatten(1).float().mean(1)
    assert kept[:8].max() < 0.1
    assert kept[8:].min() > 0.8
