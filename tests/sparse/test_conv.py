"""Sparse convolutions against torch in float64, for random geometries and masks and on every instruction set."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from prunus.errors import BadInput
from prunus.sparse import SparseConv2d, pack
from support import scale
from support.kernels import each_level

level = each_level()


def pick(generator: torch.Generator, *choices: int) -> int:
    return choices[int(torch.randint(len(choices), (1,), generator=generator))]


def random_conv(generator: torch.Generator) -> nn.Conv2d:
    groups = pick(generator, 1, 1, 1, 2, 4)
    conv = nn.Conv2d(
        groups * pick(generator, 1, 3, 5, 8, 16, 20, 32),
        groups * pick(generator, 1, 3, 8, 16, 17),
        (pick(generator, 1, 2, 3, 5), pick(generator, 1, 2, 3, 5)),
        stride=(pick(generator, 1, 1, 2, 3), pick(generator, 1, 1, 2, 3)),
        padding=(pick(generator, 0, 1, 2, 3), pick(generator, 0, 1, 2, 3)),
        dilation=(pick(generator, 1, 1, 2), pick(generator, 1, 1, 2)),
        groups=groups,
        bias=bool(pick(generator, 0, 1)),
    )
    with torch.no_grad():
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator))
        conv.weight.mul_(
            torch.rand(conv.weight.shape, generator=generator) < (0.0, 0.1, 0.3, 1.0)[pick(generator, 0, 1, 2, 3)]
        )
        if conv.bias is not None:
            conv.bias.copy_(torch.randn(conv.bias.shape, generator=generator))
    return conv


def oracle(conv: nn.Conv2d, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64 and the promise 1e-5 (|W| |x| + |b|)."""
    double = copy.deepcopy(conv).double().requires_grad_(False)
    exact = double(x.double())
    for parameter in double.parameters():
        parameter.abs_()
    return exact, 1e-5 * double(x.double().abs()) + 1e-30


@pytest.mark.prove
def test_agrees_with_float64_on_random_geometries(level: str) -> None:
    generator = torch.Generator().manual_seed(21)
    done = 0
    while done < scale(120, full=1700):
        conv = random_conv(generator)
        size = (pick(generator, 1, 2, 5, 8, 13, 32), pick(generator, 1, 3, 7, 8, 16, 33))
        x = torch.randn(pick(generator, 0, 1, 2, 3), conv.in_channels, *size, generator=generator)
        layer = SparseConv2d.from_dense(conv, bank=(None, 16, 32, 64)[pick(generator, 0, 1, 2, 3)])
        if min(layer.geometry.output(*size)) < 1:
            continue
        done += 1
        exact, slack = oracle(conv, x)
        with torch.no_grad():
            found = layer(x)
        assert found.shape == exact.shape
        assert bool(((found - exact).abs() <= slack).all()), (conv, size)


@pytest.mark.parametrize("height", (3, 4, 7, 14))
@pytest.mark.parametrize("width", (7, 8, 14, 15, 16, 33))
def test_windows_of_any_shape(level: str, height: int, width: int) -> None:
    """Layers with many weights for each input copy windows of the image; each edge of it is zero in its own way."""
    generator = torch.Generator().manual_seed(100 * height + width)
    for inputs, kernel, stride, padding, dilation in (
        (3, (3, 3), 1, (1, 1), 1),
        (20, (3, 3), 1, (1, 1), 1),
        (33, (2, 5), 1, (0, 3), 1),
        (16, (3, 2), 1, (2, 0), 2),
        (20, (3, 3), 2, (1, 1), 1),
        (7, (2, 4), (1, 2), (0, 2), 2),
    ):
        conv = nn.Conv2d(inputs, 40, kernel, stride, padding, dilation)
        with torch.no_grad():
            conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator))
            conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.3)
        layer, x = SparseConv2d.from_dense(conv), torch.randn(2, inputs, height, width, generator=generator)
        if min(layer.geometry.output(height, width)) < 1:
            continue
        exact, slack = oracle(conv, x)
        other = torch.randn(exact.shape, generator=generator)
        with torch.no_grad():
            assert bool(((layer(x) - exact).abs() <= slack).all())
            assert bool(((layer(x, other) - exact - other).abs() <= slack + 1e-5 * other.abs()).all())


