from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import prunus
from prunus.certificates import bound_a_priori, check_assumptions
from prunus.errors import BadInput
from prunus.theory import closeness
from support import scale


def test_square_layers_give_theorem_1_prime():
    expected = closeness.theorem1_prime_error(1024, 3, 34420, 0.05)
    found = bound_a_priori([1024] * 4, 34420 / 1024**2)
    assert found.error == pytest.approx(expected["error"], rel=1e-9)
    assert found.pruned == (0, 34420, 0)


@pytest.mark.prove
@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_the_bound_holds_for_random_networks(law):
    """Confidence .95, yet the bound is loose: not one of the draws may exceed it (alarm far below 1e-6)."""
    widths = [20, 64, 48, 64, 5]
    bound = bound_a_priori(widths, 0.1, law=law).error
    for seed in range(scale(5, full=100)):
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layer = nn.Linear(inputs, outputs, bias=False)
            draw = torch.rand if law == "uniform" else torch.randn
            values = draw(layer.weight.shape, generator=generator)
            values = 2 * values - 1 if law == "uniform" else values
            with torch.no_grad():
                layer.weight.copy_(values / max(inputs, outputs) ** 0.5)
            layers += [layer, nn.ReLU()]
        model = nn.Sequential(*layers[:-1]).eval()
        masks = prunus.find_masks(model, 0.1, exclude=("0", "6"))
        cert = prunus.certify(model, masks, prunus.Ball(1.0), attack=False)
        assert cert.bound <= bound


def test_a_mean_shows_up_in_the_assumptions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Conv2d(8, 8, 3))
    plain = check_assumptions(model)
    assert plain[0].law == "uniform"
    assert plain[0].fits
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted[0].weight += 0.05
    row = check_assumptions(shifted)[0]
    assert row.mean_norm == pytest.approx(0.05 * 128, rel=0.05)
    assert row.norm > 6
    assert not row.fits
    assert row.leading_share > 0.4
    assert row.column_correlation == pytest.approx(plain[0].column_correlation, abs=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(BadInput, match="three layers"):
        bound_a_priori([10, 10, 10], 0.1)
    with pytest.raises(BadInput, match="sparsity"):
        bound_a_priori([10] * 4, 1.0)
    with pytest.raises(BadInput, match="law"):
        bound_a_priori([10] * 4, 0.1, law="cauchy")
    with pytest.raises(BadInput, match="confidence"):
        bound_a_priori([10] * 4, 0.1, confidence=1.0)
    with pytest.raises(BadInput, match="no linear"):
        check_assumptions(nn.ReLU())
