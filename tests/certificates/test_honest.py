"""Ordinary PyTorch code that a reader of module classes would read wrongly: sound, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import AttackSettings, CertifyOptions
from prunus.errors import BadInput, PrunusError

QUICK = AttackSettings(starts=4, steps=10)


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    model[0].register_forward_hook(lambda module, args, output: output * 10)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] - 1,))
    return model


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(14, 4)
        self.token = nn.Parameter(torch.randn(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        left, right = h.chunk(2, 1)
        token = self.token.expand(x.shape[0], -1)
        return self.b(torch.cat([h.max(1, keepdim=True)[0], right, left, token, left.relu()], 1))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(6, 6), nn.Linear(6, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        k = self.relu(h)
        h = h + k
        h.add_(x)
        h[:, 1:3] *= -2
        return self.b(h)


def activation_last() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LeakyReLU(2.0), nn.Flatten())


def large_means() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].bias.fill_(1e4)
        model[1].running_mean.fill_(1e4)
        model[1].running_var.fill_(0.01)
    return model


class Shared(nn.Module):
    """One module used twice, a buffer changed after construction, functional calls, views."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(6))
        self.scale = self.scale * -3

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.a(torch.tanh(self.a(x)) * self.scale) - 0.5)
        h = h.view(-1, 2, 3).transpose(1, 2).flatten(1)
        return self.b(h) / 7


SOUND: dict[str, Callable[[], nn.Module]] = {
    "own forward": lambda: nn.Sequential(Tripled(6, 8), nn.ReLU(), nn.Linear(8, 4)),
    "hooks": hooked,
    "tuples and tokens": Tuples,
    "in place": InPlace,
    "activation last": activation_last,
    "large means": large_means,
    "shared": Shared,
    "max pooling": lambda: nn.Sequential(
        nn.Linear(6, 16), nn.Unflatten(1, (1, 4, 4)), nn.MaxPool2d(2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4)
    ),
    "padded max pooling": lambda: nn.Sequential(
        nn.Linear(6, 16), nn.Unflatten(1, (1, 4, 4)), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(4, 4)
    ),
    "transposed": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.ConvTranspose1d(2, 3, 2, stride=2), nn.PReLU(3), nn.Flatten(), nn.Linear(18, 4)
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_input_exceeds_the_bound(name: str) -> None:
    torch.manual_seed(1)
    model = SOUND[name]().eval()
    masks = prunus.find_masks(model, 0.5)
    pruned = masks.apply_(copy.deepcopy(model))
    points = torch.randn(4000, 6)
    points = points / points.norm(dim=1, keepdim=True) * torch.rand(4000, 1)
    with torch.no_grad():
        difference = (pruned(points).double() - model(points).double()).flatten(1)
    for norm, found in ((2, difference.norm(dim=1).max()), ("max", difference.abs().max())):
        cert = prunus.certify(model, masks, prunus.Ball(1.0), norm=norm, attack=QUICK, example=points[:1])
        assert float(found) <= cert.bound
        assert cert.attained is not None
        assert cert.attained <= cert.bound < 40 * cert.attained
        for value, bound in zip(difference.abs().amax(0).tolist(), cert.outputs, strict=True):
            assert value <= bound


class Batch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.shape[0]


class Rounds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, 0.5, rounding_mode="floor")


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1] + x


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


REFUSED = {
    "softplus threshold": (lambda: nn.Softplus(threshold=1.0), "threshold"),
    "rounding division": (Rounds, "rounds"),
    "batch as number": (Batch, "batch size as a number"),
    "mean over the batch": (Centred, "examples of a batch"),
    "row of the batch": (First, "batch"),
    "changed buffer": (Counts, "count' while it runs"),
    "random": (Random, "random"),
    "unknown": (lambda: nn.Softsign(), "no certificate rule"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_soundly_is_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    model = nn.Sequential(nn.Linear(6, 6), make(), nn.Linear(6, 4)).eval()
    with pytest.raises(PrunusError, match=words):
        prunus.certify(model, prunus.find_masks(model, 0.5), prunus.Ball(1.0), attack=False)


def test_overflow_is_infinite_and_underflow_is_covered() -> None:
    huge = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        huge[0].weight.mul_(1e30)
        huge[2].weight.mul_(1e30)
    masks = prunus.find_masks(huge, 0.5)
    cert = prunus.certify(huge, masks, prunus.Ball(1.0), attack=False)
    assert cert.bound == float("inf")
    assert cert.to_dict()["bound"] == "infinite"
    tiny = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False)).eval()
    other = copy.deepcopy(tiny)
    with torch.no_grad():
        for layer, scale in zip(tiny, (1e-22, 1e-22, 1e30)):
            layer.weight.mul_(scale)
        for layer, scale in zip(other, (1e-11, 1e-11, 1e8)):
            layer.weight.mul_(scale)
    cert = prunus.certify(tiny, other, prunus.Ball(1.0), attack=False)
    points = F.normalize(torch.randn(2000, 4), dim=1)
    with torch.no_grad():
        assert float((tiny(points).double() - other(points).double()).norm(dim=1).max()) <= cert.bound


def test_a_model_under_torch_pruning_is_named() -> None:
    import torch.nn.utils.prune as torch_prune

    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    plain = copy.deepcopy(model)
    torch_prune.l1_unstructured(model[0], "weight", 0.5)
    cert = prunus.certify(plain, model, prunus.Ball(1.0), attack=QUICK, options=CertifyOptions(seconds=5))
    assert cert.bound > 0
    with pytest.raises(BadInput, match="does not have as a parameter"):
        prunus.certify(model, prunus.find_masks(plain, 0.5), prunus.Ball(1.0), attack=False)
