"""The search for a better order of columns: never worse, recovers a bad layout, and undone at the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from prunus.sparse import compress, find_permutation, find_permuted_masks, load, save


def removed(weight: torch.Tensor, order: torch.Tensor, keep: int = 4) -> float:
    ranked = weight.double()[:, order].square().reshape(len(weight), -1, 16).sort(2).values
    return float(ranked[..., : 16 - keep].sum() / weight.double().square().sum())


def test_recovers_what_a_bad_layout_costs() -> None:
    """Large columns side by side (the worst layout) against the same columns spread by chance (ledger B-10)."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.linspace(0.2, 2.0, 256)
    bad = torch.randn(64, 256, generator=generator) * scales
    order = find_permutation(bad, 0.75)
    assert torch.equal(order.sort().values, torch.arange(256))
    spread = [removed(bad, torch.randperm(256, generator=generator)) for _ in range(20)]
    identity = removed(bad, torch.arange(256))
    assert min(spread) < identity
    assert removed(bad, order) < min(spread)


def test_never_worse_than_the_given_order() -> None:
    generator = torch.Generator().manual_seed(2)
    for cols in (16, 40, 64, 100):
        weight = torch.randn(20, cols, generator=generator)
        order, whole = find_permutation(weight, 0.75, rounds=5), cols // 16 * 16
        assert removed(weight[:, :whole], order[:whole]) <= removed(weight[:, :whole], torch.arange(whole)) + 1e-12
        assert torch.equal(order[whole:], torch.arange(whole, cols))


def test_the_same_seed_gives_the_same_order() -> None:
    weight = torch.randn(20, 64, generator=torch.Generator().manual_seed(3))
    assert torch.equal(find_permutation(weight, 0.9, seed=5), find_permutation(weight, 0.9, seed=5))


def test_undone_at_the_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = prunus.models.make("fc:128-64-10").eval()
    masks, orders = find_permuted_masks(model, 0.875, exclude=("layers.1",))
    assert masks.sparsity == 0.875
    fast = compress(model, masks, select="always", permutations=orders)
    assert fast.layers[0].packed.fill == 1.0  # balanced in its own order
    x = torch.randn(5, 128)
    save(fast, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors", prunus.models.make("fc:128-64-10"))
    with torch.no_grad():
        expected = masks.apply_(model)(x)
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(again(x), fast(x))
    with pytest.raises(BadInput, match="not a linear layer"):
        compress(model, permutations={"layers.7": orders["layers.0"]})
    with pytest.raises(BadInput, match="each of them once"):
        compress(model, select="always", permutations={"layers.0": torch.zeros(128, dtype=torch.long)})


def test_refuses_what_is_not_a_matrix() -> None:
    with pytest.raises(BadInput):
        find_permutation(nn.Conv2d(4, 4, 3).weight, 0.5)


@pytest.mark.parametrize("cols", [64, 100])
@pytest.mark.parametrize("sparsity", [0.55, 0.9])
def test_permuted_masks_have_the_zeros_of_balanced_ones(cols: int, sparsity: float) -> None:
    """In every bank of every row, the short last one too."""
    layer = nn.Linear(cols, 8)
    masks, orders = find_permuted_masks(layer, sparsity)
    plain = prunus.find_masks(layer, sparsity, pattern="balanced:16")["weight"]
    found = masks["weight"][:, orders[""]]
    for start in range(0, cols, 16):
        bank = slice(start, start + 16)
        assert torch.equal(found[:, bank].sum(1), plain[:, bank].sum(1))