def test_ends_with_the_residual_and_relu(level: str) -> None:
    generator = torch.Generator().manual_seed(22)
    conv = nn.Conv2d(16, 24, 3, padding=1)
    with torch.no_grad():
        conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.2)
    x = torch.randn(2, 16, 9, 11, generator=generator)
    other = torch.randn(2, 24, 9, 11, generator=generator)
    layer = SparseConv2d.from_dense(conv)
    layer.relu = True
    with torch.no_grad():
        torch.testing.assert_close(layer(x, other), functional.relu(conv(x) + other), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer(x), functional.relu(conv(x)), rtol=1e-5, atol=1e-5)


def test_narrow_values(level: str) -> None:
    generator = torch.Generator().manual_seed(23)
    conv = nn.Conv2d(32, 20, 3, padding=1)
    with torch.no_grad():
        conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.2)
    x = torch.randn(2, 32, 8, 8, generator=generator)
    exact, _ = oracle(conv, x)
    bound = {torch.bfloat16: 2.0**-9, torch.int8: 0.5 / 127}
    for dtype, relative in bound.items():
        layer = SparseConv2d.from_dense(conv, dtype=dtype)
        size = conv.weight.detach().abs().double()
        step = size if dtype == torch.bfloat16 else size.amax((1, 2, 3), keepdim=True) * (size > 0)
        slack = relative * 1.001 * functional.conv2d(x.double().abs(), step, padding=1) + 1e-5
        with torch.no_grad():
            assert bool(((layer(x) - exact).abs() <= slack).all())


def test_the_same_bytes_for_one_and_two_threads(level: str) -> None:
    generator = torch.Generator().manual_seed(24)
    before = torch.get_num_threads()
    try:
        for channels, size, batch, kernel in ((64, 16, 1, 3), (64, 16, 5, 3), (128, 32, 1, 1), (32, 9, 2, 5)):
            conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
            with torch.no_grad():
                conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.3)
            layer, x = SparseConv2d.from_dense(conv), torch.randn(batch, channels, size, size, generator=generator)
            results = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                with torch.no_grad():
                    results.append(layer(x))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


def test_gradients_and_torchs_own_checks() -> None:
    generator = torch.Generator().manual_seed(25)
    conv = nn.Conv2d(6, 5, 3, stride=2, padding=1, groups=1)
    layer = SparseConv2d.from_dense(conv)
    x = torch.randn(2, 6, 7, 8, generator=generator, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    other = torch.randn(2, 5, 4, 4, generator=generator, requires_grad=True)
    (layer(x, other).sin().sum()).backward()
    extra = other.detach().clone().requires_grad_()
    ((conv(twin) + extra).sin().sum()).backward()
    torch.testing.assert_close(x.grad, twin.grad)
    torch.testing.assert_close(other.grad, extra.grad)
    torch.testing.assert_close(layer.bias.grad, conv.bias.grad)
    arguments = (
        x,
        layer.bias,
        other,
        layer.tensors(),
        layer.rows,
        layer.cols,
        layer.bank,
        True,
        layer.geometry.numbers(),
    )
    torch.library.opcheck(torch.ops.prunus.sparse_conv2d.default, arguments)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x), rtol=0, atol=0)


def test_images_of_any_layout() -> None:
    conv = nn.Conv2d(16, 16, 3, padding="same")
    layer = SparseConv2d.from_dense(conv)
    x = torch.randn(2, 16, 10, 12)
    with torch.no_grad():
        for image in (x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2], x[:, :, :, 3:9]):
            torch.testing.assert_close(layer(image), conv(image), rtol=1e-4, atol=1e-5)


