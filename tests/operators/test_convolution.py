from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prunus.errors import BadInput
from prunus.operators import Geometry, block_norm, convolution_norm, embedding_size, estimate_convolution_norm
from prunus.operators.estimates import _convolve
from support import PROVING, scale


def true_norm(weight: Tensor, geometry: Geometry) -> float:
    """The norm of the dense matrix of the operator: the slow, obvious oracle."""
    channels = weight.shape[1] * geometry.groups
    size = channels * math.prod(geometry.image)
    units = torch.eye(size, dtype=torch.float64).reshape(size, channels, *geometry.image)
    return float(torch.linalg.matrix_norm(_convolve(units, weight.double(), geometry).flatten(1), 2))


def circular(weight: Tensor, size: int) -> float:
    return convolution_norm(weight, Geometry.of(size, padding=(weight.shape[2] - 1) // 2, circular=True))


def test_circular_norms_of_the_ledger():
    weight = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(2, 3, 2, 2) / 10
    for size in (2, 3, 5, 8):
        assert circular(weight, size) == pytest.approx(13.8912212363, abs=1e-8)
    pair = torch.tensor([[[[1.0, -1.0], [0.0, 0.0]]], [[[0.0, 2.0], [1.0, 0.0]]]], dtype=torch.float64)
    for size, expected in ((3, 3.4641016151), (4, 3.6055512755), (5, 3.5521872120)):
        assert circular(pair, size) == pytest.approx(expected, abs=1e-9)


def test_the_usual_size_is_no_bound_for_zero_padding_and_the_embedding_is():
    row = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(1, 1, 2)
    plain = Geometry((3,), (1,), ((0, 1),), (1,))
    assert true_norm(row, plain) == pytest.approx(1.801938, abs=1e-6)
    assert convolution_norm(row, Geometry((3,), (1,), ((0, 1),), (1,), circular=True)) == pytest.approx(
        1.732051, abs=1e-6
    )
    assert convolution_norm(row, plain) >= 1.801937735
    bump = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    kernel = torch.outer(bump, bump).reshape(1, 1, 3, 3)
    for size, zero, wrapped in ((3, 11.65685, 9.0), (5, 13.92820, 13.09017), (7, 14.80525, 14.45473)):
        geometry = Geometry.of(size, padding=1)
        assert true_norm(kernel, geometry) == pytest.approx(zero, abs=1e-5)
        assert circular(kernel, size) == pytest.approx(wrapped, abs=1e-5)
        assert convolution_norm(kernel, geometry) >= zero - 1e-5


def test_embedding_size_of_the_ledger():
    assert embedding_size(32, 3, 1, 1) == 33
    assert embedding_size(32, 5, 2, 2) == 34
    assert embedding_size(32, 4, 1, 2) == 34
    assert embedding_size(32, 3, 0, 0) == 32
    assert embedding_size(8, 3, 9, 9) == 10


def random_case(seed: int) -> tuple[Tensor, Geometry]:
    generator = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    axes = pick(1, 2)
    groups = pick(1, 2)
    kernel = [pick(1, 4) for _ in range(axes)]
    dilation = [pick(1, 2) for _ in range(axes)]
    image = [pick(max(3, (k - 1) * d + 1), 8) for k, d in zip(kernel, dilation)]
    wrap = pick(0, 1) == 1
    padding = tuple((pick(0, 3), pick(0, 3)) for _ in range(axes))
    geometry = Geometry(
        tuple(image), tuple(pick(1, 3) for _ in range(axes)), padding, tuple(dilation), groups=groups, circular=wrap
    )
    weight = torch.randn(groups * pick(1, 3), pick(1, 3), *kernel, dtype=torch.float64, generator=generator)
    return weight, geometry


@pytest.mark.prove
def test_no_operator_exceeds_its_bound():
    slack = []
    for seed in range(scale(250, full=4000)):
        weight, geometry = random_case(seed)
        truth, bound = true_norm(weight, geometry), convolution_norm(weight, geometry)
        assert truth <= bound * (1 + 1e-12), (seed, geometry, truth, bound)
        assert estimate_convolution_norm(weight, geometry, steps=20) <= truth * (1 + 1e-9)
        slack.append(bound / max(truth, 1e-12))
    assert sorted(slack)[len(slack) // 2] < 1.25


def test_circular_same_padding_is_exact_also_with_stride_and_groups():
    generator = torch.Generator().manual_seed(4)
    for stride in (1, 2):
        weight = torch.randn(6, 2, 3, 3, dtype=torch.float64, generator=generator)
        geometry = Geometry.of((6, 8), padding=1, stride=stride, groups=2, circular=True)
        assert convolution_norm(weight, geometry) == pytest.approx(true_norm(weight, geometry), rel=1e-8)


def test_pointwise_convolutions_are_matrices():
    weight = torch.randn(5, 7, 1, 1, generator=torch.Generator().manual_seed(0))
    expected = float(torch.linalg.matrix_norm(weight.double().flatten(1), 2))
    assert convolution_norm(weight, Geometry.of(9, stride=2)) == pytest.approx(expected, rel=1e-9)


def test_a_coarser_grid_stays_above_the_fine_one(monkeypatch):
    for seed in range(10):
        weight = torch.randn(4, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        fine = convolution_norm(weight, Geometry.of(64, padding=1))
        with monkeypatch.context() as patch:
            patch.setattr("prunus.operators.convolution._WORK_LIMIT", 64 * 20 * 20)
            coarse = convolution_norm(weight, Geometry.of(64, padding=1))
        assert fine * (1 - 1e-9) <= coarse <= fine * 1.06


def test_the_chain_of_block_norms_lies_above():
    weight = torch.randn(8, 8, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for geometry in (Geometry.of(8, padding=1), Geometry.of(8, padding=1, circular=True)):
        assert convolution_norm(weight, geometry) <= block_norm(weight)


def test_bad_geometry_is_refused():
    weight = torch.ones(3, 2, 3, 3)
    with pytest.raises(BadInput, match="axes"):
        convolution_norm(weight, Geometry.of(8, axes=1))
    with pytest.raises(BadInput, match="groups"):
        convolution_norm(weight, Geometry.of(8, groups=2))
    with pytest.raises(BadInput, match="not finite"):
        convolution_norm(weight * float("inf"), Geometry.of(8))


LARGE = """
import pathlib, re, time, torch
from prunus.operators import Geometry, convolution_norm, estimate_convolution_norm
weight = torch.randn({width}, {width}, 3, 3, generator=torch.Generator().manual_seed(0)) * 0.02
geometry = Geometry.of(32, padding=1)
begin = time.perf_counter()
bound = convolution_norm(weight, geometry)
seconds = time.perf_counter() - begin
# Not ru_maxrss: a forked child inherits its parent's peak.
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
print(bound, estimate_convolution_norm(weight, geometry, steps=12), seconds, peak)
"""


@pytest.mark.prove
def test_a_large_convolution_is_affordable():
    """512x512x3x3 at 32x32 in full mode: under 60 s and 1 GB for the whole process."""
    width = scale(96, full=512)
    run = subprocess.run([sys.executable, "-c", LARGE.format(width=width)], capture_output=True, text=True, check=True)
    bound, estimate, seconds, peak = map(float, run.stdout.split())
    assert estimate <= bound <= 1.2 * estimate
    assert peak < 2**30
    if PROVING:
        assert seconds < 60


def test_valid_convolutions_need_no_embedding():
    weight = torch.randn(3, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    geometry = Geometry.of(6)
    assert true_norm(weight, geometry) <= convolution_norm(weight, geometry) <= circular(weight, 6) * (1 + 1e-9)
    assert functional.conv2d(torch.zeros(1, 3, 6, 6).double(), weight).shape[-1] == 4
