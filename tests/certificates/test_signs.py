"""Splitting over activations: the halves miss no input, and verdicts agree with a search."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.certificates import read_pair
from prunus.certificates.prover import search
from prunus.certificates.prover.boxes import Boxes, relax
from prunus.certificates.prover.goals import Close, SameLabel
from prunus.certificates.prover.signs import costliest, halves
from prunus.certificates.reading.pair import Pair, read_graph
from support import scale


def drawn(seed: int) -> tuple[nn.Module, nn.Module, Boxes]:
    torch.manual_seed(seed)
    slope = (0.0, 0.2)[seed % 2]
    model = nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(slope), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for part in other.parameters():
            part.add_(0.1 * 10 ** float(-2 * torch.rand(())) * torch.randn_like(part))
    centre, half = torch.randn(1, 3, dtype=torch.float64), 10 ** float(-torch.rand(()))
    return model, other, Boxes(centre - half, centre + half)


def inputs_of(box: Boxes, count: int) -> Tensor:
    moves = 2 * torch.rand(count, 3, dtype=torch.float64) - 1
    moves[: count // 3] = moves[: count // 3].sign()
    return (box.region.centres + box.half * 0.9999999 * moves).float()


def computed(pair: Pair, model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The values before every activation and the outputs, as the module computes them."""
    found, value = [inputs], inputs
    for layer in model:
        value = layer(value)
        found.append(value)
    assert len(found) == len(pair.steps) + 1
    return [part.double() for part in found]


@pytest.mark.prove
def test_every_input_lies_in_one_of_the_halves_again_and_again() -> None:
    graph = read_graph(drawn(0)[0], (3,))
    for seed in range(0, scale(6, full=400), 2):
        model, other, box = drawn(seed)
        pair = read_pair(model, other, (3,), graph=graph)
        inputs = inputs_of(box, 2000)
        goal = Close(pair, 1e-9, "max")
        with torch.no_grad():
            one, two = computed(pair, model, inputs), computed(pair, other, inputs)
            boxes, known = box, []
            for _ in range(4):
                relaxation = relax(pair, boxes, known)
                bounds = goal.bound(relaxation, pair.outputs(boxes.region.centres))
                held = torch.ones(len(inputs), len(boxes), dtype=torch.bool)
                for value, first, second in zip(relaxation.ranges[1:], one[1:], two[1:]):
                    parts = (value.original, first), (value.pruned, second), (value.difference, second - first)
                    for part, at in parts:
                        held &= ((at[:, None] >= part.low) & (at[:, None] <= part.high)).all(2)
                off = (two[-1] - one[-1]).abs().amax(1)
                held &= off[:, None] <= bounds
                assert bool(held.any(1).all()), seed
                steps, entries = costliest(pair, relaxation)
                if bool((steps < 0).any()):
                    break
                known = halves(pair, relaxation.ranges, steps, entries)
                boxes = boxes[torch.arange(len(boxes)).repeat(2)]


@pytest.mark.prove
def test_verdicts_by_signs_agree_with_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_FEW", 0)
    graph, split, open_ones = read_graph(drawn(0)[0], (3,)), 0, 0
    for seed in range(0, scale(24, full=4000), 2):
        model, other, box = drawn(seed)
        inputs = inputs_of(box, 4000)
        with torch.no_grad():
            gap = torch.cat([network(inputs)[:, 0] - network(inputs)[:, 1] for network in (model, other)])
            share = (-0.1, 0.05, 0.2, 0.4)[seed // 2 % 4]  # how far the labels are from changing
            shift = share * (gap.max() - gap.min()) - gap.min()
            for network in (model, other):
                network[4].bias[0] += shift
        goal = SameLabel.of(read_pair(model, other, (3,), graph=graph))
        with torch.no_grad():
            label = int(model(box.region.centres.float()).argmax())
            outputs = torch.cat([model(inputs), other(inputs)]).double()
            off = float((outputs[:, 1 - label] - outputs[:, label]).max())
        found = search.search(goal, box, lambda candidate: None, 40, torch.inf)
        assert found.bound >= off, seed
        assert not found.settled or off < 0, seed
        split, open_ones = split + (found.boxes > 1), open_ones + (not found.settled)
    assert split > 0
    assert open_ones > 0


def test_signs_decide_where_halving_many_inputs_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(100, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    with torch.no_grad():
        model[4].bias.mul_(4)
    masks = prunus.find_masks(model, 0.1)
    box = prunus.Box(-0.1 * torch.ones(100), 0.1)
    by_signs = prunus.equivalent(model, masks, box, labels=True, boxes=15)
    monkeypatch.setattr(search, "_FEW", 1000)
    by_inputs = prunus.equivalent(model, masks, box, labels=True, boxes=15)
    assert (by_signs.status, by_inputs.status) == ("proved", "undecided")
