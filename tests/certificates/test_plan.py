from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus
from certificates.networks import convolutional
from prunus.certificates import OnData, PlanSettings
from prunus.errors import BadInput

FEW = PlanSettings(rounds=1, grid=(0.25, 0.5, 0.75, 0.95))


def uneven(seed: int = 0) -> nn.Module:
    """Two hidden layers that differ: the weights of the second are mostly tiny."""
    hidden = [layer for _ in range(2) for layer in (nn.Linear(48, 48), nn.ReLU())]
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), *hidden, nn.Linear(48, 4))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model:
            if isinstance(module, nn.Linear):
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) / module.in_features**0.5)
                module.bias.zero_()
        model[4].weight *= (torch.rand(48, 48, generator=generator) < 0.1) * 0.99 + 0.01
    return model.eval()


def test_a_plan_keeps_the_budget_and_beats_the_best_uniform_sparsity():
    model = uneven()
    exclude = ("0", "6")
    masks = prunus.find_masks(model, 0.5, exclude=exclude)
    budget = prunus.certify(model, masks, prunus.Ball(1.0), attack=False).bound
    settings = PlanSettings(rounds=3, grid=(0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97))
    plan = prunus.plan(model, prunus.Ball(1.0), error=budget, exclude=exclude, settings=settings)
    again = prunus.certify(model, plan.masks, prunus.Ball(1.0), attack=False)
    assert again.bound <= plan.bound <= budget
    assert plan.uniform >= 0.5
    assert plan.masks.sparsity > plan.uniform
    assert set(plan.masks) == {"2.weight", "4.weight"}
    by_name = {layer.name: layer.sparsity for layer in plan.layers}
    assert by_name["4.weight"] > by_name["2.weight"]
    assert plan.curve == tuple(sorted(plan.curve))
    assert {row.layer for row in plan.scan} == {"2.weight", "4.weight"}


def test_a_larger_budget_never_prunes_less():
    model = uneven()
    plans = [prunus.plan(model, prunus.Ball(1.0), error=e, exclude=("0", "6"), settings=FEW) for e in (0.5, 3)]
    sparsities = [plan.masks.sparsity for plan in plans]
    assert sparsities == sorted(sparsities)


@pytest.mark.parametrize("pattern", ["balanced:16", "channels", "2:4"])
def test_plans_keep_the_pattern(pattern):
    model = uneven()
    masks = prunus.find_masks(model, 0.5, pattern=pattern, exclude=("0", "6"))
    budget = prunus.certify(model, masks, prunus.Ball(1.0), attack=False).bound
    plan = prunus.plan(model, prunus.Ball(1.0), error=budget, pattern=pattern, exclude=("0", "6"), settings=FEW)
    assert plan.bound <= budget
    assert plan.masks.sparsity >= masks.sparsity - 1e-9
    if pattern == "2:4":
        kept = plan.masks["4.weight"].reshape(-1, 4).sum(1)
        assert set(kept.tolist()) <= {2, 4}


def test_convolutions_can_be_planned():
    model, shape = convolutional(0, channels=8, side=8)
    masks = prunus.find_masks(model, 0.3, exclude=("11",))
    example = torch.zeros(1, *shape)
    ball = prunus.Ball(0.5)
    budget = prunus.certify(model, masks, ball, attack=False, example=example).bound
    settings = PlanSettings(rounds=1, example=example, grid=(0.1, 0.3, 0.6))
    plan = prunus.plan(model, ball, error=budget, exclude=("11",), settings=settings)
    assert plan.bound <= budget
    assert plan.masks.sparsity >= 0.3 - 1e-3


def test_a_statistical_plan_holds_on_the_other_half():
    model = uneven()
    inputs = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    plan = prunus.plan(model, OnData(inputs), error=0.5, exclude=("0", "6"))
    held = prunus.certify_statistically(model, plan.masks, inputs[1::2])
    assert held.bound == plan.bound <= 0.5
    assert plan.masks.sparsity > 0


def test_a_hopeless_budget_names_the_smallest_that_works():
    model = uneven()
    with pytest.raises(BadInput, match="smallest budget") as caught:
        prunus.plan(model, prunus.Ball(1.0), error=1e-9, exclude=("0", "6"))
    smallest = float(str(caught.value).split("pruning is ")[1].split(" ")[0])
    plan = prunus.plan(
        model, prunus.Ball(1.0), error=smallest * 1.001, exclude=("0", "6"), settings=PlanSettings(rounds=1)
    )
    assert plan.masks.sparsity > 0


@pytest.mark.parametrize("error", [0.0, -1.0, float("nan"), "1", True])
def test_bad_budgets_are_refused(error):
    with pytest.raises(BadInput, match="positive number"):
        prunus.plan(uneven(), prunus.Ball(1.0), error=error)


def test_bad_domains_are_refused():
    with pytest.raises(BadInput, match="domain of a plan"):
        prunus.plan(uneven(), 1.0, error=1.0)
    with pytest.raises(BadInput, match="four points"):
        prunus.plan(uneven(), OnData(torch.zeros(2, 8)), error=1.0)


def test_errors_on_data_may_choose_how_far_each_layer_goes():
    model, exclude = uneven(), ("0", "6")
    data = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    masks = prunus.find_masks(model, 0.5, pattern="2:4", exclude=exclude)
    budget = prunus.certify(model, masks, prunus.Ball(1.0), attack=False).bound
    settings = PlanSettings(grid=(0.25, 0.5, 0.75), rounds=3, data=data, allocation="damage")
    plan = prunus.plan(model, prunus.Ball(1.0), error=budget, pattern="2:4", exclude=exclude, settings=settings)
    assert plan.bound <= budget
    assert prunus.certify(model, plan.masks, prunus.Ball(1.0), attack=False).bound <= budget
    levels = {layer.name: layer.sparsity for layer in plan.layers}
    assert set(levels.values()) <= {0.0, 0.25, 0.5, 0.75}
    assert plan.masks.sparsity >= masks.sparsity
    for name, mask in plan.masks.items():
        kept = mask.reshape(-1, 4).sum(1)
        assert (kept == 4 * (1 - levels[name])).all()


def test_a_plan_by_damage_needs_data():
    with pytest.raises(BadInput, match="PlanSettings"):
        prunus.plan(uneven(), prunus.Ball(1.0), error=1.0, settings=PlanSettings(allocation="damage"))
