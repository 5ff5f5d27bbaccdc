"""Methods of DP-SGD at equal total privacy."""

from __future__ import annotations

import pytest
import torch
from tools.evidence import record

from prunus.errors import BadInput
from prunus.papers.noisy_topk.comparison import ComparisonOptions, compare, predictions
from support import PROVING

pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
pytest.importorskip("opacus", reason="needs the extra 'dp'")


def test_all_methods_stay_within_the_same_budget() -> None:
    torch.set_num_threads(1)
    rows = compare(ComparisonOptions(epochs=3, batch=128, lr=1.0, seeds=1, epsilon=8.0))
    assert [row["method"] for row in rows] == ["dense", "random", "noisy-top-k", "two-level"]
    for row in rows:
        assert 7.0 < row["epsilon spent"] <= 8.0
        assert row["accuracy"] > 0.3
    assert rows[2]["predicted share of top set"] == pytest.approx(0.3, abs=1e-4)
    assert rows[2]["noise multiplier"] >= rows[1]["noise multiplier"]


SETTINGS = {
    "digits": {"epochs": 10, "batch": 128, "lr": 1.0},
    "mnist": {"epochs": 3, "batch": 512, "lr": 1.0, "model": "fc:784-32-10"},
    "fashion-mnist": {"epochs": 3, "batch": 512, "lr": 1.0, "model": "fc:784-32-10"},
}


@pytest.mark.prove
@pytest.mark.skipif(not PROVING, reason="up to twenty minutes of training: run by make prove")
@pytest.mark.parametrize(
    "data", ["digits", *(pytest.param(name, marks=pytest.mark.data) for name in list(SETTINGS)[1:])]
)
@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_three_seeds(data: str, epsilon: float) -> None:
    rows = compare(ComparisonOptions(data=data, epsilon=epsilon, seeds=3, **SETTINGS[data]))
    record(f"private-dpsgd-{data}-{epsilon:g}", rows, f"{data}, epsilon {epsilon:g}, delta 1e-5, three seeds, k = 0.3.")
    assert all(row["epsilon spent"] <= epsilon for row in rows)
    assert all(row["accuracy"] > 0.6 for row in rows)


def test_theory_beforehand() -> None:
    said = predictions(0.1, 32_768, 1.395e-4, 1.0)
    assert said["theta"] == pytest.approx(2.13e-8, rel=2e-3)
    assert said["best_k"] == pytest.approx(0.31731051, rel=1e-6)


@pytest.mark.parametrize("change", [{"methods": ("best",)}, {"k": 1.0}, {"epochs": 0}, {"data": "imdb"}])
def test_bad_input(change) -> None:
    with pytest.raises(BadInput):
        ComparisonOptions(**change)
