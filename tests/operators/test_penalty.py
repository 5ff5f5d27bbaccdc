from __future__ import annotations

import pytest
import torch
from torch import nn

from prunus.errors import BadInput
from prunus.operators import SpectralPenalty, spectral_penalty


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_the_penalty_is_twice_the_sum_of_squared_norms():
    model = small()
    truth = 2 * sum(float(torch.linalg.matrix_norm(m.weight.detach().flatten(1), 2)) ** 2 for m in (model[0], model[3]))
    assert float(spectral_penalty(model, steps=200).detach()) == pytest.approx(truth, rel=1e-4)


def test_its_gradient_is_that_of_the_norms():
    model = small()
    spectral_penalty(model, steps=300).backward()
    weight = model[3].weight.detach().clone().requires_grad_()
    (2 * torch.linalg.matrix_norm(weight, 2).square()).backward()
    torch.testing.assert_close(model[3].weight.grad, weight.grad, rtol=1e-3, atol=1e-4)


def test_descending_the_penalty_lowers_the_norms():
    model = small()
    penalty = SpectralPenalty(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = float(penalty().detach())
    for _ in range(20):
        optimizer.zero_grad()
        penalty().backward()
        optimizer.step()
    assert float(spectral_penalty(model, steps=100).detach()) < 0.5 * before


def test_resuming_gives_the_same_bytes():
    first = SpectralPenalty(small(), seed=3)
    for _ in range(4):
        first()
    second = SpectralPenalty(small(), seed=9)
    second.load_state_dict(first.state_dict())
    assert float(first().detach()) == float(second().detach())
    assert all(torch.equal(a, second.state_dict()[name]) for name, a in first.state_dict().items())


def test_foreign_states_and_empty_models_are_refused():
    with pytest.raises(BadInput, match="no linear"):
        SpectralPenalty(nn.ReLU())
    with pytest.raises(BadInput, match="other layers"):
        SpectralPenalty(small()).load_state_dict({"x": torch.zeros(1)})
    state = SpectralPenalty(small()).state_dict()
    state["3.weight"] = torch.zeros(2)
    with pytest.raises(BadInput, match="entries"):
        SpectralPenalty(small()).load_state_dict(state)
