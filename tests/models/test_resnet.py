from __future__ import annotations

import pytest
import torch

from prunus.models import make


def test_the_width_factor_spares_the_stem() -> None:
    with torch.device("meta"):
        model = make("resnet18", width=0.5)
    assert model.get_parameter("conv1.weight").shape == (64, 3, 3, 3)
    assert model.get_parameter("layer1.0.conv1.weight").shape == (32, 64, 3, 3)
    assert model.get_parameter("layer1.0.downsample.0.weight").shape == (32, 64, 1, 1)
    assert model.get_parameter("layer4.1.conv2.weight").shape == (256, 256, 3, 3)
    assert model.get_parameter("fc.weight").shape == (10, 256)


def test_no_projection_where_the_shape_stays() -> None:
    with torch.device("meta"):
        names = set(make("resnet18").state_dict())
    assert "layer1.0.downsample.0.weight" not in names
    assert "layer2.0.downsample.0.weight" in names


@pytest.mark.parametrize("name, side", [("resnet18", 4), ("imagenet-resnet18", 1)])
def test_how_far_the_image_shrinks(name: str, side: int) -> None:
    model = make(name, width=0.125, seed=0).eval()
    shapes = []
    model.get_submodule("layer4").register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    model(torch.randn(1, 3, 32, 32))
    assert shapes == [(1, 64, side, side)]


def test_bottlenecks() -> None:
    with torch.device("meta"):
        plain, wide = make("imagenet-resnet50"), make("wide-resnet50-2")
    assert plain.get_parameter("layer2.0.conv2.weight").shape == (128, 128, 3, 3)
    assert wide.get_parameter("layer2.0.conv2.weight").shape == (256, 256, 3, 3)
    assert wide.get_parameter("layer2.0.conv3.weight").shape == plain.get_parameter("layer2.0.conv3.weight").shape[
        :1
    ] + (256, 1, 1)
    assert plain.get_submodule("layer2.0.conv2").stride == (2, 2)
    assert plain.get_submodule("layer2.0.conv1").stride == (1, 1)


def test_batch_norm_without_affine_has_no_parameters_but_keeps_statistics() -> None:
    with torch.device("meta"):
        model = make("resnet18", affine=False)
    assert not [name for name, _ in model.named_parameters() if "bn" in name or "downsample.1" in name]
    assert "layer1.0.bn1.running_mean" in model.state_dict()
