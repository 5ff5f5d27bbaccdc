"""The methods against each other and against what is known exactly."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn

import prunus
from certificates.networks import convolutional, fully_connected, residual
from prunus.certificates import AttackSettings, Bounds, ascend, read_pair
from prunus.certificates.bounds.backward import transpose
from prunus.certificates.bounds.floats import gamma
from prunus.certificates.bounds.intervals import propagate_ranges
from prunus.certificates.bounds.products import bound_products
from prunus.certificates.bounds.recursion import propagate
from prunus.certificates.bounds.relaxation import Relaxation
from prunus.certificates.bounds.zonotopes import zonotope_ranges
from prunus.errors import BadInput


def two_linear_layers() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 9, bias=False), nn.Linear(9, 3, bias=False)).double().eval()
    two = copy.deepcopy(one)
    with torch.no_grad():
        two[0].weight[two[0].weight.abs() < 0.2] = 0
    return one, two


def test_without_activations_the_products_are_exact():
    one, two = two_linear_layers()
    pair = read_pair(one, two, (5,))
    region = prunus.Ball(2.0).region((5,))
    sizes = propagate(pair, region)
    found = bound_products(pair, region, sizes, propagate_ranges(pair, region, sizes))
    change = (two[1].weight @ two[0].weight - one[1].weight @ one[0].weight).detach()
    truth = 2 * torch.linalg.matrix_norm(change, 2)
    assert float(found) == pytest.approx(float(truth), rel=1e-8)
    assert ascend(pair, region).distance == pytest.approx(float(truth), rel=1e-3)


def test_without_activations_the_relaxation_is_exact_in_each_coordinate():
    one, two = two_linear_layers()
    pair = read_pair(one, two, (5,))
    region = prunus.Ball(2.0).region((5,))
    relaxation = Relaxation(pair, region, propagate_ranges(pair, region))
    difference = two[1].weight @ two[0].weight - one[1].weight @ one[0].weight
    truth = 2 * torch.linalg.vector_norm(difference.detach())
    assert float(relaxation.outputs().norm()) == pytest.approx(float(truth), rel=1e-8)


def test_products_step_aside_for_what_is_no_chain():
    model, shape = convolutional(0, channels=8, side=8)
    pair = read_pair(model, copy.deepcopy(model), shape)
    region = prunus.Ball(1.0).region(shape)
    sizes = propagate(pair, region)
    assert bound_products(pair, region, sizes, propagate_ranges(pair, region, sizes)) is None


def test_small_neighbourhoods_favour_the_relaxation_and_large_ones_the_norms():
    model, shape = fully_connected(2, width=48, inputs=12)
    masks = prunus.find_masks(model, 0.5, exclude=("0", "5"))
    points = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    near = prunus.certify(model, masks, prunus.Samples(points, 0.001))
    assert near.method == "relaxation"
    assert near.tightness < 1.2
    assert prunus.certify(model, masks, prunus.Ball(20.0)).method in ("recursion", "products")


def test_each_point_takes_its_own_best_method():
    model, shape = fully_connected(2, width=24, inputs=12)
    masks = prunus.find_masks(model, 0.5)
    points = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    together = prunus.certify(model, masks, prunus.Samples(points, 0.05), attack=False)
    alone = [prunus.certify(model, masks, prunus.Samples(p[None], 0.05), attack=False).bound for p in points]
    assert together.bound == max(together.each)
    assert all(one <= many * (1 + 1e-9) for one, many in zip(alone, together.each))


def test_the_time_of_the_relaxation_is_kept_and_the_rest_still_holds():
    model, shape = convolutional(0, channels=8, side=8)
    pruned = prunus.find_masks(model, 0.5).apply_(copy.deepcopy(model))
    pair = read_pair(model, pruned, shape)
    region = prunus.Samples(torch.randn(3, *shape), 0.01).region(shape)
    begin = time.monotonic()
    with torch.no_grad():
        bounds, *_ = Bounds(pair)._chunk(region, time.monotonic() - 1)
    assert bool(torch.isinf(bounds["relaxation"]).all())
    assert bool(torch.isfinite(bounds["recursion"]).all())
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("make", [fully_connected, convolutional, residual])
def test_zonotope_ranges_hold_and_are_tight_near_a_point(make):
    model, shape = make(1, 8) if make is fully_connected else make(1, 4, 8)
    pruned = prunus.find_masks(model, 0.5).apply_(copy.deepcopy(model))
    pair = read_pair(model, pruned, shape)
    generator = torch.Generator().manual_seed(0)
    for domain in (prunus.Samples(torch.randn(1, *shape, generator=generator), 0.01), prunus.Box(-0.001, 0.001)):
        region = domain.region(shape)
        with torch.no_grad():
            ranges = propagate_ranges(pair, region, propagate(pair, region))
            forms = zonotope_ranges(pair, region, ranges, time.monotonic() + 60)
        assert forms is not None
        found, error = forms
        noise = torch.randn(40, *shape, dtype=torch.float64, generator=generator)
        inputs = region.project(region.centres + 10 * noise, region.centres.expand_as(noise))
        for side in (False, True):
            for value, part in zip(pair.run(inputs, side), found):
                bounds = part.pruned if side else part.original
                assert bool(((value >= bounds.low - 1e-9) & (value <= bounds.high + 1e-9)).all())
        attained = ascend(pair, region, AttackSettings(starts=4, steps=20)).distance
        assert attained <= float(error.norm()) <= 1.1 * attained


def test_transposes_are_adjoint():
    model, shape = convolutional(3, channels=8, side=8)
    pair = read_pair(model, copy.deepcopy(model), shape)
    generator = torch.Generator().manual_seed(0)
    shapes = [shape, *(step.shape for step in pair.steps)]
    for step in pair.steps:
        piece = step.original
        if not isinstance(piece, prunus.certificates.Affine):
            continue
        x = torch.randn(1, *shapes[step.inputs[0]], dtype=torch.float64, generator=generator)
        y = torch.randn(1, 1, *step.shape, dtype=torch.float64, generator=generator)
        left = float((piece.apply(piece.weight, x) * y[0]).sum())
        right = float((x * transpose(piece, piece.weight, y, x.shape[1:])[0]).sum())
        assert left == pytest.approx(right, rel=1e-9, abs=1e-9)


def test_rounding_is_proportional_to_the_type():
    assert gamma(100, torch.float64) < gamma(100, torch.float32) < gamma(100, torch.bfloat16)
    assert gamma(254, torch.float32) == pytest.approx(256 * 2.0**-24, rel=1e-4)


def test_a_bf16_copy_is_certified_through_its_own_weights():
    model, shape = fully_connected(2, width=32, inputs=12)
    small = copy.deepcopy(model).bfloat16()
    cert = prunus.certify(model, small, prunus.Ball(1.0))
    inputs = torch.nn.functional.normalize(torch.randn(500, *shape), dim=1).bfloat16()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(inputs.double())
        distance = (small(inputs).double() - exact).norm(dim=1).max()
    assert float(distance) <= cert.bound
    assert cert.rounding > prunus.certify(model, copy.deepcopy(model), prunus.Ball(1.0), attack=False).rounding


def test_the_attack_stays_inside_and_finds_what_is_there():
    one, two = two_linear_layers()
    pair = read_pair(one, two, (5,))
    for domain in (prunus.Ball(0.5, torch.ones(5)), prunus.Box(-1.0, 1.0), prunus.Samples(torch.ones(2, 5), 0.3)):
        region = domain.region((5,))
        found = ascend(pair, region, AttackSettings(starts=6, steps=30))
        nearest = region.project(found.witness.expand(region.points, 5), region.centres)
        assert float((nearest - found.witness).norm(dim=1).min()) < 1e-9
        at_centres = ascend(pair, region, AttackSettings(starts=1, steps=0)).each
        assert found.distance >= float(at_centres.max())
    with pytest.raises(BadInput, match="at least one start"):
        AttackSettings(starts=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_attack_finds_what_a_hundred_thousand_random_points_find(seed):
    model, shape = fully_connected(seed, width=16, inputs=(5, 12)[seed % 2])
    pruned = prunus.find_masks(model, 0.6).apply_(copy.deepcopy(model))
    pair = read_pair(model, pruned, shape)
    generator = torch.Generator().manual_seed(seed)
    for domain in (prunus.Ball(2.0), prunus.Box(-1.0, 1.0)):
        for norm in (2, "max"):
            noise = torch.randn(100_000, *shape, dtype=torch.float64, generator=generator)
            if isinstance(domain, prunus.Ball):
                points = 2.0 * noise / noise.norm(dim=1, keepdim=True)
            else:
                points = noise.clamp(-1.0, 1.0)
            with torch.no_grad():
                one, two = pair.outputs(points)
            off = (two - one).norm(dim=1) if norm == 2 else (two - one).abs().amax(1)
            assert ascend(pair, domain.region(shape), seed=seed, norm=norm).distance >= float(off.max())


def test_maxima_that_another_input_leads_after_pruning_stay_tight():
    """Windows whose largest input is sure in each network, but not the same one: the bound is nearly exact."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (1, 8)), nn.MaxPool1d(2), nn.Flatten())
    other = copy.deepcopy(model)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([5.0, 2.0] * 4))
        other[0].bias.copy_(torch.tensor([2.0, 4.0] * 4))
    point = torch.zeros(1, 6)
    cert = prunus.certify(model.eval(), other.eval(), prunus.Samples(point, 0.1), norm="max")
    assert cert.bound < 1.001 * cert.attained
    inputs = 0.1 * torch.nn.functional.normalize(torch.randn(2000, 6), dim=1)
    with torch.no_grad():
        assert float((other(inputs) - model(inputs)).abs().max()) <= cert.bound
