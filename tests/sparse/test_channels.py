"""Removing channels: the result stays, what can go goes, what cannot stays."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import prunus
from prunus.sparse import compress, load, remove_channels, save


class Residual(nn.Module):
    """A stem, one residual block, a plain layer after it, and a linear head behind a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(16)
        self.conv1 = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(24)
        self.conv2 = nn.Conv2d(24, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 8, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm0(self.stem(x)))
        y = functional.relu(self.norm1(self.conv1(x)))
        x = functional.relu(x + self.norm2(self.conv2(y)))
        x = self.pool(functional.relu(self.last(x)))
        return self.head(x.flatten(1))


def prepared() -> Residual:
    torch.manual_seed(0)
    model = Residual()
    with torch.no_grad():
        for norm in (model.norm0, model.norm1, model.norm2):
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
            norm.weight.uniform_(0.5, 1.5)
    return model.eval()


def silence(conv: nn.Conv2d, norm: nn.BatchNorm2d | None, channels: list[int], constant: float = 0.0) -> None:
    """Zero the filters, and set the norm so that they come out as `constant`."""
    with torch.no_grad():
        conv.weight[channels] = 0
        if conv.bias is not None:
            conv.bias[channels] = constant
        if norm is not None:
            norm.running_mean[channels] = 0
            norm.bias[channels] = constant


def test_inner_channels_go_when_they_arrive_as_zero() -> None:
    model = prepared()
    silence(model.conv1, model.norm1, [1, 5, 7], constant=-0.5)  # the ReLU makes these zero
    silence(model.conv1, model.norm1, [9], constant=0.5)  # this one arrives as 0.5 and must stay
    small, shapes = remove_channels(model)
    assert small.conv1.out_channels == small.norm1.num_features == small.conv2.in_channels == 21
    assert shapes["conv2.weight"] == [16, 21, 3, 3]
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
    assert model.conv1.out_channels == 24


def test_a_hook_that_fills_zeros_keeps_the_channels() -> None:
    """torch.fx passes over hooks: the channels would go although somebody writes to them."""
    model = prepared()
    silence(model.conv1, model.norm1, [1, 5], constant=-0.5)
    model.norm1.register_forward_hook(lambda module, inputs, output: output + 1)
    small, shapes = remove_channels(model)
    assert not shapes
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x))


def test_a_sum_loses_a_channel_only_if_all_branches_agree() -> None:
    model = prepared()
    silence(model.stem, model.norm0, [2, 3, 4])
    silence(model.conv2, model.norm2, [3, 4, 5])
    small, _ = remove_channels(model)
    assert (
        small.stem.out_channels == small.conv2.out_channels == small.last.in_channels == small.conv1.in_channels == 14
    )
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)


def test_through_pool_and_flatten_into_a_linear_layer() -> None:
    model = prepared()
    silence(model.last, None, [0, 6], constant=-1.0)
    small, _ = remove_channels(model)
    assert small.last.out_channels == 6
    assert small.head.in_features == 24
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)


def test_the_output_and_unknown_operations_keep_their_channels() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Softmax(1), nn.Linear(8, 4, bias=False)).eval()
    with torch.no_grad():
        model[0].weight[:3] = 0
        model[2].weight[0] = 0
    small, shapes = remove_channels(model)
    assert shapes == {}
    x = torch.randn(2, 8)
    with torch.no_grad():
        assert torch.equal(small(x), model(x))


def test_a_fully_connected_net_with_dead_units() -> None:
    model = prunus.models.make("fc:32-48-24-10").eval()
    with torch.no_grad():
        model.layers[0].weight[:20] = 0
        model.layers[0].bias[:20] = -0.1
    small, _ = remove_channels(model)
    assert [layer.out_features for layer in small.layers] == [28, 24, 10]
    x = torch.randn(5, 32)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)


def test_travels_through_compress_and_a_file(tmp_path: Path) -> None:
    model = prepared()
    silence(model.conv1, model.norm1, [1, 5, 7], constant=-0.5)
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("stem", "head"))
    for select in ("always", {"conv1": True, "conv2": False}):
        for fuse in (False, True):
            fast = compress(model, select=select, fuse=fuse)
            save(fast, tmp_path / "net.safetensors")
            with torch.device("meta"):
                empty = Residual()
            again = load(tmp_path / "net.safetensors", empty)
            x = torch.randn(4, 3, 8, 8)
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
                assert torch.equal(again(x), fast(x))


def test_flattening_part_of_an_image_is_not_mistaken_for_all_of_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(1, 2), nn.Linear(8, 5)).eval()
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0
        x = torch.randn(2, 3, 5, 8)
        torch.testing.assert_close(compress(model, example=x, select="always")(x), model(x))
