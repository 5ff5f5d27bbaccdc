from __future__ import annotations

import torch

from prunus.models import make
from prunus.models.cifar_resnet import CifarBlock


def test_keys_are_those_of_the_trained_weights() -> None:
    with torch.device("meta"):
        names = {name.rsplit(".", 1)[0] for name in make("resnet20").state_dict()}
    inner = {f"layer{s}.{i}.{m}" for s in (1, 2, 3) for i in range(3) for m in ("conv1", "bn1", "conv2", "bn2")}
    assert names == {"conv1", "bn1", "linear"} | inner


def test_the_shortcut_takes_every_second_pixel_and_pads_both_sides() -> None:
    block = CifarBlock(4, 8, 2, affine=True).eval()
    with torch.no_grad():
        block.bn2.weight.zero_()  # leaves the shortcut alone
        x = torch.rand(2, 4, 6, 6) + 0.1
        y = block(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, :2].any()
    assert not y[:, 6:].any()


def test_odd_widths_fit() -> None:
    model = make("resnet20", width=0.3, seed=0).eval()  # 5, 10, 19 channels
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert model.get_parameter("layer3.0.conv1.weight").shape == (19, 10, 3, 3)
