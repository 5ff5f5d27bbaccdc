"""Modules as users write them, made at random: no input of the domain exceeds its bound, in their own precision."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from tools.evidence import record
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import Bounds, CertifyOptions, read_pair
from prunus.certificates._certify import shared_graph
from prunus.certificates._guard import check_reading
from prunus.errors import BadInput
from support import PROVING, scale

NOTE = (
    "Modules as users write them (subclasses, hooks, in-place steps, tuples, views, functional calls, shared modules, "
    "buffers changed after construction, norms, attention, masks), made at random with several drawings of their "
    "weights; 400 inputs of each ball in the networks' own precision against the bound."
)


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
        if "plain" in choices:
            self.offset = torch.randn(width)  # neither parameter nor buffer
        else:
            self.register_buffer("offset", torch.randn(width))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.rand(width) < 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.choices:
            if name == "plain":
                continue
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

    def gated(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.shared(x)) * x.flip(1)

    def normalised(self, x: Tensor) -> Tensor:
        return self.norm(x) + torch.where(self.mask, x, -0.5 * x)

    def attends(self, x: Tensor) -> Tensor:
        q = x.view(x.shape[0], 1, 2, -1)
        return F.scaled_dot_product_attention(q, torch.tanh(q), q, is_causal=True).flatten(1)


STEPS = [
    "gated",
    "normalised",
    "attends",
    "use_shared",
    "use_own",
    "in_place",
    "tuples",
    "views",
    "buffers",
    "functional",
    "residual",
]


def generated(seed: int) -> nn.Module:
    """A small network of two to four random steps, sometimes with hooks."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    width = draw.choice([4, 6, 8])
    body = Branches(width, [draw.choice(STEPS) for _ in range(draw.randint(1, 3))] + ["plain"] * (seed % 10 == 0))
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


def redrawn(model: nn.Module, seed: int) -> None:
    """Other values for everything the module holds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not tensor.is_floating_point() or name.endswith("running_var"):
                continue
            fresh = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(fresh * (0.3 + tensor.abs().double().mean()))


def largest(model: nn.Module, pruned: nn.Module, seed: int, radius: float) -> float:
    """The largest difference at 400 inputs of the ball, most of them close to its border, in the networks' own type."""
    dtype = next(model.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(400, 5, dtype=torch.float64, generator=generator)
    length = torch.rand(400, 1, dtype=torch.float64, generator=generator) ** 0.2
    inputs = (seed % 2 + radius * 0.9999999 * length * noise / noise.norm(dim=1, keepdim=True)).to(dtype)
    with torch.no_grad():
        return float((pruned(inputs).double() - model(inputs).double()).norm(dim=1).max())


QUICK = CertifyOptions(methods=("recursion", "products", "intervals"), tune=False)
WHOLE = CertifyOptions(tune=False)
DRAWS, WHOLE_EVERY = 25, 10
"""Drawings of weights for one module, and of how many one gets the relaxation and the guard beside the fast methods."""


def checked(seed: int, draws: int) -> tuple[int, float] | None:
    """One module with several drawings of its weights: how many pairs held, the largest share; None where refused."""
    model = generated(seed)
    radius = (0.01, 0.3, 2.0)[seed % 3]
    ball = prunus.Ball(radius, torch.ones(5) * (seed % 2))
    share, graph = 0.0, None
    for draw in range(draws):
        if draw:
            redrawn(model, 1000 * seed + draw)
        masks = prunus.find_masks(model, (0.4, 0.1, 0.8)[draw % 3])
        pruned = masks.apply_(copy.deepcopy(model))
        if draw == 0:
            try:
                graph = shared_graph(model, masks, (5,))
                if graph is None or seed % 10 == 0:
                    bound = prunus.certify(model, masks, ball, attack=False, options=WHOLE).bound
            except BadInput:
                return None
        if draw or (graph is not None and seed % 10):
            pair = read_pair(model, pruned, (5,), graph=graph)
            region = ball.region((5,))
            if draw % WHOLE_EVERY == 0:
                check_reading(pair, (model, pruned), region, draw)
            bound = Bounds(pair, WHOLE if draw % WHOLE_EVERY == 0 else QUICK).of(region).bound
        off = largest(model, pruned, seed + draw, radius) if draw % 2 == 0 else largest(model, pruned, seed, radius)
        assert off <= bound, (seed, draw)
        share = max(share, off / bound if bound > 0 else 0.0)
        if graph is None:
            return draw + 1, share  # it holds tensors that are no state, so every drawing would be read anew
    return draws, share


@pytest.mark.prove
def test_generated_modules_keep_their_bounds() -> None:
    """20,000 pairs in full: modules are read once, and their weights drawn again and again."""
    wanted, pairs, refused, modules, top = scale(300, full=20_000), 0, 0, 0, 0.0
    while pairs < wanted:
        found = checked(modules, DRAWS)
        modules += 1
        if found is None:
            refused += 1
            continue
        pairs, top = pairs + found[0], max(top, found[1])
    assert refused < 0.05 * modules
    if PROVING:
        row = {"pairs": pairs, "modules": modules, "refused": refused, "violations": 0, "largest share of a bound": top}
        record("certificates-generated", [row], NOTE)
