"""Gradient steps on blocks: attention and MLP apart, zeros held, in models that others wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.errors import BadInput
from prunus.layers import prunable_weights
from prunus.recovery import ReconstructOptions, _descent
from prunus.recovery._units import runs


def language_model() -> tuple[nn.Module, tuple[str, ...]]:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), ("lm_head",)


def encoder() -> tuple[nn.Module, tuple[str, ...]]:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=4)), ("pooler",)


def sharpened(make: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """With larger weights than at the start of training, so that attention attends."""
    torch.manual_seed(0)
    model, exclude = make()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
    return model.eval(), exclude


@pytest.mark.parametrize("make", [language_model, encoder])
def test_attention_is_moved_before_the_mlp_sees_what_it_gives(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, exclude = sharpened(make)
    ids = torch.randint(0, 64, (128, 12))
    data = [{"input_ids": part} for part in ids.split(8)]
    plain, moved = copy.deepcopy(dense), copy.deepcopy(dense)
    common: dict[str, Any] = {"exclude": exclude, "samples": 128}
    prunus.reconstruct(plain, 0.7, data, **common, options=ReconstructOptions(progress=False))
    order: list[tuple[str, float, float]] = []
    own = _descent.descend

    def noted(module: nn.Module, run: Any, aim: Any, *others: Any) -> bool:
        def distance() -> float:
            return sum(float((_descent._first(run(i)) - _descent._first(aim(i))).square().mean()) for i in range(16))

        before = distance()
        found = own(module, run, aim, *others)
        order.append((type(module).__name__, before, distance()))
        return found

    monkeypatch.setattr(_descent, "descend", noted)
    options = ReconstructOptions(descent=10, progress=False)
    masks = prunus.reconstruct(moved, 0.7, data, **common, options=options)
    assert ["Attention" in name for name, _, _ in order] == [True, False, True, False]
    assert all(after <= before for _, before, after in order)
    assert min(after / before for _, before, after in order) < 0.95
    assert all((parameter[~masks[name]] == 0).all() for name, parameter in masks.parameters_of(moved).items())

    @torch.no_grad()
    def off(model: nn.Module) -> float:
        return float((model(ids)[0] - dense(ids)[0]).square().mean())

    assert off(moved) < 0.9 * off(plain)


def test_a_part_makes_up_for_what_the_residual_stream_lacks() -> None:
    """The sum behind a block is what counts: with other inputs than the dense network's, the target is another."""
    dense, _ = sharpened(language_model)
    ids = torch.randint(0, 64, (4, 12))
    from prunus.adapters import as_batch
    from prunus.recovery._units import UnitWalk

    batch = as_batch({"input_ids": ids})
    walk = UnitWalk(dense, ["model.layers.0", "model.layers.1"], [batch])
    part = dense.get_submodule("model.layers.0.self_attn")
    with torch.no_grad():
        (_, kwargs), output, beside = _descent.watch(walk, part, 0)
        embedded: Tensor = dense.get_input_embeddings()(ids)  # type: ignore[operator]
        assert beside is not None
        assert torch.equal(beside, embedded)
        kwargs = kwargs | {"past_key_values": None}
        assert torch.allclose(part(**kwargs)[0], output, atol=1e-6)


def test_parts_are_attention_and_mlp_and_blocks_with_batch_norms_are_whole() -> None:
    def parts(model: nn.Module, unit: str, data: Any) -> list[str]:
        from prunus.adapters import as_batch

        weights = {weight.parameter for weight in prunable_weights(model).values()}
        counts = runs(model, as_batch(data))
        found = _descent.sublayers(model.get_submodule(unit), unit, weights, counts)
        return [name.removeprefix(f"{unit}.") for name in found]

    ids = {"input_ids": torch.randint(0, 64, (2, 12))}
    assert parts(sharpened(language_model)[0], "model.layers.0", ids) == ["self_attn", "mlp"]
    assert parts(sharpened(encoder)[0], "encoder.layer.0", ids) == ["attention"]
    assert parts(prunus.models.make("resnet20"), "layer1.0", torch.randn(2, 3, 32, 32)) == []


class Overwriting(nn.Module):
    """Changes the output of a sigmoid, which its gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        middle = torch.sigmoid(self.first(x))
        last = self.second(middle)
        middle += 1.0
        return x + last + middle


def test_what_gradients_cannot_follow_is_said_and_nothing_changes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Overwriting(), Overwriting(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BadInput, match="leave descent at 0"):
        prunus.reconstruct(
            model, 0.5, torch.randn(32, 3, 8, 8), pattern="unstructured", options=ReconstructOptions(descent=1)
        )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
