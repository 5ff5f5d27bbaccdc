"""Modules as users write them, made at random: no input of the domain exceeds its bound, in their own precision."""

from __future__ import annotations

import copy
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import CertifyOptions
from prunus.errors import BadInput
from support import scale


class Scaled(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1.5) - 0.1


class Branches(nn.Module):
    """In-place steps, tuples, views, shared modules, functional calls, buffers, chosen at random."""

    def __init__(self, width: int, choices: list[str]) -> None:
        super().__init__()
        self.choices, self.width = choices, width
        self.shared = nn.Linear(width, width)
        self.own = Scaled(width, width)
        self.act = nn.ReLU(inplace=True)
        self.token = nn.Parameter(torch.randn(1, 2))
        self.slopes = nn.Parameter(torch.rand(1))
        self.mix = nn.Linear(width + 3, width)
        self.register_buffer("scales", torch.ones(width))
        self.scales = torch.randn(width)  # changed after construction
        self.offset = torch.randn(width)  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        for name in self.choices:
            x = getattr(self, name)(x)
        return x

    def use_shared(self, x: Tensor) -> Tensor:
        return torch.tanh(self.shared(x))

    def use_own(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.own(x), 0.3)

    def in_place(self, x: Tensor) -> Tensor:
        h = self.shared(x)
        k = self.act(h)
        h = h + k
        h.mul_(0.5)
        h[:, : self.width // 2] += 0.25
        return h

    def tuples(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        top = x.max(1, keepdim=True)[0]
        token = self.token.expand(x.shape[0], -1)
        return self.mix(torch.cat([right, token, left, top], 1))

    def views(self, x: Tensor) -> Tensor:
        h = x.view(x.shape[0], 2, -1).transpose(1, 2).reshape(x.shape[0], -1)
        return h.flip(1)[:, torch.arange(self.width)] - self.offset

    def buffers(self, x: Tensor) -> Tensor:
        return F.prelu(x * self.scales, self.slopes) / 3

    def functional(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.shared.weight.t(), None)
        return F.hardtanh(h, -0.7, 0.9) + F.silu(x)

    def residual(self, x: Tensor) -> Tensor:
        return x + F.dropout(F.gelu(self.shared(x)), 0.3, self.training)


STEPS = ["use_shared", "use_own", "in_place", "tuples", "views", "buffers", "functional", "residual"]


def generated(seed: int) -> nn.Module:
    """A small network of two to four random steps, sometimes with hooks."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    width = draw.choice([4, 6, 8])
    body = Branches(width, [draw.choice(STEPS) for _ in range(draw.randint(1, 3))])
    layers: list[nn.Module] = [nn.Linear(5, width), body]
    if draw.random() < 0.3:
        layers.append(nn.BatchNorm1d(width))
        layers[-1].running_mean.normal_(0, draw.choice([1.0, 100.0]))  # type: ignore[operator, union-attr]
    layers += [nn.Linear(width, 3)]
    if draw.random() < 0.3:
        layers.append(draw.choice([nn.Softmax(1), nn.LeakyReLU(1.7), nn.Hardswish()]))
    model = nn.Sequential(*layers)
    if draw.random() < 0.3:
        model[draw.randrange(len(layers))].register_forward_hook(lambda module, args, output: output * 2 - 0.2)
    if draw.random() < 0.2:
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    return model.double().eval() if draw.random() < 0.2 else model.eval()


def test_generated_modules_keep_their_bounds() -> None:
    options = (
        CertifyOptions(methods=("recursion", "products", "intervals"), tune=False),
        CertifyOptions(tune=False),
    )
    refused = 0
    count = scale(30, full=20_000)
    for seed in range(count):
        model = generated(seed)
        masks = prunus.find_masks(model, 0.4)
        radius = (0.01, 0.3, 2.0)[seed % 3]
        dtype = next(model.parameters()).dtype
        try:
            cert = prunus.certify(
                model,
                masks,
                prunus.Ball(radius, torch.ones(5) * (seed % 2)),
                attack=False,
                options=options[seed % 4 == 0],
            )
        except BadInput:
            refused += 1
            continue
        pruned = masks.apply_(copy.deepcopy(model))
        noise = torch.randn(400, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        length = torch.rand(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 0.2
        inputs = seed % 2 + radius * 0.9999999 * length * noise / noise.norm(dim=1, keepdim=True)
        with torch.no_grad():
            off = (pruned(inputs.to(dtype)).double() - model(inputs.to(dtype)).double()).norm(dim=1).max()
        assert float(off) <= cert.bound, seed
    assert refused < 0.05 * count
