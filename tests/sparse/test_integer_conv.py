"""Convolutions with integer products against an oracle of whole numbers; calibrated ranges; runs of layers."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import prunus
from prunus.errors import BadFile, BadInput
from prunus.sparse import BalancedLinear, SparseConv2d
from prunus.sparse._finish import Tried, in_float32
from prunus.sparse._geometry import ConvGeometry
from prunus.sparse._integer import integer_conv2d, integer_linear
from prunus.sparse._integer_ops import run_conv2d, run_linear
from prunus.sparse._measure import Timing
from prunus.sparse._packed import BANKS, Packed, pack
from prunus.sparse._plan import plan_of
from prunus.sparse._region import FusedRegion
from prunus.sparse._region_graph import with_regions
from support import scale
from support.kernels import draw, each_level, matrix

level = each_level()


def steps_of(values: np.ndarray, span: tuple[float, float] | None) -> tuple[np.ndarray, np.float32, int]:
    """Bytes, step and zero of one image or token: numpy's float32, one rounding after the other."""
    top = np.float32(127)
    low, high = (
        (np.float32(min(0, values.min(initial=0))), np.float32(max(0, values.max(initial=0))))
        if span is None
        else (np.float32(span[0]), np.float32(span[1]))
    )
    step = high / top - low / top
    if step < np.float32(1e-37):
        return np.zeros(values.shape, np.int64), np.float32(0), 0
    inverse = np.float32(1) / step
    zero = int(np.rint(-low * inverse))
    with np.errstate(over="ignore"):
        scaled = np.clip(np.rint(values * inverse), -1e6, 1e6).astype(np.int64)
    return np.clip(scaled + zero, 0, 127), step, zero


def oracle(
    packed: Packed, g: ConvGeometry, x: np.ndarray, bias: Any, other: Any, relu: bool, span: tuple[float, float] | None
) -> np.ndarray:
    """Tap by tap, in whole numbers."""
    row_scale = packed.scale.numpy()
    whole = torch.from_numpy(np.rint(packed.dense().double().numpy() / row_scale.astype(np.float64)[:, None]))
    weight = g.weight(whole, packed.bank).numpy().astype(np.int64)
    height, width = g.output(x.shape[2], x.shape[3])
    out = np.zeros((x.shape[0], g.outputs, height, width), np.float32)
    for n, image in enumerate(x):
        if not np.isfinite(image).all():
            out[n] = np.nan
            continue
        q, step, zero = steps_of(image, span)
        padded = np.pad(q - zero, ((0, 0), (g.padding[0],) * 2, (g.padding[1],) * 2))
        sums = np.zeros((g.outputs, height, width), np.int64)
        for ky in range(g.kernel[0]):
            for kx in range(g.kernel[1]):
                top, left = ky * g.dilation[0], kx * g.dilation[1]
                taken = padded[:, top:, left:][:, :: g.stride[0], :: g.stride[1]][:, :height, :width]
                sums += np.einsum("oc,chw->ohw", weight[:, :, ky, kx], taken)
        with np.errstate(over="ignore"):
            value = sums.astype(np.float32) * (step * row_scale)[:, None, None]
            value = value if bias is None else value + bias.numpy()[:, None, None]
            value = value if other is None else value + other.numpy()[n]
        out[n] = np.where(value < 0, np.float32(0), value) if relu else value
    return out


