"""Batches held aside choose the damping where samples are few; rows count as the batch norm behind them weighs them."""

from __future__ import annotations

import copy

import torch
from torch import nn

import prunus
from prunus.recovery import ReconstructOptions


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


def test_fewer_images_than_can_be_held_aside_change_nothing() -> None:
    dense, seen, _ = _few_images()
    found = []
    for aside in (False, True):
        pruned = copy.deepcopy(dense)
        options = ReconstructOptions(batch_size=15, aside=aside)
        prunus.reconstruct(pruned, 0.5, seen[:4], pattern="unstructured", samples=4, options=options)
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
