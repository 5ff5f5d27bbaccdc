"""Gaps counted together in a ball, and the 2-norm along the difference: never below what inputs show, and tighter."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.certificates import AttackSettings, CertifyOptions, read_pair
from prunus.certificates.bounds.intervals import propagate_ranges
from prunus.certificates.bounds.pointwise import _basis
from prunus.certificates.bounds.recursion import propagate
from prunus.certificates.bounds.relaxation import Relaxation
from support import only_when_proving

WEIGHTS = Path(os.environ.get("PRUNUS_DATA", "nowhere")) / "lenet-mnist" / "lenet5_mnist.pt"


def pooled(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    window = [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, 1)][seed % 3]
    sides = {0: 3, 1: 3, 2: 5}[seed % 3]
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), window, nn.ReLU(), nn.Flatten(), nn.Linear(3 * sides * sides, 6), nn.ReLU(), nn.Linear(6, 3)
    ).eval()


def image(seed: int) -> Tensor:
    """Half flat, so that the inputs of many windows tie."""
    x = torch.full((1, 1, 8, 8), 0.3)
    if seed % 2:
        x[..., 4:] = torch.randn(1, 1, 8, 4)
    return x


@pytest.mark.parametrize("seed", range(6))
def test_no_input_exceeds_what_gaps_cost_together(seed: int) -> None:
    model = pooled(seed)
    pruned = prunus.find_masks(model, 0.5).apply_(copy.deepcopy(model))
    radius = (0.1, 0.5, 2.0)[seed % 3]
    pair, region = read_pair(model, pruned, (1, 8, 8)), prunus.Samples(image(seed), radius).region((1, 8, 8))
    with torch.no_grad():
        relaxation = Relaxation(pair, region, propagate_ranges(pair, region, propagate(pair, region)))
        relaxation.tighten()
        rows = torch.randn(1, 20, *pair.steps[1].shape, dtype=torch.float64)
        both = relaxation.upper(2, rows, rows.flip(1))[0]
        alone = [relaxation.upper_one(2, rows, side)[0] for side in (False, True)]
    move = torch.zeros(20, 1, 8, 8, dtype=torch.float64)
    for number in range(120):  # every row climbs to its own largest value
        start = move.clone().requires_grad_()
        one, two = (pair.run(region.centres + start, side)[2] for side in (False, True))
        found = ((rows[0] * one + rows[0].flip(0) * (two - one)).flatten(1).sum(1)).detach()
        assert bool((found <= both + 1e-12).all())
        for value, bound in zip((one, two), alone):
            assert bool(((rows[0] * value).flatten(1).sum(1) <= bound + 1e-12).all())
        goal = (rows[0] * one + rows[0].flip(0) * (two - one)).sum()
        if number % 3:
            goal = (rows[0] * (one if number % 3 == 1 else two)).sum()
        (slope,) = torch.autograd.grad(goal, start)
        move = move + 0.2 * radius * slope / slope.flatten(1).norm(dim=1).clamp_min(1e-12).reshape(-1, 1, 1, 1)
        length = move.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        move = move * (radius * 0.9999999 / length.clamp_min(1e-12)).clamp_max(1.0)


def test_ties_cost_less_together_than_one_by_one() -> None:
    model = pooled(0)
    pruned = prunus.find_masks(model, 0.5).apply_(copy.deepcopy(model))
    pair, region = read_pair(model, pruned, (1, 8, 8)), prunus.Samples(image(0), 0.1).region((1, 8, 8))
    with torch.no_grad():
        relaxation = Relaxation(pair, region, propagate_ranges(pair, region, propagate(pair, region)))
        relaxation.tighten()
        rows = torch.ones(1, 1, *pair.steps[1].shape, dtype=torch.float64)
        together = relaxation.upper_one(2, rows, False)
        relaxation._maxima[1]._reaches = []
        apart = relaxation.upper_one(2, rows, False)
        value = (rows * pair.run(region.centres, False)[2]).sum()
    assert float(together - value) < 0.8 * float(apart - value)


def test_a_difference_that_stays_counts_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 8)).eval()
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted[2].bias += torch.randn(8) * 10
        shifted[0].weight += 0.02 * torch.randn(20, 6)
    pair, region = read_pair(model, shifted, (6,)), prunus.Samples(torch.randn(1, 6), 0.5).region((6,))
    rows = _basis(pair, region)[0]
    one, two = pair.outputs(region.centres)
    assert torch.allclose(rows @ rows.T, torch.eye(8, dtype=torch.float64), atol=1e-14)
    assert torch.allclose((rows[0] @ (two - one)[0]).abs(), (two - one).norm())
    options = CertifyOptions(methods=("relaxation",), tune=False)
    cert = prunus.certify(model, shifted, prunus.Samples(region.centres, 0.5), options=options)
    assert cert.bound < float(torch.tensor(cert.outputs).norm()) * 0.999
    assert cert.attained <= cert.bound


@only_when_proving
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the LeNet-5 weights are not in PRUNUS_DATA")
def test_lenet_is_tight() -> None:
    from benchmarks.certificates import LeNet, pixels

    model = LeNet()
    model.load_state_dict(torch.load(WEIGHTS, map_location="cpu", weights_only=True))
    digit = nn.functional.interpolate(
        pixels("test", 1).tensors[0].reshape(1, 1, 28, 28), size=(32, 32), mode="bilinear"
    )
    domain = prunus.Samples((digit - 0.1307) / 0.3081, 0.1)
    masks = prunus.find_masks(model.eval(), 0.5)
    cert = prunus.certify(model, masks, domain, attack=AttackSettings(starts=16, steps=60))
    assert cert.tightness < 1.3