def a_case(generator: torch.Generator) -> tuple[Any, ...]:
    """A convolution of any kind with its inputs: (packed, geometry, x, bias, other, relu, span)."""
    pair = lambda most, least=0: (least + draw(generator, most), least + draw(generator, most))  # noqa: E731
    kernel, dilation = pair(2, 1), pair(1, 1)
    channels = (1 + draw(generator, 40)) if draw(generator, 2) else 16 * (1 + draw(generator, 4))
    geometry = ConvGeometry(channels, 1 + draw(generator, 40), kernel, pair(1, 1), pair(2), dilation)
    least = [reach * (size - 1) + 1 for reach, size in zip(dilation, kernel)]
    size = (least[0] + draw(generator, 8), least[1] + draw(generator, 12))
    flat = matrix(generator, geometry.outputs, channels * geometry.taps)
    weight = flat.reshape(geometry.outputs, channels, *kernel)
    bank = BANKS[draw(generator, 4)] if draw(generator, 2) == 0 else None
    packed = geometry.pack(weight, 1, bank, torch.int8)
    x = torch.randn(draw(generator, 3), channels, *size, generator=generator) * 10.0 ** (draw(generator, 8) - 4)
    x = x.relu() if draw(generator, 1) else x + draw(generator, 1)
    span = None
    if draw(generator, 1):
        largest = float(x.abs().amax()) if x.numel() else 1.0
        span = tuple(torch.tensor([-largest * draw(generator, 1), largest * (0.3 + draw(generator, 1))]).tolist())
    bias = torch.randn(geometry.outputs, generator=generator) if draw(generator, 1) else None
    shape = (x.shape[0], geometry.outputs, *geometry.output(*size))
    other = torch.randn(shape, generator=generator) if draw(generator, 1) else None
    return packed, geometry, x, bias, other, bool(draw(generator, 1)), span


@pytest.mark.prove
def test_the_bits_are_those_of_the_oracle(level: str) -> None:
    generator = torch.Generator().manual_seed(11)
    for number in range(scale(120, full=10_000)):
        packed, geometry, x, *rest = a_case(generator)
        expected = oracle(packed, geometry, x.numpy(), *rest)
        assert np.array_equal(run_conv2d(packed, geometry, x, *rest).numpy(), expected), (number, geometry)
        assert np.array_equal(integer_conv2d(packed, geometry, x, *rest).numpy(), expected), (number, geometry)


@pytest.mark.prove
def test_linear_layers_over_a_fixed_span(level: str) -> None:
    generator = torch.Generator().manual_seed(12)
    for _ in range(scale(60, full=10_000)):
        rows, cols, tokens = draw(generator, 40), draw(generator, 120), draw(generator, 7)
        packed = pack(matrix(generator, rows, cols), BANKS[draw(generator, 4)], torch.int8)
        x = torch.randn(tokens, cols, generator=generator)
        if tokens > 2 and cols:
            x[1, 0] = float("inf")
        span = tuple(torch.tensor([-2.0 * draw(generator, 1), 1.5 * draw(generator, 1)]).tolist())
        bias = torch.randn(rows, generator=generator)
        whole = np.rint(packed.dense().double().numpy() / packed.scale.double().numpy()[:, None]).astype(np.int64)
        found = run_linear(packed, x, bias, True, span).numpy()
        assert np.array_equal(found, integer_linear(packed, x, bias, True, span).numpy(), equal_nan=True)
        for n, token in enumerate(x.numpy()):
            if not np.isfinite(token).all():
                assert np.isnan(found[n]).all()
                continue
            q, step, zero = steps_of(token, span)
            value = (whole @ (q - zero)).astype(np.float32) * (step * packed.scale.numpy()) + bias.numpy()
            assert np.array_equal(found[n], np.where(value < 0, np.float32(0), value))


def test_images_that_are_not_finite(level: str) -> None:
    generator = torch.Generator().manual_seed(13)
    geometry = ConvGeometry(16, 20, (3, 3), padding=(1, 1))
    packed = geometry.pack(matrix(generator, 20, 144).reshape(20, 16, 3, 3), 1, None, torch.int8)
    x = torch.randn(5, 16, 6, 7, generator=generator)
    x[0, 3, 2, 2], x[1, 15, 5, 6], x[2, 0, 0, 0] = float("nan"), float("inf"), -float("inf")
    x[3] = 3e38
    for span in (None, (-1.0, 2.0)):
        found = run_conv2d(packed, geometry, x, None, None, True, span)
        assert bool(found[:3].isnan().all())
        assert bool(found[4].isfinite().all())
        assert np.array_equal(
            found.numpy(), oracle(packed, geometry, x.numpy(), None, None, True, span), equal_nan=True
        )


