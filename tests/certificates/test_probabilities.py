"""Bounds on the difference of probabilities, against many inputs of the box in the networks' own precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.certificates import read_pair
from prunus.certificates.prover.boxes import Boxes, axes, relax
from prunus.certificates.prover.goals import Close
from prunus.certificates.prover.probabilities import ends_in_softmax, probability_bounds
from prunus.certificates.reading.pair import read_graph
from support import scale


def drawn(seed: int) -> tuple[nn.Module, nn.Module, Tensor, float]:
    """Two networks with a softmax, the centre and the half-width of a box."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[2].weight.mul_(10 ** float(torch.rand(()) * 2 - 0.5))
        model[2].bias.mul_(5)
        other = copy.deepcopy(model)
        for part in other.parameters():
            part.add_(torch.randn_like(part) * 10 ** float(-3 * torch.rand(())) * part.abs().mean())
    return model, other, torch.randn(3, dtype=torch.float64), 10 ** float(-2 * torch.rand(()))


@pytest.mark.prove
def test_no_input_of_a_box_exceeds_the_bound_for_any_label() -> None:
    better, graph = 0, read_graph(drawn(0)[0], (3,))
    for seed in range(scale(14, full=600)):
        model, other, centre, half = drawn(seed)
        pair = read_pair(model, other, (3,), graph=graph)
        boxes = Boxes((centre - half)[None], (centre + half)[None])
        moves = 2 * torch.rand(8000, 3, dtype=torch.float64) - 1
        moves[:3000] = moves[:3000].sign()
        inputs = centre + half * 0.9999999 * moves
        with torch.no_grad():
            relaxation = relax(pair, boxes)
            plain = relaxation.outputs().max()
            off = (other(inputs.float()).double() - model(inputs.float()).double()).abs().amax(0)
            found = [probability_bounds(pair, relaxation, torch.tensor([label]))[0] for label in range(4)]
        assert all(bool((off <= bound).all()) for bound in found), seed
        better += bool(min(bound.max() for bound in found) < plain / 2)
    assert better > 0


def test_a_leading_label_makes_probabilities_close() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([20.0, 0.0, 0.0]))
    masks = prunus.find_masks(model, 0.5)
    verdict = prunus.equivalent(model, masks, prunus.Box(-torch.ones(4), 1.0), tolerance=1e-3, boxes=1)
    assert verdict.status == "proved"
    assert verdict.bound < 1e-3


def test_a_softmax_over_a_part_of_the_outputs_is_no_probability_of_all() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Softmax(2)).eval()
    pair = read_pair(model, copy.deepcopy(model), (4,))
    assert not ends_in_softmax(pair)
    whole = nn.Sequential(nn.Linear(4, 6), nn.Softmax(1)).eval()
    assert ends_in_softmax(read_pair(whole, copy.deepcopy(whole), (4,)))


def test_boxes_are_halved_where_it_tightens_the_bound_most() -> None:
    """One input decides over ReLUs, another moves the outputs more but linearly."""
    model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 3.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0.1, -0.1, 0.2, 10.0]))
        other = copy.deepcopy(model)
        other[2].weight.mul_(1.1)
        other[0].weight.mul_(0.9)
    pair = read_pair(model, other, (2,))
    box = Boxes(-torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    goal = Close(pair, 0.1, "max")
    with torch.no_grad():
        relaxation = relax(pair, box)
        relaxation.losses = {}
        goal.bound(relaxation, pair.outputs(box.region.centres))
        chosen = int(axes(pair, box, relaxation))
        after = []
        for axis in range(2):
            halves, _ = box.split(torch.tensor([axis]))
            part = relax(pair, halves)
            after.append(float(goal.bound(part, pair.outputs(halves.region.centres)).max()))
    assert chosen == min(range(2), key=after.__getitem__) == 0
