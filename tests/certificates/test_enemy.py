"""Ordinary modules written to obtain a false certificate: each is sound in its own precision, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import prunus
from prunus.certificates import CertifyOptions
from prunus.errors import PrunusError


class Between(nn.Module):
    """Two linear layers with anything between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
        self.between = between
        self.register_buffer("mask", torch.arange(8) % 3 == 0)
        self.register_buffer("scale", torch.linspace(-2, 2, 8))
        self.view = self.b.weight.detach().t()  # shares the memory of a parameter that masks change
        self.calls = 0
        self.cell, self.gates = nn.LSTMCell(8, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self, self.a(x)))


def counted(module: nn.Module, h: Tensor) -> Tensor:
    module.calls += 1  # type: ignore[operator, assignment]
    return h * module.calls


def half_way(module: nn.Module, h: Tensor) -> Tensor:
    return h.half().relu().float() * 3


def autocast(module: nn.Module, h: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(F.linear(h, module.b.weight).relu(), module.b.weight.t()).float()  # type: ignore[union-attr, operator]


def strided(module: nn.Module, h: Tensor) -> Tensor:
    return h.t().contiguous().t().as_strided((h.shape[0], 8), (1, h.shape[0]))


def branch(module: nn.Module, h: Tensor) -> Tensor:
    return h * 2 if bool(h.sum() > 0) else -h


def in_place_view(module: nn.Module, h: Tensor) -> Tensor:
    part = h[:, 2:5]
    part.relu_()
    part += 1
    h.clamp_(-0.4, 0.9)
    return h


def sliced(module: nn.Module, h: Tensor) -> Tensor:
    h = h.clone()
    h[:, ::2] = h[:, 1::2] * 2
    h[:, 0] = 0.5
    return h


def turned(module: nn.Module, h: Tensor) -> Tensor:
    """Numbers by example, (batch,) each: taken apart, bent and stacked again."""
    parts = h.unbind(1)
    first = F.relu(parts[3]) - 2 * parts[0]
    return torch.stack((first, *parts[:0:-1]), 1) * first[:, None]


CASES: dict[str, Callable[[], nn.Module]] = {
    "large batches": lambda: Between(lambda m, h: h * 50 if h.shape[0] > 100 else h),
    "one batch size": lambda: Between(lambda m, h: h * 50 if h.shape[0] == 1999 else h),
    "every third batch size": lambda: Between(lambda m, h: h if h.shape[0] % 3 else h * 50),
    "alone": lambda: Between(lambda m, h: h * 50 if len(h) < 2 else h),
    "numbers by example": lambda: Between(turned),
    "one number": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)),
    "python counter": lambda: Between(counted),
    "float16 inside": lambda: Between(half_way),
    "autocast inside": lambda: Between(autocast),
    "strides": lambda: Between(strided),
    "branch on data": lambda: Between(branch),
    "in place on a view": lambda: Between(in_place_view),
    "written slices": lambda: Between(sliced),
    "item as number": lambda: Between(lambda m, h: h * h.mean().item()),
    "bits": lambda: Between(lambda m, h: h.view(torch.int32).bitwise_and(-65536).view(torch.float32)),
    "constant mask": lambda: Between(lambda m, h: torch.where(m.mask, h, h.flip(1) * 2 + 1)),
    "mask on data": lambda: Between(lambda m, h: torch.where(h > 0.1, h * 5, -h)),
    "masked fill": lambda: Between(lambda m, h: h.masked_fill(m.mask, -3.0)),
    "boolean index": lambda: Between(lambda m, h: torch.cat([h[:, m.mask], h[:, ~m.mask]], 1)),
    "roll the batch": lambda: Between(lambda m, h: h + h.roll(1, 0)),
    "flip the batch": lambda: Between(lambda m, h: h - h.flip(0)),
    "cumulative": lambda: Between(lambda m, h: h.cumsum(1)),
    "sorted": lambda: Between(lambda m, h: h.sort(1)[0]),
    "topk": lambda: Between(lambda m, h: F.pad(h.topk(3, 1)[0], (0, 5))),
    "rounded": lambda: Between(lambda m, h: h.round()),
    "fake quantised": lambda: Between(lambda m, h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127)),
    "shared memory": lambda: Between(lambda m, h: h + F.linear(F.linear(h, m.b.weight), m.view)),
    "normalised": lambda: Between(lambda m, h: F.normalize(h, dim=1)),
    "softplus by threshold": lambda: Between(lambda m, h: F.softplus(h * 30, threshold=21.0)),
    "resized": lambda: Between(lambda m, h: F.interpolate(h[:, None], scale_factor=1.51, mode="linear")[:, 0, :8]),
    "cell": lambda: Between(lambda m, h: m.cell(h)[0]),  # type: ignore[operator]
    "recurrent": lambda: Between(lambda m, h: m.gates(h[:, None])[0][:, 0]),  # type: ignore[operator]
    "gumbel": lambda: Between(lambda m, h: F.gumbel_softmax(h, dim=1)),
    "noise": lambda: Between(lambda m, h: h + 0.01 * torch.randn_like(h)),
    "shape as number": lambda: Between(lambda m, h: h * float(h.shape[0])),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4)),
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4)),
    "bfloat16 module": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).bfloat16(),
    "float16 module": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).half(),
}


CERTIFIED = (
    *("float16 inside", "in place on a view", "constant mask", "masked fill", "shared memory", "weight norm"),
    *("spectral norm", "bfloat16 module", "float16 module", "softplus by threshold", "numbers by example"),
    "one number",
)


@pytest.mark.parametrize("name", CASES)
def test_sound_or_refused(name: str) -> None:
    torch.manual_seed(5)
    model = CASES[name]().eval()
    dtype = next(model.parameters()).dtype
    kept = [weight for weight in prunus.find_masks(model, 0.0) if weight.startswith(("cell", "gates"))]
    masks = prunus.find_masks(model, 0.4, exclude=tuple(kept))
    centre = torch.randn(6) * 0.3
    try:
        cert = prunus.certify(model, masks, prunus.Ball(0.5, centre), attack=False, options=CertifyOptions(tune=False))
    except PrunusError:
        assert name not in CERTIFIED
        return
    pruned = masks.apply_(copy.deepcopy(model))
    noise = torch.randn(2000, 6)
    points = centre + 0.4999 * noise / noise.norm(dim=1, keepdim=True) * torch.rand(2000, 1) ** 0.2
    with torch.no_grad():
        off = (pruned(points.to(dtype)).double() - model(points.to(dtype)).double()).reshape(2000, -1).norm(dim=1).max()
    assert float(off) <= cert.bound


REFUSED = (
    *("python counter", "branch on data", "item as number", "bits", "roll the batch", "flip the batch", "noise"),
    *("large batches", "one batch size", "every third batch size", "alone"),
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_fixed_meaning_is_refused(name: str) -> None:
    torch.manual_seed(5)
    model = CASES[name]().eval()
    with pytest.raises(PrunusError):
        prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(0.5, torch.zeros(6)), attack=False)


class Rows(nn.Module):
    """Two rows of outputs, each with a softmax of its own: the largest of all is no label."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).reshape(-1, 2, 4).softmax(2)


def test_labels_of_several_rows_are_refused() -> None:
    model = Rows().eval()
    with pytest.raises(PrunusError, match="one row"):
        prunus.certify_labels(model, prunus.find_masks(model, 0.4), prunus.Samples(torch.zeros(1, 6), 0.1))
