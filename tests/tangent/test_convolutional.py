"""The convolutional limit: reference values of K-22, and Monte Carlo for the averaging head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from prunus.errors import BadInput
from prunus.tangent import empirical, limit, limit_convolutional, parametrise
from prunus.theory import tangent as theory
from support import scale


def images() -> torch.Tensor:
    rising, wave = torch.arange(1.0, 17.0, dtype=torch.float64), torch.cos(torch.arange(16.0, dtype=torch.float64))
    return torch.stack([rising / rising.norm(), wave / wave.norm()]).view(2, 1, 4, 4)


@pytest.mark.parametrize(("depth", "value"), [(1, 0.0135908219), (2, 0.0211029605), (3, 0.0248398306)])
def test_reference_values(depth: int, value: float) -> None:
    kernel = limit_convolutional(images(), depth=depth)
    assert float(kernel[0, 1]) == pytest.approx(value, abs=1e-10)
    torch.testing.assert_close(kernel, kernel.T)
    thinned = limit_convolutional(images(), depth=depth, density=0.5, rescale=False)
    torch.testing.assert_close(thinned, kernel * 0.5**depth, rtol=1e-14, atol=0)


def test_channels_batches_and_diagonal_agree_with_theory() -> None:
    x = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = limit_convolutional(x, x[:2], depth=3, kernel=3)
    for i in range(3):
        for j in range(2):
            expected = theory.convolutional_limit(x[i].numpy(), x[j].numpy(), 3)["limit"]
            assert float(kernel[i, j]) == pytest.approx(expected, rel=1e-10)


def test_one_pixel_is_a_fully_connected_network() -> None:
    x = torch.randn(4, 6, 1, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for head in ("flatten", "average"):
        found = limit_convolutional(x, depth=3, kernel=1, head=head)
        torch.testing.assert_close(found, limit(x, depth=3) / 6, rtol=1e-9, atol=1e-9)


@pytest.mark.prove
@pytest.mark.parametrize("head", ["flatten", "average"])
def test_monte_carlo(head: str) -> None:
    """Mean over random networks within five standard errors (false alarm 6e-7), dense weights, two convolutions."""
    x, values = images(), []
    torch.manual_seed(0)
    for _ in range(scale(60, full=600)):
        tail = [nn.Flatten()] if head == "flatten" else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        width = 64 * (16 if head == "flatten" else 1)
        net = nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, bias=False),
            nn.ReLU(),
            *tail,
            nn.Linear(width, 1, bias=False),
        ).double()
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        values.append(float(empirical(parametrise(net, weights="keep"), x)[0, 1]))
    found = torch.tensor(values)
    error = float(found.std()) / math.sqrt(len(values))
    assert abs(float(found.mean()) - float(limit_convolutional(x, depth=2, head=head)[0, 1])) < 5 * error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 2}, "odd"),
        ({"head": "max"}, "flatten"),
        ({"x1": torch.ones(2, 4)}, "dimensions"),
        ({"x2": torch.ones(1, 1, 3, 3)}, "shape"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        limit_convolutional(**{"x1": torch.ones(2, 1, 4, 4), **options})


def test_equal_images_keep_the_angle_zero() -> None:
    """The diagonal of the averaging head, against the plain sum over pairs of pixels with correlations in full."""
    x = images()[:1]
    kernel = limit_convolutional(x, x.clone(), depth=1, kernel=1, head="average")
    pixels = x.flatten()[:, None]
    expected = limit(pixels, depth=1).mean()
    assert float(kernel) == pytest.approx(float(expected), rel=1e-12)
    torch.testing.assert_close(
        limit_convolutional(x, depth=3, head="average"), limit_convolutional(x, x * 2, depth=3, head="average") / 2
    )
