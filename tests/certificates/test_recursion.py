from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus
from prunus.certificates import CertifyOptions


def network(*weights: list[list[float]], biases: list[list[float]] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, rows in enumerate(weights):
        weight = torch.tensor(rows, dtype=torch.float64)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=biases is not None, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if biases is not None:
                layer.bias.copy_(torch.tensor(biases[number], dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def recursion(one: nn.Module, two: nn.Module) -> prunus.certificates.Certificate:
    return prunus.certify(one, two, prunus.Ball(1.0), options=CertifyOptions(methods=("recursion",)))


FIRST = ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.1], [0.0, 1.0]], [[1.0, 1.0]])
FIRST_PRUNED = ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]])
BIASES = [[0.1, 0.2], [0.0, -0.3], [0.5]]


def test_the_first_network_of_the_ledger():
    cert = recursion(network(*FIRST), network(*FIRST_PRUNED))
    assert cert.bound == pytest.approx(0.1414213562, abs=2e-10)
    assert cert.attained == pytest.approx(0.1, abs=1e-6)


def test_the_same_with_biases():
    """The ledger has .1730441328 without the centre; the split at the centre may only lower it."""
    cert = recursion(network(*FIRST, biases=BIASES), network(*FIRST_PRUNED, biases=BIASES))
    assert cert.attained <= cert.bound <= 0.1730441328 + 1e-9


def test_the_second_network_of_the_ledger():
    first, last = [[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]], [[1.0, -1.0], [0.5, 2.0]]
    one = network(first, [[0.5, -0.2, 0.1], [0.05, 1.0, -1.0]], last)
    two = network(first, [[0.5, -0.2, 0.0], [0.0, 1.0, -1.0]], last)
    cert = recursion(one, two)
    assert cert.bound == pytest.approx(1.2226052239, abs=5e-10)
    assert cert.attained == pytest.approx(0.25, rel=0.05)


def test_without_biases_the_bound_scales_with_the_radius():
    one, two = network(*FIRST), network(*FIRST_PRUNED)
    options = CertifyOptions(methods=("recursion",))
    small, large = (prunus.certify(one, two, prunus.Ball(r), options=options).bound for r in (0.5, 3.0))
    assert large == pytest.approx(6 * small, rel=1e-9)


def test_shares_name_the_layer_that_was_pruned():
    cert = recursion(network(*FIRST), network(*FIRST_PRUNED))
    assert [layer.share for layer in cert.layers] == pytest.approx([0, 1, 0])
    assert cert.layers[1].removed_norm == pytest.approx(0.1, rel=1e-9)