def test_refuses_what_does_not_fit() -> None:
    layer = SparseConv2d.from_dense(nn.Conv2d(4, 4, 3))
    for x in (torch.ones(1, 5, 8, 8), torch.ones(4, 8), torch.ones(1, 4, 8, 8).double(), torch.ones(1, 4, 2, 2)):
        with pytest.raises(BadInput), torch.no_grad():
            layer(x)
    for conv in (nn.Conv2d(4, 4, 2, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")):
        with pytest.raises(BadInput, match="not supported"):
            SparseConv2d.from_dense(conv)


@pytest.mark.parametrize("size", [36, 61, 96])  # offsets of 16 bits, at their limit, and of 32
@pytest.mark.parametrize(
    ("kernel", "options"), [(3, {"padding": 1}), (3, {"stride": 2}), (5, {"dilation": 2}), (1, {})]
)
def test_large_images(level: str, size: int, kernel: int, options: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(size + kernel)
    conv = nn.Conv2d(40, 18, kernel, **options)
    with torch.no_grad():
        conv.weight.mul_(torch.rand(conv.weight.shape, generator=generator) < 0.1)
        layer = SparseConv2d.from_dense(conv)
        x = torch.randn(1, 40, size, size, generator=generator)
        torch.testing.assert_close(layer(x), copy.deepcopy(conv).double()(x.double()).float(), rtol=1e-5, atol=1e-5)


def test_stands_where_the_dense_layer_stood() -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1).requires_grad_(False)
    layer, x = SparseConv2d.from_dense(conv), torch.randn(4, 9, 8)
    torch.testing.assert_close(layer(input=x), conv(x))  # one image without a batch, and torch's name of the argument
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"):
        assert getattr(layer, name) == getattr(conv, name)
    flipped = torch._neg_view(x[None])
    torch.testing.assert_close(layer(flipped), conv(-x[None]))


def test_images_smaller_than_the_kernel_are_refused_for_every_stride() -> None:
    for kernel, stride, size in ((3, 1, (2, 2)), (3, 2, (2, 2)), (5, 4, (4, 4)), (3, 3, (2, 9))):
        layer = SparseConv2d.from_dense(nn.Conv2d(16, 20, kernel, stride))
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises(BadInput, match="smaller than the kernel"):
                layer(torch.randn(1, 16, *size))


def test_what_is_no_image_is_refused_in_one_sentence() -> None:
    layer = SparseConv2d.from_dense(nn.Conv2d(16, 20, 3))
    for x in (torch.tensor(1.0), torch.randn(16), torch.randn(16, 5), torch.randn(1, 15, 5, 5)):
        with torch.no_grad(), pytest.raises(BadInput, match="takes images"):
            layer(x)


def test_channels_that_only_fill_up_a_bank_count_as_zeros(level: str) -> None:
    """A matrix with weights there is none that `pack` makes of a layer, but it can be built."""
    generator = torch.Generator().manual_seed(26)
    conv = nn.Conv2d(20, 40, 3, padding=1, bias=False)
    geometry = SparseConv2d.from_dense(conv).geometry
    matrix = torch.randn(40, geometry.columns(16), generator=generator)
    layer = SparseConv2d(pack(matrix, 16), geometry)
    with torch.no_grad():
        conv.weight.copy_(geometry.weight(matrix, 16))
        x = torch.randn(1, 20, 16, 16, generator=generator)
        torch.testing.assert_close(layer(x), conv(x), rtol=1e-4, atol=1e-4)


def test_torchs_default_device_does_not_matter() -> None:
    conv, x = nn.Conv2d(16, 20, 3), torch.randn(1, 16, 5, 5)
    layer = SparseConv2d.from_dense(conv)
    with torch.no_grad(), torch.device("meta"):
        found = layer(x)
    torch.testing.assert_close(found, conv(x).detach(), rtol=1e-5, atol=1e-5)
