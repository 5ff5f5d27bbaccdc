"""Training, scoring and statistics on data and models as other libraries give them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prunus
from prunus.errors import BadInput
from prunus.training import FitConfig, accuracy, evaluate, fit, prune_gradually, recalibrate
from support.foreign import small

FAST = FitConfig(batch_size=8, lr=0.05)
IDS = torch.randint(1, 100, (16, 6), generator=torch.Generator().manual_seed(1))
WORDS = [{"input_ids": row.tolist(), "label": int(row[0] > 50)} for row in IDS]
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(2)), torch.arange(16) % 2


def sources() -> dict[str, object]:
    return {
        "dict samples": [{"x": x, "y": int(y)} for x, y in zip(X, Y)],
        "columns": {"x": X, "labels": Y},
        "numpy pair": (X.numpy(), Y.numpy()),
        "float64": (X.numpy().astype(np.float64), Y.numpy()),
        "list of samples": [(x, int(y)) for x, y in zip(X, Y)],
        "loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    }


@pytest.mark.parametrize("source", sources())
def test_every_source_trains_to_the_same_weights(source: str) -> None:
    def trained(data: object) -> tuple[nn.Module, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        fit(model, data, "2ep", FAST)
        return model, accuracy(model, data)

    one, two = trained(TensorDataset(X, Y)), trained(sources()[source])
    torch.testing.assert_close(one[0][0].weight, two[0][0].weight)
    assert one[1] == two[1]


@pytest.mark.parametrize("score", ["snip", "grasp", "synflow", "wanda", "magnitude"])
def test_scores_take_dicts_of_tokens(score: str) -> None:
    model = small("bert-classifier")
    masks = prunus.find_masks(model, 0.5, score=score, pattern="balanced:16", data=WORDS)
    again = prunus.find_masks(model, 0.5, score=score, pattern="balanced:16", data=WORDS)
    assert masks.sparsity == pytest.approx(0.5)
    assert masks == again
    assert not any("embeddings" in name for name in masks)


def test_a_classifier_of_transformers_learns_with_its_own_batches() -> None:
    model = small("bert-classifier")
    history = fit(model, WORDS, "8ep", FitConfig(batch_size=8, lr=1e-3, optimizer="adam"), test=WORDS)
    assert history[-1].loss < history[0].loss
    assert history[-1].accuracy is not None
    assert accuracy(model, WORDS) == history[-1].test_accuracy
    masks = prune_gradually(model, WORDS, 0.5, "balanced:16", length="2ep", config=FAST)
    assert masks.sparsity == pytest.approx(0.5)
    found = prunus.certify_statistically(small("bert-classifier"), model, WORDS)
    assert found.points == 16
    assert found.largest > 0


def test_a_language_model_shifts_its_own_labels() -> None:
    model = small("llama")
    data = [{"input_ids": row, "labels": row} for row in IDS]
    loss, _ = evaluate(model, data)
    with torch.no_grad():
        own = model(input_ids=IDS, labels=IDS).loss
    assert loss == pytest.approx(float(own), rel=1e-5)
    fit(model, data, "1ep", FAST)


def test_recalibration_and_plans_take_dicts() -> None:
    model = small("resnet")
    images = [{"pixel_values": torch.randn(3, 32, 32), "label": 0} for _ in range(4)]
    before = model.resnet.embedder.embedder.normalization.running_mean.clone()
    recalibrate(model, images)
    assert "loss" in model.recalibrated
    with torch.no_grad():
        model.resnet.embedder.embedder.convolution.weight.mul_(100.0)
    recalibrate(model, [{"pixel_values": image["pixel_values"]} for image in images])
    assert not torch.equal(before, model.resnet.embedder.embedder.normalization.running_mean)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    from prunus.certificates import OnData

    plan = prunus.plan(head, OnData([{"x": x, "y": 0} for x in X]), error=0.3)
    assert 0 < plan.masks.sparsity < 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"x": x} for x in X], "needs labels"),
        (iter([(X, Y)]), "no length"),
        ([{"x": torch.zeros(5), "y": 0}], "cannot"),
        ([], "empty"),
    ],
)
def test_bad_data_is_one_sentence(data: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        fit(nn.Linear(6, 2), data, "1ep", FAST)
