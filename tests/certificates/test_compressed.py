from __future__ import annotations

import copy

import pytest
import torch

import prunus
from certificates.networks import fully_connected, randomise
from prunus.certificates import read_pair


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int8])
def test_a_compressed_network_is_certified_through_its_own_weights(dtype):
    model, shape = fully_connected(2, width=64, inputs=32)
    masks = prunus.find_masks(model, 0.75, pattern="balanced:16", exclude=("5",))
    pruned = masks.apply_(copy.deepcopy(model))
    fast = prunus.compress(pruned, example=torch.zeros(4, *shape), select="always", dtype=dtype).eval()
    plain = prunus.certify(model, pruned, prunus.Ball(1.0))
    cert = prunus.certify(model, fast, prunus.Ball(1.0))
    inputs = torch.nn.functional.normalize(torch.randn(300, *shape, generator=torch.Generator().manual_seed(0)), dim=1)
    with torch.no_grad():
        distance = (fast(inputs).double() - model(inputs).double()).norm(dim=1).max()
    assert float(distance) <= cert.bound
    assert cert.bound == pytest.approx(plain.bound, rel=1e-6 if dtype is None else 0.1)


def test_a_compressed_residual_network_lines_up_with_the_dense_one():
    model = randomise(prunus.models.make("resnet20:width=0.5", seed=0), 0)
    masks = prunus.find_masks(model, 0.75, pattern="balanced:8", exclude=("linear", "conv1"))
    pruned = masks.apply_(copy.deepcopy(model))
    example = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    fast = prunus.compress(pruned, example=example, select="always").eval()
    pair = read_pair(pruned, fast, (3, 32, 32))
    one, two = pair.outputs(example.double())
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(two, fast(example).double(), rtol=1e-3, atol=1e-3)
