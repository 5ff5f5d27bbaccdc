from __future__ import annotations

import torch
from torch.nn import functional

from prunus.models import make


def test_keys_and_shapes() -> None:
    shapes = {name: tuple(value.shape) for name, value in make("lenet5").state_dict().items() if "weight" in name}
    assert shapes == {
        "convnet.c1.weight": (6, 1, 5, 5),
        "convnet.c3.weight": (16, 6, 5, 5),
        "convnet.c5.weight": (120, 16, 5, 5),
        "fc.f6.weight": (84, 120),
        "fc.f7.weight": (10, 84),
    }


def test_resizing_is_bilinear_and_leaves_32_alone() -> None:
    inside, outside = make("lenet5", seed=0), make("lenet5:resize=false", seed=0)
    x = torch.randn(3, 1, 28, 28)
    resized = functional.interpolate(x, size=32, mode="bilinear")
    assert torch.equal(inside(x), outside(resized))
    assert torch.equal(inside(resized), outside(resized))
