from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prunus
from prunus.errors import BadInput
from support import scale
from support.networks import network

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "sgd nesterov foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
}


def assert_zeros_held(model: nn.Module, masks: prunus.Masks) -> None:
    for name, mask in masks.items():
        dropped = model.get_parameter(name)[~mask]
        assert not dropped.any()
        assert not torch.signbit(dropped).any()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, labels: Any) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_zeros_stay_and_the_rest_moves(name: str) -> None:
    model, inputs, labels = network("linear")
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(3):  # momenta of weights that are pruned later
        step(model, optimizer, inputs, labels)
    masks = prunus.find_masks(model, 0.8)
    before = copy.deepcopy(model.state_dict())
    with masks.hold(model, optimizer):
        for _ in range(scale(60, full=1000)):
            step(model, optimizer, inputs, labels)
            assert_zeros_held(model, masks)
    moved = model.get_parameter("0.weight")[masks["0.weight"]] != before["0.weight"][masks["0.weight"]]
    assert moved.float().mean() > 0.2


def test_a_thousand_adamw_steps() -> None:
    model, inputs, labels = network("linear")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.9, 0.999))
    masks = prunus.find_masks(model, 0.9)
    with masks.hold(model, optimizer):
        for _ in range(1000):
            step(model, optimizer, inputs, labels)
    assert_zeros_held(model, masks)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_never_leaves_the_subspace(line_search: str | None) -> None:
    model, inputs, labels = network("linear")
    masks = prunus.find_masks(model, 0.8)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn=line_search, max_iter=10)
    seen = []

    def closure() -> torch.Tensor:
        seen.append(all(not model.get_parameter(n)[~m].any() for n, m in masks.items()))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    with masks.hold(model, optimizer):
        first = float(closure().detach())
        for _ in range(20):
            optimizer.step(closure)
        assert_zeros_held(model, masks)
    assert all(seen)
    assert float(closure().detach()) < first / 2


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adamw", "adamw fused"])
def test_kept_weights_get_the_updates_they_would_get(name: str) -> None:
    """Against an oracle that masks by hand: the same steps on the same gradients, bit for bit."""
    model, inputs, labels = network("linear")
    masks = prunus.prune(model, 0.7)
    oracle = copy.deepcopy(model)
    optimizer, by_hand = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](oracle.parameters())
    with masks.hold(model, optimizer):
        for _ in range(25):
            step(model, optimizer, inputs, labels)
            by_hand.zero_grad()
            nn.functional.cross_entropy(oracle(inputs), labels).backward()
            for key, mask in masks.items():
                oracle.get_parameter(key).grad *= mask
            by_hand.step()
            masks.apply_(oracle)
    for mine, other in zip(model.parameters(), oracle.parameters()):
        assert torch.equal(mine, other)


def test_accumulated_gradients_and_clipping_see_only_kept_weights() -> None:
    model, inputs, labels = network("convolution")
    masks = prunus.find_masks(model, 0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with masks.hold(model, optimizer):
        for part in range(4):
            nn.functional.cross_entropy(model(inputs[part::4]), labels[part::4]).backward()
            for name, mask in masks.items():
                assert not model.get_parameter(name).grad[~mask].any()
        optimizer.step()
    assert_zeros_held(model, masks)


def test_gradients_set_by_hand_are_masked() -> None:
    model, _, _ = network("linear")
    masks = prunus.find_masks(model, 0.9)
    optimizer = torch.optim.Adam(model.parameters())
    with masks.hold(model, optimizer):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert not model.get_parameter("0.weight").grad[~masks["0.weight"]].any()
    assert_zeros_held(model, masks)


def test_autocast() -> None:
    model, inputs, labels = network("linear")
    masks = prunus.find_masks(model, 0.8)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    with masks.hold(model, optimizer), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(20):
            step(model, optimizer, inputs, labels)
    assert_zeros_held(model, masks)


def test_compiled_model() -> None:
    model, inputs, labels = network("linear")
    masks = prunus.find_masks(model, 0.8)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(compiled.parameters(), weight_decay=0.1)
    with masks.hold(compiled, optimizer):
        for _ in range(5):
            step(compiled, optimizer, inputs, labels)
    assert_zeros_held(model, masks)


def test_remove_lets_go() -> None:
    model, inputs, labels = network("linear")
    masks = prunus.find_masks(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = masks.hold(model, optimizer)
    step(model, optimizer, inputs, labels)
    assert_zeros_held(model, masks)
    handle.remove()
    step(model, optimizer, inputs, labels)
    assert model.get_parameter("0.weight")[~masks["0.weight"]].any()


def test_only_an_optimizer_will_do() -> None:
    model, _, _ = network("linear")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BadInput, match="torch optimizer"):
        prunus.find_masks(model, 0.5).hold(model, object())  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
