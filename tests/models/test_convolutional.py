from __future__ import annotations

import torch
from torch import nn

from prunus.models import make


def test_conv6_is_that_of_the_ledger_at_half_width() -> None:
    with torch.device("meta"):
        model = make("conv6:width=0.5")
    convolutions = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    linears = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert convolutions == [32, 32, 64, 64, 128, 128]
    assert linears == [(128 * 16, 128), (128, 128), (128, 10)]
    assert not [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def test_conv6_takes_other_images() -> None:
    model = make("conv6:width=0.125,channels=1,size=28", seed=0)
    assert model(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_vgg_depths_and_widths() -> None:
    with torch.device("meta"):
        for name, depth in (("vgg11", 8), ("vgg16", 13)):
            convolutions = [m for m in make(name, width=2).modules() if isinstance(m, nn.Conv2d)]
            assert len(convolutions) == depth
            assert convolutions[0].out_channels == 128
            assert convolutions[-1].out_channels == 1024
        plain = make("vgg11:norm=false")
    assert not [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(m.bias is not None for m in plain.modules() if isinstance(m, nn.Conv2d))


def test_the_tanh_network_has_the_published_size() -> None:
    model = make("tanh-cnn", seed=0)
    assert sum(p.numel() for p in model.parameters()) == 26_010
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
