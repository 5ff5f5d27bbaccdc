from __future__ import annotations

import pytest
import torch

from prunus.errors import BadInput
from prunus.models import describe, make


def test_layers_have_the_promised_names_and_sizes() -> None:
    model = make("fc:64-300-100-10")
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == {
        "layers.0.weight": (300, 64),
        "layers.0.bias": (300,),
        "layers.1.weight": (100, 300),
        "layers.1.bias": (100,),
        "layers.2.weight": (10, 100),
        "layers.2.bias": (10,),
    }


def test_forward_is_relu_between_layers_and_none_after_the_last() -> None:
    model = make("fc:5-4-3-2", seed=0).double()
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x
    for number in range(3):
        layer = model.get_submodule(f"layers.{number}")
        expected = expected @ layer.weight.T + layer.bias
        if number < 2:
            expected = expected.clamp(min=0)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    assert (model(x) < 0).any()


def test_images_are_flattened_and_wrong_sizes_refused() -> None:
    model = make("lenet-300-100")
    x = torch.randn(3, 1, 28, 28)
    assert torch.equal(model(x), model(x.flatten(1)))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 392))  # two halves are not one example


def test_width_scales_the_hidden_layers_only() -> None:
    model = make("fc:64-32-32-10", width=0.25, bias=False)
    assert [tuple(p.shape) for p in model.parameters()] == [(8, 64), (8, 8), (10, 8)]


@pytest.mark.parametrize("sizes", ["64", "64-", "64-0-10", "64-x-10", "64--10", "-64-10", "64-1.5-10"])
def test_bad_sizes_are_one_sentence(sizes: str) -> None:
    with pytest.raises(BadInput, match=r"as in fc:64-300-100-10\.$"):
        make(f"fc:{sizes}")


def test_presets() -> None:
    count = lambda name: sum(p.numel() for p in make(name).parameters())  # noqa: E731
    assert count("lenet-300-100") == 266_610
    assert count("fc-5x1024") == 785 * 1024 + 4 * 1025 * 1024 + 1025 * 10
    assert count("fc-2x2048") == 785 * 2048 + 2049 * 2048 + 2049 * 10
    assert describe("fc:64-300-10").input == (64,)
    assert describe("fc:64-300-10").outputs == 10
