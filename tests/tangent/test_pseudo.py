"""The identities of K-17 and K-24 to 1e-12, and what the ledger measured with them."""

from __future__ import annotations

import math

import pytest
import torch

import prunus
from prunus.errors import BadInput
from prunus.tangent import empirical, parametrise, pseudo_network, split_backward
from prunus.tangent.pseudo import passes


def network(depth: int, width: int, density: float, seed: int = 0):  # type: ignore[no-untyped-def]
    sizes = "-".join(["2", *[str(width)] * depth, "1"])
    form = parametrise(prunus.models.make(f"fc:{sizes}", init="normal", seed=seed).double())
    masks = prunus.find_masks(form, 1 - density, score="random", exclude=("layers.0*",), seed=seed)
    return form, masks


PAIR = torch.tensor([[1.0, 0.0], [math.cos(math.pi / 3), math.sin(math.pi / 3)]], dtype=torch.float64)


def test_passes_give_the_kernel() -> None:
    form, masks = network(3, 30, 0.5)
    run = passes(form, PAIR, masks)
    expected = sum(
        float((b[0] * b[1]) @ m.square() @ (g[0] * g[1])) for b, m, g in zip(run.backs, run.masks, run.activations)
    )
    assert float(empirical(form, PAIR, masks=masks)[0, 1]) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(form(PAIR).detach(), passes(form, PAIR).before[-1])


@pytest.mark.parametrize(("depth", "width", "density"), [(3, 64, 0.5), (4, 100, 0.3), (2, 128, 0.1)])
def test_pseudo_network_identity(depth: int, width: int, density: float) -> None:
    form, masks = network(depth, width, density)
    for layer in range(1, depth + 1):
        found = pseudo_network(form, PAIR[:1], masks, layer)
        assert found.outputs.shape == (width,)
        scale = float(found.direct.abs().max())
        assert scale > 0
        assert float((found.dependent - found.direct).abs().max()) <= 1e-12 * scale


def test_pseudo_outputs_shrink_with_the_density() -> None:
    """K-17b: mean f^2 goes down like the density, so the 1/density^2 of the proof is not seen (evidence, no proof)."""
    means = []
    for density in (1.0, 0.1):
        squares = []
        for seed in range(12):
            form, masks = network(4, 512, density, seed=seed)
            squares.append(float(pseudo_network(form, PAIR[:1], masks, 2).outputs.square().mean()))
        means.append(sum(squares) / len(squares))
    assert means[1] < means[0] / 2


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_split_identity(density: float) -> None:
    form, masks = network(3, 80, density)
    for layer in (1, 2, 3):
        found = split_backward(form, PAIR, masks, layer)
        size = float(found.whole.abs().max())
        assert found.gap <= 1e-12 * max(1.0, size)
        products = found.products()
        cross = float(found.across[0] @ found.along[1] + found.along[0] @ found.across[1])
        assert products["whole"] == pytest.approx(products["across"] + products["along"] + cross, abs=1e-12)
    run = passes(form, PAIR, masks)
    torch.testing.assert_close(split_backward(form, PAIR, masks, 2).whole, run.backs[1])


def test_the_part_across_carries_the_kernel() -> None:
    form, masks = network(3, 512, 0.5, seed=2)
    found = split_backward(form, PAIR, masks, 2)
    assert float(found.along.norm()) < 0.3 * float(found.across.norm())


def test_bad_input() -> None:
    form, masks = network(2, 8, 0.5)
    biased = parametrise(prunus.models.make("fc:2-8-1", seed=0))
    wide = parametrise(prunus.models.make("fc:2-8-3", init="normal", seed=0))
    for call in (
        lambda: pseudo_network(form, PAIR, masks, 1),
        lambda: pseudo_network(form, PAIR[:1], masks, 3),
        lambda: split_backward(form, PAIR[:1], masks, 1),
        lambda: split_backward(form, PAIR, masks, 0),
        lambda: split_backward(biased, PAIR, None, 1),
        lambda: split_backward(wide, PAIR, None, 1),
    ):
        with pytest.raises(BadInput):
            call()
