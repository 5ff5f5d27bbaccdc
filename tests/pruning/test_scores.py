from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.contract import ScoreContext
from prunus.errors import BadInput
from prunus.layers import prunable_weights
from prunus.pruning import scores
from support.networks import network


def context(kind: str = "linear", **options: object) -> ScoreContext:
    model, inputs, labels = network(kind)
    model = model.double()
    return ScoreContext(model, prunable_weights(model), (inputs.double(), labels), **options)  # type: ignore[arg-type]


def test_snip_is_the_derivative_by_the_mask() -> None:
    """Finite differences of the loss in one mask entry."""
    given = context()
    found = scores.snip(given)["0.weight"]
    inputs, labels = given.data
    weight = given.weights["0.weight"].parameter
    for row, column in [(0, 0), (3, 7), (23, 31)]:
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                old = weight[row, column].clone()
                weight[row, column] *= 1 + sign * 1e-6
                losses.append(nn.functional.cross_entropy(given.model(inputs), labels))
                weight[row, column] = old
        assert float(found[row, column]) == pytest.approx(float(losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-9)


def test_grasp_is_weight_times_hessian_times_gradient_at_temperature_200() -> None:
    given = context()
    found = scores.grasp(given)
    inputs, labels = given.data
    weights = [weight.parameter for weight in given.weights.values()]

    def gradient() -> list[torch.Tensor]:
        return list(torch.autograd.grad(nn.functional.cross_entropy(given.model(inputs) / 200, labels), weights))

    base = gradient()
    shifted = []
    for sign in (1, -1):
        with torch.no_grad():
            for weight, direction in zip(weights, base):
                weight += sign * 1e-3 * direction
        shifted.append(gradient())
        with torch.no_grad():
            for weight, direction in zip(weights, base):
                weight -= sign * 1e-3 * direction
    for (name, weight), plus, minus in zip(given.weights.items(), *shifted):
        expected = weight.parameter * (plus - minus) / 2e-3
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-4, atol=1e-10)


class Lopsided(torch.utils.data.Dataset):
    """600 samples, nine of ten of class 0; counts how many are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(600, 12, generator=generator)
        self.labels = torch.where(torch.arange(600) % 10 > 0, 0, torch.arange(600) // 10 % 4)

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.inputs[index], int(self.labels[index])


def test_grasp_takes_ten_samples_of_every_class() -> None:
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    data = Lopsided()
    seen: list[int] = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.extend(labels.tolist())
        return nn.functional.cross_entropy(outputs, labels)

    first = scores.grasp(ScoreContext(model, prunable_weights(model), data, loss, seed=1))
    assert [seen.count(label) for label in range(4)] == [10, 10, 10, 10]
    again = scores.grasp(ScoreContext(model, prunable_weights(model), data, loss, seed=1))
    other = scores.grasp(ScoreContext(model, prunable_weights(model), data, loss, seed=2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_grasp_takes_what_there_is_of_a_rare_class() -> None:
    model = nn.Sequential(nn.Linear(12, 7))  # classes 4 to 6 never occur
    found = scores.grasp(ScoreContext(model, prunable_weights(model), Lopsided(), seed=0))
    assert bool(found["0.weight"].isfinite().all())


def test_synflow_conserves_flow_and_ignores_signs() -> None:
    """Without biases the scores of every layer add up to the same flow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias=False), nn.ReLU(), nn.Linear(9, 4, bias=False))
    given = ScoreContext(model, prunable_weights(model), torch.randn(2, 6))
    found = scores.synflow(given)
    assert float(found["0.weight"].sum()) == pytest.approx(float(found["2.weight"].sum()))
    with torch.no_grad():
        model[0].weight.neg_()
    again = scores.synflow(given)
    torch.testing.assert_close(again["2.weight"], found["2.weight"])


def test_synflow_in_rounds_does_not_cut_the_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
    masks = prunus.find_masks(model, 0.95, score="synflow", allocation="global", data=torch.randn(4, 20))
    assert masks.sparsity == pytest.approx(0.95, abs=1e-3)
    assert all(row.kept > 0 for row in masks.layers)


@pytest.mark.parametrize("kind", ["linear", "convolution", "grouped"])
def test_wanda_is_weight_times_input_norm(kind: str) -> None:
    given = context(kind)
    inputs, _ = given.data
    name = "0.weight"
    weight = given.weights[name].parameter.detach()
    channels = inputs.transpose(1, -1).reshape(-1, inputs.shape[1]).norm(dim=0)
    groups = getattr(given.model[0], "groups", 1)
    per_group = channels.reshape(groups, -1)
    found = scores.wanda(given)[name].abs()
    out = weight.shape[0] // groups
    for group in range(groups):
        block = weight[group * out : (group + 1) * out].abs()
        expected = block * per_group[group].reshape(1, -1, *(1 for _ in block.shape[2:]))
        torch.testing.assert_close(found[group * out : (group + 1) * out], expected)


def test_random_masks_are_uniform() -> None:
    """Every weight goes equally often: 400 masks of a 10x10 layer, six standard deviations (false alarms < 1e-6)."""
    layer = nn.Linear(10, 10)
    total = sum(prunus.find_masks(layer, 0.3, score="random", seed=seed)["weight"].double() for seed in range(400))
    assert float((total / 400 - 0.7).abs().max()) < 6 * (0.21 / 400) ** 0.5
    first, second = (prunus.find_masks(layer, 0.3, score="random", seed=seed) for seed in (1, 2))
    assert first != second


def test_dropout_and_batch_norm_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    data = (torch.randn(16, 8), torch.arange(16) % 3)
    random_state = torch.random.get_rng_state()
    assert prunus.find_masks(model, 0.5, score="snip", data=data) == prunus.find_masks(
        model, 0.5, score="snip", data=data
    )
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_random_mask_knows_nothing_of_weights_drawn_with_the_same_seed(seed: int) -> None:
    """Kept weights have mean zero within 5 standard errors (false alarms below 1e-6 a layer)."""
    model = prunus.models.make("fc:400-300-200-10", seed=seed)
    masks = prunus.find_masks(model, 0.7, score="random", seed=seed)
    weights = dict(model.named_parameters())
    for name, mask in masks.items():
        kept = weights[name].detach()[mask]
        assert abs(float(kept.mean())) <= 5 * float(kept.std()) / kept.numel() ** 0.5, name


@pytest.mark.parametrize("score", ["snip", "grasp", "synflow", "wanda", "own"])
def test_a_score_that_needs_data_says_so_where_there_is_none(score: str) -> None:
    def own(context: ScoreContext) -> dict[str, Tensor]:
        return {name: weight.parameter for name, weight in context.weights.items()}

    own.needs_data = True  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match=f"The score '{score}' needs data: pass data="):
        prunus.find_masks(nn.Linear(8, 4), 0.5, score=own if score == "own" else score)
