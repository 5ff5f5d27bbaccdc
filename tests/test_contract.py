from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import prunus
from prunus.contract import Duration, Masks
from prunus.errors import BadInput
from support.networks import MAKERS, Tied, network


def random_masks(model: nn.Module, density: float = 0.5, seed: int = 0) -> Masks:
    generator = torch.Generator().manual_seed(seed)
    from prunus.layers import prunable_weights

    return Masks({n: torch.rand(w.shape, generator=generator) < density for n, w in prunable_weights(model).items()})


def test_sparsity_counts_every_weight_it_covers() -> None:
    masks = Masks({"a": torch.tensor([True, False, False, False]), "b": torch.tensor([[True], [True]])})
    assert masks.sparsity == pytest.approx(0.5)
    assert [(row.name, row.shape, row.total, row.kept, row.sparsity) for row in masks.layers] == [
        ("a", (4,), 4, 1, 0.75),
        ("b", (2, 1), 2, 2, 0.0),
    ]
    assert Masks({}).sparsity == 0.0


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(3, dtype=torch.uint8), [True, False], None])
def test_a_mask_is_a_boolean_tensor(bad: object) -> None:
    with pytest.raises(BadInput, match="boolean tensor"):
        Masks({"weight": bad})  # type: ignore[dict-item]


def test_masks_do_not_follow_the_tensor_they_were_made_from() -> None:
    source = torch.tensor([True, False])
    masks = Masks({"a": source})
    source[:] = False
    assert masks["a"].tolist() == [True, False]
    with pytest.raises(TypeError):
        masks["a"] = source  # type: ignore[index]


@pytest.mark.parametrize("kind", list(MAKERS))
def test_apply_zeroes_exactly_what_is_dropped(kind: str) -> None:
    model, _, _ = network(kind)
    before = copy.deepcopy(model)
    masks = random_masks(model)
    assert masks.apply_(model) is model
    for (name, after), old in zip(model.named_parameters(), before.parameters()):
        kept = masks[name] if name in masks else torch.ones_like(old, dtype=torch.bool)
        assert torch.equal(after[kept], old[kept])
        assert not after[~kept].any()
        assert not torch.signbit(after[~kept]).any()


def test_apply_is_all_or_nothing() -> None:
    model, _, _ = network("linear")
    before = copy.deepcopy(model.state_dict())
    masks = Masks({"0.weight": torch.zeros(24, 32, dtype=torch.bool), "2.weight": torch.zeros(3, 25, dtype=torch.bool)})
    with pytest.raises(BadInput, match=r"shape \(3, 25\)"):
        masks.apply_(model)
    with pytest.raises(BadInput, match="does not have"):
        Masks({"9.weight": torch.zeros(3, 24, dtype=torch.bool)}).apply_(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_masks_find_their_way_through_wrappers() -> None:
    model, _, _ = network("linear")
    masks = random_masks(model)

    class Wrapped(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapped = Wrapped(copy.deepcopy(model))
    assert prunus.find_masks(wrapped, 0.5) == prunus.find_masks(model, 0.5)
    masks.apply_(wrapped)
    assert Masks.from_model(wrapped) == masks
    assert torch.equal(masks["module._orig_mod.0.weight"], masks["0.weight"])
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    assert Masks.from_model(masks.apply_(compiled)) == masks


def test_a_name_that_only_looks_wrapped_is_kept_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.module = nn.ModuleDict({"fc": nn.Linear(4, 4)})

    masks = prunus.find_masks(Both(), 0.5)
    assert len(masks) == 2


def test_tied_weights_have_one_mask() -> None:
    model = Tied()
    masks = prunus.find_masks(model, 0.5)
    assert list(masks) == ["first.weight", "head.weight"]
    masks.apply_(model)
    assert torch.equal(model.second.weight != 0, masks["first.weight"])


def test_export_carries_the_zeros() -> None:
    model, inputs, _ = network("linear")
    masks = prunus.prune(model, 0.75)
    exported = torch.export.export(model, (inputs,)).module()
    torch.testing.assert_close(exported(inputs), model(inputs))
    assert list(masks) == ["0.weight", "2.weight"]
    assert Masks({name: exported.get_parameter(name) != 0 for name in masks}) == masks
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.fill_(1.0)
    masks.apply_(exported)
    assert Masks({name: exported.get_parameter(name) != 0 for name in masks}) == masks


def test_from_model_reads_torch_prune() -> None:
    model, _, _ = network("linear")
    torch_prune.l1_unstructured(model[0], "weight", amount=0.5)
    torch_prune.random_structured(model[2], "weight", amount=1, dim=0)
    masks = Masks.from_model(model)
    assert torch.equal(masks["0.weight"], model[0].weight_mask.bool())
    assert torch.equal(masks["2.weight"], model[2].weight_mask.bool())


def test_and_keeps_what_both_keep() -> None:
    one = Masks({"a": torch.tensor([True, True, False]), "b": torch.tensor([True])})
    two = Masks({"a": torch.tensor([True, False, False]), "c": torch.tensor([False])})
    both = one & two
    assert both == Masks(
        {"a": torch.tensor([True, False, False]), "b": torch.tensor([True]), "c": torch.tensor([False])}
    )
    with pytest.raises(BadInput, match="disagree"):
        one & Masks({"a": torch.tensor([True])})


def test_comparison_and_repr() -> None:
    masks = Masks({"a": torch.tensor([True, False])})
    assert masks == copy.deepcopy(masks)
    assert masks != Masks({"a": torch.tensor([True, True])})
    assert masks != Masks({"b": torch.tensor([True, False])})
    assert masks != {"a": masks["a"]}
    assert "sparsity 0.5" in repr(masks)
    assert masks.to("cpu") == masks
    assert masks.to("meta")["a"].device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_dtype(dtype: torch.dtype) -> None:
    model = nn.Linear(32, 8).to(dtype)
    masks = prunus.prune(model, 0.5)
    assert model.weight.dtype == dtype
    assert int((model.weight == 0).sum()) == 128 == masks.layers[0].total // 2


@pytest.mark.parametrize(
    ("text", "steps"), [("160ep", 1600), ("5000it", 5000), ("0.5ep", 5), ("0ep", 0), ("1/3ep", 3), ("2.55ep", 26)]
)
def test_durations(text: str, steps: int) -> None:
    assert Duration.parse(text).steps(10) == steps
    assert Duration.parse(Duration.parse(text)) == Duration.parse(text)


def test_durations_show_what_was_written() -> None:
    assert str(Duration.parse("160ep")) == "160ep"
    assert str(Duration(Fraction(1, 2), "ep")) == "0.5ep"


@pytest.mark.parametrize("bad", ["160", "ep", "-1ep", "1.5it", "1/0ep", "ten ep", "", "nanep"])
def test_bad_durations(bad: str) -> None:
    with pytest.raises(BadInput, match="160ep"):
        Duration.parse(bad)
