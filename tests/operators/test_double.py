from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional

from prunus.native import load
from prunus.operators import convolve
from prunus.operators import double as room
from support import scale

pytestmark = pytest.mark.skipif(load("_double") is None, reason="the compiled convolution is not built")


def case(chance: random.Random) -> tuple[torch.Tensor, torch.Tensor, tuple]:
    groups = chance.choice((1, 1, 2, 3))
    inner, outer = chance.randint(1, 7), chance.randint(1, 9)
    kernel = chance.choice(((1, 1), (3, 3), (2, 5), (5, 1)))
    stride, padding, dilation = (tuple(chance.randint(*ends) for _ in "yx") for ends in ((1, 3), (0, 3), (1, 3)))
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    image = chance.randint(13, 36), chance.randint(13, 36)
    x = torch.randn(chance.randint(1, 3), groups * inner, *image, dtype=torch.float64, generator=generator)
    weight = torch.randn(groups * outer, inner, *kernel, dtype=torch.float64, generator=generator)
    return x, weight, (stride, padding, dilation, groups)


@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_gradients_are_torchs(monkeypatch, threads):
    monkeypatch.setattr(room, "_SMALL", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    chance = random.Random(threads)
    try:
        for _ in range(scale(150, full=3000)):
            x, weight, steps = case(chance)
            expected = functional.conv2d(x, weight, None, *steps)
            room_for_rounding = 1e-14 * functional.conv2d(x.abs(), weight.abs(), None, *steps).max()
            assert torch.allclose(convolve(x, weight, *steps), expected, rtol=0, atol=float(room_for_rounding))
            one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
            rows = torch.randn(expected.shape, dtype=torch.float64)
            (found,) = torch.autograd.grad(convolve(one, weight, *steps), one, rows)
            (wanted,) = torch.autograd.grad(functional.conv2d(two, weight, None, *steps), two, rows)
            assert torch.allclose(found, wanted, rtol=0, atol=1e-12 * (1 + float(wanted.abs().max())))
            # The derivative is linear in the rows, and its own derivative is the convolution again.
            rows.requires_grad_()
            (back,) = torch.autograd.grad(convolve(one, weight, *steps), one, rows, create_graph=True)
            (again,) = torch.autograd.grad(back, rows, x)
            assert torch.allclose(again, expected, rtol=0, atol=float(room_for_rounding))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_every_instruction_set_agrees(level):
    native = load("_double")
    if level == "avx512" and native.level() != "avx512":
        pytest.skip("this processor has no AVX-512: the call would run AVX2")
    x, weight = torch.randn(2, 6, 17, 19, dtype=torch.float64), torch.randn(7, 6, 3, 3, dtype=torch.float64)
    y = torch.empty(2, 7, 9, 10, dtype=torch.float64)
    sizes = (6, 17, 19, 7, 3, 3, 2, 2, 1, 1, 1, 1, 9, 10)
    native.convolve(x.data_ptr(), weight.data_ptr(), y.data_ptr(), 2, 1, sizes, 1, level)
    assert torch.allclose(y, functional.conv2d(x, weight, None, 2, 1), rtol=0, atol=1e-12)


def test_what_the_kernel_does_not_cover_is_torchs():
    x = torch.randn(4, 8, 16, 16)
    weight = torch.randn(8, 8, 3, 3, requires_grad=True)
    convolve(x, weight, (1, 1), (1, 1)).sum().backward()
    assert weight.grad is not None
    assert torch.equal(convolve(x, weight.detach()), functional.conv2d(x, weight.detach()))
    with pytest.raises(RuntimeError):
        convolve(torch.randn(1, 4, 8, 8, dtype=torch.float64), torch.randn(8, 8, 3, 3, dtype=torch.float64))
