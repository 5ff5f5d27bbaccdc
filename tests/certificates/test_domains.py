from __future__ import annotations

import pytest
import torch

import prunus
from prunus.certificates.domains import restore
from prunus.errors import BadInput


@pytest.mark.parametrize("radius", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_ball_needs_a_positive_radius(radius):
    with pytest.raises(BadInput, match="positive number"):
        prunus.Ball(radius)


def test_domains_refuse_what_they_cannot_be():
    with pytest.raises(BadInput, match="at least one point"):
        prunus.Samples(torch.zeros(0, 4))
    with pytest.raises(BadInput, match="0 or a positive"):
        prunus.Samples(torch.zeros(1, 4), -1.0)
    with pytest.raises(BadInput, match="finite"):
        prunus.Samples(torch.full((1, 4), float("nan")))
    with pytest.raises(BadInput, match="low <= high"):
        prunus.Box(1.0, 0.0)
    with pytest.raises(BadInput, match="equal ones"):
        prunus.Box(torch.zeros(2), torch.ones(3))
    with pytest.raises(BadInput, match="takes inputs of shape"):
        prunus.Ball(1.0, torch.zeros(3)).region((4,))


def test_the_region_of_a_box_holds_the_box():
    box = prunus.Box(torch.tensor([0.1, -3.0]), torch.tensor([0.7, 5.0]))
    region = box.region((2,))
    corners = torch.tensor([[0.1, -3.0], [0.7, 5.0], [0.1, 5.0]], dtype=torch.float32).double()
    assert bool(((corners - region.centres).abs() <= region.half).all())
    assert bool((torch.linalg.vector_norm(corners - region.centres, dim=1) <= region.radius).all())


def test_projection_stays_inside_and_moves_nothing_that_is():
    for domain in (prunus.Ball(0.5, torch.ones(3)), prunus.Box(0.0, 1.0)):
        region = domain.region((3,))
        centres = region.centres.expand(100, 3)
        inputs = centres + torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        inside = region.project(inputs, centres)
        torch.testing.assert_close(region.project(inside, centres), inside)
        move = inside - centres
        limit = region.half if region.half is not None else region.radius
        size = move.abs() if region.half is not None else torch.linalg.vector_norm(move, dim=1)
        assert bool((size <= limit * (1 + 1e-12)).all())


def test_spread_is_the_largest_value_of_a_row():
    rows = torch.tensor([[[3.0, -4.0]]], dtype=torch.float64)
    assert float(prunus.Ball(2.0).region((2,)).spread(rows)) == 10.0
    assert float(prunus.Box(-1.0, 1.0).region((2,)).spread(rows)) == pytest.approx(7.0)


def test_descriptions_restore_the_domain():
    for domain in (
        prunus.Ball(0.5),
        prunus.Ball(2, [1.0, 2.0]),
        prunus.Box(0.0, 1.0),
        prunus.Samples([[1.0, 2.0]], 0.1),
    ):
        assert restore(domain.describe()).describe() == domain.describe()
    with pytest.raises(BadInput, match="not known"):
        restore({"kind": "donut"})
