from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import prunus
from certificates.networks import convolutional, fully_connected, randomise, residual
from prunus.certificates import Elementwise, Lipschitz, diagonal, read_pair, register_rule, unregister_rule
from prunus.errors import BadInput


def agrees(model: nn.Module, shape: tuple[int, ...]) -> list[str]:
    """The pieces compute what the module computes; returns their kinds."""
    pair = read_pair(model, copy.deepcopy(model), shape)
    inputs = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(inputs).flatten(1)
        torch.testing.assert_close(pair.outputs(inputs)[0], expected, rtol=1e-10, atol=1e-10)
    return [step.original.kind for step in pair.steps]


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_are_read_as_they_compute(seed):
    for make in (fully_connected, convolutional, residual):
        model, shape = make(seed, 8)
        agrees(model, shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fc:64-32-10", (64,)),
        ("lenet5", (1, 28, 28)),
        ("conv6:width=0.1", (3, 32, 32)),
        ("resnet20:width=0.25", (3, 32, 32)),
    ]
    + [("resnet18:width=0.05", (3, 32, 32)), ("vgg11:width=0.05", (3, 32, 32))],
)
def test_the_zoo_is_read_as_it_computes(name, shape):
    agrees(randomise(prunus.models.make(name, seed=0), 0), shape)


def test_batch_norm_is_folded_into_the_layer_before_it():
    kinds = agrees(convolutional(0, 8)[0], (4, 16, 16))
    assert "diagonal" not in kinds
    first = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))
    assert agrees(randomise(first, 0), (3, 8, 8)) == ["diagonal", "convolution"]


class Plain(nn.Module):
    """Functions and methods instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 3, 3))
        self.head = nn.Parameter(torch.randn(4, 12))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(x, self.weight, padding="same") + 0.5
        x = functional.max_pool2d(functional.silu(x), 2).permute(0, 2, 3, 1).transpose(1, 3)
        left, right = functional.avg_pool2d(x, 2), functional.adaptive_avg_pool2d(x, 2)
        x = torch.cat([functional.elu(left), functional.leaky_relu(right, 0.2)], dim=1).mean((2, 3))
        return functional.linear(functional.dropout(x, 0.5, training=False), self.head) * 2.0


def test_functions_and_methods_have_rules_too():
    assert agrees(Plain().eval(), (3, 8, 8)).count("convolution") == 1


class Looped(nn.Module):
    """A branch on a shape, and parts that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > 3:
            x = torch.relu(self.norm(self.conv(x)))
        rows = list(x.flatten(1).split(6, dim=1))
        return self.layer(x).flatten(1) if len(rows) > 99 else torch.softmax(self.layer(x).flatten(1), 1)


def test_branches_on_shapes_are_read():
    kinds = agrees(randomise(Looped(), 0), (2, 6))
    assert kinds[0] == "convolution"
    assert kinds[-1] == "softmax"


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1) - torch.cumsum(x, 1) + x * self.scale


def test_an_unknown_operation_is_named_with_the_way_out():
    with pytest.raises(BadInput, match=r"cumsum.*register_rule"):
        read_pair(nn.Sequential(Odd()), nn.Sequential(Odd()), (3,))


def test_a_registered_rule_is_used():
    model = nn.Sequential(Scale(), nn.Linear(3, 2)).eval()
    with pytest.raises(BadInput):
        read_pair(model, model, (3,))
    register_rule(Scale)(lambda call: diagonal(call.module.scale.detach()))
    try:
        assert agrees(model, (3,)) == ["diagonal", "linear"]
        with pytest.raises(BadInput, match="exists already"):
            register_rule(Scale)(lambda call: None)
    finally:
        unregister_rule(Scale)


def test_an_own_lipschitz_map_can_be_registered():
    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    register_rule(Sine)(lambda call: Lipschitz("sine", torch.sin, 1.0))
    try:
        model = nn.Sequential(nn.Linear(3, 5), Sine(), nn.Linear(5, 2)).eval()
        masks = prunus.find_masks(model, 0.4)
        for domain in (prunus.Ball(1.0), prunus.Samples(torch.randn(3, 3), 0.01)):
            cert = prunus.certify(model, masks, domain)
            assert 0 < cert.attained <= cert.bound
    finally:
        unregister_rule(Sine)


def test_mixing_the_batch_is_refused():
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(1, -1)

    with pytest.raises(BadInput, match="batch"):
        read_pair(nn.Sequential(Mixed()), nn.Sequential(Mixed()), (3,))


def test_piecewise_linear_pieces_say_so():
    pair = read_pair(*(nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU()).eval(),) * 2, (2,))
    piece = pair.steps[1].original
    assert isinstance(piece, Elementwise)
    assert piece.piecewise_linear
