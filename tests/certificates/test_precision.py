"""Networks against their float64 twins: the whole difference is rounding, and the certificate must cover it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.certificates import CertifyOptions, read_pair


class Applied(nn.Module):
    """A function of a layer and the input."""

    def __init__(self, function: Callable[..., Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, x)


def positive(layer: nn.Module) -> nn.Module:
    """Without cancellation every rounding counts in full."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.abs_()
    return layer


def normed(layer: nn.Module) -> nn.Module:
    layer.running_var.fill_(1.7)  # type: ignore[operator, union-attr]
    return layer


CASES: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "linear": ((1,), lambda: positive(nn.Linear(1, 1))),
    "linear and norm": ((1,), lambda: nn.Sequential(positive(nn.Linear(1, 1)), normed(nn.BatchNorm1d(1)))),
    "convolution and norm": (
        (1, 4, 4),
        lambda: nn.Sequential(positive(nn.Conv2d(1, 2, 1)), normed(nn.BatchNorm2d(2))),
    ),
    "turned input": ((4, 3), lambda: Applied(lambda layer, x: layer(x.transpose(1, 2)), positive(nn.Linear(4, 2)))),
    "four axes": ((2, 2, 3), lambda: positive(nn.Linear(3, 2))),
    "transposed convolution": ((3, 4, 4), lambda: positive(nn.ConvTranspose2d(3, 2, 3))),
    "transposed in one axis": ((3, 8), lambda: positive(nn.ConvTranspose1d(3, 2, 5))),
    "factor": ((2,), lambda: Applied(lambda layer, x: x * 0.1 + 0.3, nn.Linear(1, 1))),
    "padding": ((2,), lambda: Applied(lambda layer, x: F.pad(x, (1, 1), value=0.1), nn.Linear(1, 1))),
    "fill": ((2,), lambda: Applied(lambda layer, x: x.masked_fill(torch.tensor([True, False]), 0.1), nn.Linear(1, 1))),
    "mean": ((64,), lambda: Applied(lambda layer, x: x.mean(1, keepdim=True), nn.Linear(1, 1))),
    "attention": (
        (2, 4, 8),
        lambda: Applied(
            lambda layer, x: F.scaled_dot_product_attention(x, x.flip(2), x, is_causal=True), nn.Linear(1, 1)
        ),
    ),
    "layer norm": ((8,), lambda: Applied(lambda layer, x: layer(x + 100), nn.LayerNorm(8))),
    "resized": ((1, 7), lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.Upsample(size=23, mode="linear"))),
    "resized image": (
        (1, 5, 7),
        lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.Upsample(size=(11, 37), mode="bilinear", align_corners=True)),
    ),
    "group norm": ((4, 6), lambda: nn.GroupNorm(2, 4)),
    "gelu": ((4,), lambda: nn.GELU()),
}


def inputs(shape: tuple[int, ...], centre: float, radius: float, dtype: torch.dtype) -> Tensor:
    """Inputs of the type, inside of the ball."""
    axes = [1] * len(shape)
    noise = torch.randn(3000, *shape, dtype=torch.float64)
    noise = (
        noise / noise.flatten(1).norm(dim=1).reshape(-1, *axes) * torch.rand(3000, *axes, dtype=torch.float64) ** 0.3
    )
    found = (centre + 0.99 * radius * noise).to(dtype)
    return found[(found.double() - centre).flatten(1).norm(dim=1) <= radius]


def check(model: nn.Module, shape: tuple[int, ...], centre: float, radius: float) -> None:
    twin, dtype = copy.deepcopy(model).double(), next(model.parameters(), torch.zeros(1)).dtype
    ball = prunus.Ball(radius, torch.full(shape, centre))
    options = CertifyOptions(tune=False)
    cert = prunus.certify(twin, model, ball, attack=False, norm="max", options=options)
    points = inputs(shape, centre, radius, dtype)
    with torch.no_grad():
        off = (model(points).double() - twin(points.double())).abs().max()
    assert 0 < float(off) <= cert.bound < math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rounding_is_covered(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape, make = CASES[name]
    for centre, radius in ((0.7, 0.05), (5.0, 3.0)):
        check(make().eval().to(dtype), shape, centre, radius)


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0])
def test_group_norm_with_channels_last_is_covered(offset: float) -> None:
    """There torch takes the variance as mean(x^2) - mean(x)^2, which loses digits where the mean is large."""
    torch.manual_seed(0)
    spread = torch.randn(3, 3, 4)
    model = Applied(lambda layer, x: layer((x + spread.to(x.dtype)).permute(0, 3, 1, 2)), nn.GroupNorm(2, 4)).eval()
    check(model, (3, 3, 4), offset, 0.01)


OVERFLOWS: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "square": (255.4, lambda h: h * h * 1e-4),
    "root mean square": (255.4, lambda h: h * torch.rsqrt(h.pow(2).mean(1, keepdim=True) + 1e-5)),
    "steep activation": (-327.0, lambda h: F.leaky_relu(h, 200.0) * 1e-3),
    "sum": (8180.0, lambda h: h.sum(1, keepdim=True) * 1e-4 + h * 0),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_may_overflow_in_half_precision_is_infinite(name: str) -> None:
    torch.manual_seed(0)
    bias, function = OVERFLOWS[name]
    model = nn.Sequential(nn.Linear(6, 8), Applied(lambda layer, h: function(h), nn.Identity()), nn.Linear(8, 4))
    nn.init.constant_(model[0].bias, bias)  # type: ignore[arg-type]
    model.half().eval()
    cert = prunus.certify(model, prunus.find_masks(model, 0.4), prunus.Ball(1.5, torch.zeros(6)), attack=False)
    assert cert.bound == math.inf


def test_a_hidden_score_stays_hidden_however_large_it_is() -> None:
    """-inf in a mask hides a score of any size."""
    hide = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])

    class Attends(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(value))

        def forward(self, x: Tensor) -> Tensor:
            q = x.view(-1, 1, 2, 4)
            return F.scaled_dot_product_attention(q, q * self.scale, q, attn_mask=hide)[:, :, 0].flatten(1)

    inputs = torch.tensor([[1.0] * 4 + [1000.0] * 4])
    model = Attends(1000.0).eval()
    read, _ = read_pair(model, model, (8,)).outputs(inputs.double())
    with torch.no_grad():
        torch.testing.assert_close(read, model(inputs).double())