def test_the_same_bits_for_any_number_of_threads(level: str) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(32, 48, 3, padding=1)
    prunus.prune(conv, 0.8, pattern="balanced:16")
    layer, before = SparseConv2d.from_dense(conv, dtype=torch.int8, activations=torch.int8), torch.get_num_threads()
    try:
        for batch in (1, 2, 5):
            x, results = torch.randn(batch, 32, 40, 40), []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                with torch.no_grad():
                    results.append(layer(x))
            assert all(torch.equal(results[0], other) for other in results[1:])
    finally:
        torch.set_num_threads(before)


class Small(nn.Module):
    """A stem, a residual block with a thinned shortcut, a pool and a last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.one, self.two = nn.Conv2d(16, 24, 3, 2, 1), nn.Conv2d(24, 24, 3, 1, 1)
        self.beside, self.last = nn.Conv2d(24, 32, 1), nn.Conv2d(24, 32, 3, padding=2, dilation=2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.stem(x)))
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))
        x = functional.relu(self.two(functional.relu(self.one(x))) + short)
        x = self.pool(x)
        return functional.relu(self.last(x) + self.beside(x))


def small(seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = Small().eval()
    model.norm.running_mean.normal_(), model.norm.running_var.uniform_(0.5, 2.0)
    prunus.prune(model, 0.75, pattern="balanced:16", exclude=("stem",))
    return model, torch.randn(3, 3, 20, 24)


def fused(model: nn.Module, x: torch.Tensor, calibrated: bool) -> nn.Module:
    names = {name: True for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    data = x if calibrated else None
    return prunus.compress(model, example=x, select=names, activations=torch.int8, fuse=True, calibration=data)


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_run_gives_the_bits_of_its_layers(level: str, calibrated: bool) -> None:
    model, x = small()
    fast = fused(model, x, calibrated)
    assert all(part.integer for part in fast.modules() if isinstance(part, SparseConv2d))
    with torch.no_grad():
        found = fast(x)  # by regions
        plain = torch.fx.Interpreter(fast).run(x)  # layer by layer
        expected = model(x)
    graph = with_regions(fast)
    assert graph is not None
    assert sum(isinstance(node.target, FusedRegion) for node in graph.nodes) == 1
    assert torch.equal(found, plain)
    assert float((found - expected).norm() / expected.norm()) < 0.05
    bad = x.clone()
    bad[1, 0, 3, 3] = float("nan")
    with torch.no_grad():
        assert torch.equal(fast(bad)[::2], found[::2])
        assert bool(fast(bad)[1].isnan().all())


def test_what_a_run_was_laid_out_for_is_looked_up_again() -> None:
    model, x = small(1)
    fast = fused(model, x, True)
    with torch.no_grad():
        first = fast(x)
        fast.two.span.mul_(0.5)
        second = fast(x)
        assert not torch.equal(first, second)
        assert torch.equal(second, torch.fx.Interpreter(fast).run(x))


def test_compress_states_the_error_and_calibration_helps_outliers() -> None:
    model, x = small(2)
    fast = fused(model, x, True)
    rows = {row.layer: row for row in prunus.sparse.explain(fast)}
    assert rows["two"].format == "bank 16, int8 x int8"
    assert "integers" in rows["two"].kernel
    assert 0 < rows["two"].error < 0.03
    x = torch.randn(64, 16, 16, 16)
    x[0, 0, 0, 1] = 12.0  # one outlier among 262,144 numbers
    conv = nn.Conv2d(16, 16, 3, padding=1)
    prunus.prune(conv, 0.5)
    kinds = {"select": "always", "activations": torch.int8, "calibration": x}
    fixed = prunus.compress(nn.Sequential(conv), example=x, **kinds)[0]
    assert float(fixed.span[1]) < 8.0


def test_files_keep_integer_convolutions(tmp_path: Path) -> None:
    model, x = small(3)
    for calibrated in (False, True):
        fast = fused(model, x, calibrated)
        path = prunus.sparse.save(fast, tmp_path / "small.safetensors")
        again = prunus.sparse.load(path, model)
        with torch.no_grad():
            assert torch.equal(again(x), fast(x))
            assert torch.equal(copy.deepcopy(again)(x), fast(x))
        assert prunus.sparse.explain(again) == prunus.sparse.explain(fast)
        assert plan_of(fast).to_dict()["version"] == 2
    dense = prunus.compress(model, example=x, select="always")
    assert plan_of(dense).to_dict()["version"] == 1


def test_files_with_wrong_spans_are_refused(tmp_path: Path) -> None:
    model, x = small(4)
    for ends in ([1.0, 2.0], [-1.0, float("inf")], [0.0, float("nan")]):
        fast = fused(model, x, True)
        fast.two.span.copy_(torch.tensor(ends))
        path = prunus.sparse.save(fast, tmp_path / "wrong.safetensors")
        with pytest.raises(BadFile, match="span"):
            prunus.sparse.load(path, model)
    fast = fused(model, x, False)
    plan_of(fast).layers["two"]["activations"] = "int8, calibrated"  # says so, but holds no span
    with pytest.raises(BadFile, match="span of its inputs is missing"):
        prunus.sparse.load(prunus.sparse.save(fast, tmp_path / "none.safetensors"), model)


def test_it_is_one_operator_for_export_and_gradients_pass_through() -> None:
    model, x = small(5)
    for calibrated in (False, True):
        fast = fused(model, x, calibrated)
        with torch.no_grad():
            exported = torch.export.export(fast, (x,)).module()
            assert torch.equal(exported(x), fast(x))
    inputs = torch.randn(2, 16, 6, 6, requires_grad=True)
    layer = fast.one
    layer.relu = False
    layer(inputs).sum().backward()
    expected = torch.nn.grad.conv2d_input(inputs.shape, layer.weight + 0.0, torch.ones(2, 24, 3, 3), 2, 1)
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-4, atol=1e-5)


def test_images_without_a_batch_and_what_does_not_fit() -> None:
    torch.manual_seed(6)
    conv = nn.Conv2d(16, 8, 3)
    layer = SparseConv2d.from_dense(conv, dtype=torch.int8, activations=torch.int8)
    x = torch.randn(16, 5, 5)
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x[None])[0])
        assert torch.equal(layer(x.flip(1)[None]), layer(x.flip(1)[None].contiguous()))
        for wrong in (torch.randn(1, 15, 5, 5), torch.randn(1, 16, 2, 2), torch.randn(1, 16, 5, 5).double()):
            with pytest.raises(BadInput):
                layer(wrong)
    with pytest.raises(BadInput, match="int8 weights"):
        SparseConv2d.from_dense(conv, activations=torch.int8)
    with pytest.raises(BadInput, match="span"):
        SparseConv2d(layer.packed, layer.geometry, span=torch.tensor([-1.0, 1.0]))
    with pytest.raises(BadInput, match="Calibration data serve"):
        prunus.compress(nn.Sequential(conv), example=x[None], calibration=x[None])


def test_a_program_refuses_what_does_not_fit_together() -> None:
    from prunus.sparse._packed import kernels

    if kernels() is None:
        pytest.skip("without compiled kernels there are no programs")
    geometry = ConvGeometry(16, 16, (3, 3), padding=(1, 1))
    packed = geometry.pack(torch.randn(16, 16, 3, 3), 1, None, torch.int8)
    program = kernels().IntegerProgram()
    program.input(16, 8, 8)
    sizes = geometry.native.data_ptr()
    with pytest.raises(ValueError, match="does not fit"):
        program.conv(packed.integer_weight, sizes, 32, 8, 8, 0, False, 6.0, False, 0.0, 0.0, 0, -1)
    with pytest.raises(ValueError, match="not there yet"):
        program.conv(packed.integer_weight, sizes, 16, 8, 8, 0, False, 6.0, False, 0.0, 0.0, 5, -1)
    few = ConvGeometry(5, 16, (3, 3), padding=(1, 1))
    uneven, narrow = few.after_pad(0, 1, 0, 1), few.pack(torch.randn(16, 5, 3, 3), 1, None, torch.int8)
    other = kernels().IntegerProgram()
    other.input(5, 8, 8)
    other.conv(narrow.integer_weight, uneven.native.data_ptr(), 5, 8, 8, 0, False, 6.0, False, 0.0, 0.0, 0, -1)
    with pytest.raises(ValueError, match="both sides alike"):
        other.finish([1])
    with pytest.raises(ValueError, match="does not fit"):
        program.float_conv(packed.layer, sizes, 16, 8, 9, 0, False, 6.0, 0, -1)
    with pytest.raises(ValueError, match="pooled"):
        program.max_pool(9, 9, 1, 1, 0)


@pytest.mark.parametrize("channels", [20, 33, 40])
@pytest.mark.parametrize("side", [3, 16])
def test_channels_that_only_fill_up_a_bank_count_as_zeros(level: str, channels: int, side: int) -> None:
    """Also where pixels stand in the lanes; and they count for nothing in the sums that take out the zero point."""
    generator = torch.Generator().manual_seed(channels)
    geometry = ConvGeometry(channels, 40, (3, 3), padding=(1, 1))
    matrix = torch.randn(40, geometry.columns(16), generator=generator)
    packed = pack(matrix, 16, torch.int8)
    x = torch.randn(2, channels, side, side, generator=generator) + 0.7  # a zero point of its own
    found = run_conv2d(packed, geometry, x)
    expected = integer_conv2d(packed, geometry, x, None, None, False)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_another_bias_at_the_same_place_is_seen() -> None:
    torch.manual_seed(7)
    layer = SparseConv2d.from_dense(nn.Conv2d(16, 32, 3), dtype=torch.int8, activations=torch.int8)
    base, x = torch.randn(64), torch.randn(1, 16, 8, 8)
    with torch.no_grad():
        layer.bias.data = base[:32]
        layer(x)
        for wrong in (base[::2], base[:5], base[:32].double()):
            layer.bias.data = wrong
            with pytest.raises(BadInput, match="a bias of 32 numbers in one piece"):
                layer(x)


def test_a_run_sees_other_sizes_of_a_layer() -> None:
    model, x = small(8)
    fast = fused(model, x, True)
    with torch.no_grad():
        first = fast(x)
        fast.two.geometry = dataclasses.replace(fast.two.geometry, dilation=(2, 2), padding=(2, 2))
        second = fast(x)
        assert not torch.equal(first, second)
        assert torch.equal(second, torch.fx.Interpreter(fast).run(x))


def test_operators_that_are_given_the_same_weight_again_keep_what_they_made() -> None:
    torch.manual_seed(9)
    layer = SparseConv2d.from_dense(nn.Conv2d(64, 64, 3), dtype=torch.int8, activations=torch.int8)
    x = torch.randn(1, 64, 8, 8)
    layer(x)  # gradients are wanted: the operator runs
    known = layer.packed.values._prunus_view.programs
    weight, count = known["weight"], len(known)
    assert torch.equal(layer(x), layer(x))
    assert known["weight"] is weight
    assert len(known) == count


def test_images_without_pixels_are_refused() -> None:
    layer = SparseConv2d.from_dense(nn.Conv2d(16, 8, 3, padding=2), dtype=torch.int8, activations=torch.int8)
    with torch.no_grad(), pytest.raises(BadInput, match="at least one pixel"):
        layer(torch.randn(1, 16, 0, 5))


def test_float32_takes_the_place_of_slower_integers() -> None:
    model = prunus.models.make("resnet20", seed=0).eval()
    prunus.prune(model, 0.9, pattern="balanced:16", exclude=("conv1", "linear"))
    x = torch.randn(1, 3, 32, 32)
    fast = prunus.compress(model, example=x, activations=torch.int8)
    packed = [row for row in prunus.sparse.explain(fast) if row.format.startswith("bank")]
    assert packed
    for row in packed:
        module = fast.get_submodule(row.layer)
        assert module.integer == (row.why == ""), row
        assert row.why == "" or ("float32" in row.format and row.why.startswith("float32: integer products take"))
    one = Tried("a", nn.Linear(16, 16), None, packed[0], packed[0], True, True)
    layer = BalancedLinear.from_dense(nn.Linear(16, 16))
    slow, quick = Timing(3e-5, 2e-5, (1, 16)), Timing(3e-5, 1e-5, (1, 16))
    assert in_float32(one, layer, quick, slow) is None
    taken = in_float32(one, layer, slow, quick)
    assert taken is not None
    assert "20.0 instead of 10.0" in taken.row.why


def test_heavy_weights_of_one_sign_fit_between_widenings(level: str) -> None:
    """Sums of four weights are kept in 16 bits: where all are as large as can be, fewer go together."""
    for sign, channels, size in ((1.0, 32, 9), (-1.0, 48, 6), (1.0, 16, 3)):
        geometry = ConvGeometry(channels, 20, (3, 3), (1, 1), (1, 1), (1, 1))
        weight = torch.full((20, channels, 3, 3), sign)
        weight[:, ::3] = 0.0
        weight[3:7] *= torch.tensor([1.0, -1.0, 1.0])[torch.arange(3).repeat(3).reshape(3, 3)]
        packed = geometry.pack(weight, 1, 16, torch.int8)
        x = torch.full((2, channels, size, size + 1), 2.0)
        x[1, :, 1:2] = -1.5
        found = run_conv2d(packed, geometry, x, span=(-2.0, 2.0))
        assert np.array_equal(found.numpy(), oracle(packed, geometry, x.numpy(), None, None, False, (-2.0, 2.0)))


def test_images_of_few_pixels_take_the_same_integers(level: str) -> None:
    """There pixels are tokens of a linear layer; a sum, an activation and bytes for the next layer follow."""
    torch.manual_seed(1)
    first = ConvGeometry(64, 48, (3, 3), (1, 1), (1, 1), (1, 1))
    packed = first.pack(torch.randn(48, 64, 3, 3) * (torch.rand(48, 64, 3, 3) < 0.1), 1, 16, torch.int8)
    for height, width in ((1, 1), (2, 2), (3, 1), (4, 4), (5, 7)):
        x, other, bias = torch.randn(3, 64, height, width), torch.randn(3, 48, height, width), torch.randn(48)
        for span in (None, (-1.0, 2.0)):
            found = run_conv2d(packed, first, x, bias, other, True, span)
            assert np.array_equal(found.numpy(), oracle(packed, first, x.numpy(), bias, other, True, span))


def test_large_images_go_in_strips(level: str) -> None:
    torch.manual_seed(2)
    for stride, padding, size in (((1, 1), (1, 1), (70, 90)), ((2, 2), (1, 1), (120, 99)), ((1, 3), (2, 0), (64, 101))):
        geometry = ConvGeometry(40, 17, (3, 3), stride, padding, (1, 1))
        weight = torch.randn(17, 40, 3, 3) * (torch.rand(17, 40, 3, 3) < 0.1)
        packed, x, bias = geometry.pack(weight, 1, 16, torch.int8), torch.randn(1, 40, *size), torch.randn(17)
        found = run_conv2d(packed, geometry, x, bias, None, True)
        assert np.array_equal(found.numpy(), oracle(packed, geometry, x.numpy(), bias, None, True, None))


def test_a_busy_moment_of_the_dense_layer_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers and float32 are timed one after the other, each beside the dense layer: the quicker of these counts."""
    times = iter([Timing(9e-4, 6e-4, (1, 16, 8, 8)), Timing(4e-4, 5e-4, (1, 16, 8, 8))])
    monkeypatch.setattr("prunus.sparse._compress.compare", lambda *_: next(times))
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1)).eval()
    prunus.prune(model, 0.75)
    fast = prunus.compress(model, example=torch.randn(1, 16, 8, 8), activations=torch.int8)
    (row,) = prunus.sparse.explain(fast)
    assert row.format == "dense"
    assert "slower" in row.why


@pytest.mark.parametrize("span", [None, torch.tensor([-3.0, 3.0])])
def test_gradients_pass_with_and_without_a_span(span: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 8, 3, padding=1)
    geometry = ConvGeometry.of(conv)
    packed = geometry.pack(conv.weight, 1, None, torch.int8)
    layer = SparseConv2d(packed, geometry, conv.bias, activations=torch.int8, span=span)
    x = torch.randn(2, 16, 7, 7, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    wanted = torch.autograd.grad(SparseConv2d(packed, geometry, conv.bias)(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted)
