"""The share of answers that stay, for models of text."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from prunus.study import Cell, Settings
from prunus.study.answers import nearest, same_answers
from prunus.study.measure import steps_in

CELL = Cell("hf:none", 1.0, "none", "magnitude", "unstructured", 0.5, seed=0)


class Next(nn.Module):
    """Says the next token to be this one plus `step`, but for even tokens plus `even`."""

    def __init__(self, step: int, even: int) -> None:
        super().__init__()
        self.step, self.even = step, even

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        said = (input_ids + torch.where(input_ids % 2 == 0, self.even, self.step)) % 10
        return SimpleNamespace(logits=nn.functional.one_hot(said, 10).float(), loss=None)


def test_next_tokens_are_counted_by_position() -> None:
    cell = dataclasses.replace(CELL, settings=Settings(metric="perplexity", held_out=2))
    texts = [{"input_ids": torch.tensor([1, 2, 3, 4]), "labels": torch.tensor([1, 2, 3, 4])}] * 5
    found = same_answers(cell, Next(1, 1), Next(1, 3), texts)
    assert found == {"agreement": 0.5, "answers": 8}, "even tokens changed, in two texts of four"


def test_nearest_texts_agree_with_a_search_one_by_one() -> None:
    class Encoder(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids)

    torch.manual_seed(0)
    dense, pruned = Encoder(16, 4), Encoder(16, 4)
    texts = [{"input_ids": torch.tensor([one, (3 * one) % 16])} for one in range(12)]
    vectors = [dense(text["input_ids"]).mean(0) for text in texts]
    for place, found in enumerate(nearest(dense, texts).tolist()):
        others = [other for other in range(12) if other != place]
        assert found == max(others, key=lambda o: float(torch.cosine_similarity(vectors[place], vectors[o], dim=0)))
    cell = dataclasses.replace(CELL, settings=Settings(metric="spearman", held_out=12))
    pairs = [(text, text, 1.0) for text in texts]
    assert same_answers(cell, dense, dense, pairs) == {"agreement": 1.0, "answers": 12}
    share = (nearest(dense, texts) == nearest(pruned, texts)).double().mean()
    assert same_answers(cell, dense, pruned, pairs)["agreement"] == pytest.approx(float(share))


def test_labels_are_asked_from_the_whole_of_a_sorted_test_set() -> None:
    """The first half of the samples keep their label and the others lose it: half of the answers stay."""
    inputs = torch.cat([torch.tensor([[1.0, 0.0]]).repeat(200, 1), torch.tensor([[0.0, 1.0]]).repeat(200, 1)])
    dense, pruned = nn.Linear(2, 2, bias=False).eval(), nn.Linear(2, 2, bias=False).eval()
    with torch.no_grad():
        dense.weight.copy_(torch.eye(2))
        pruned.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    cell = dataclasses.replace(CELL, settings=Settings(held_out=200))
    found = same_answers(cell, dense, pruned, TensorDataset(inputs, inputs.argmax(1)))
    assert 0.35 < found["agreement"] < 0.65
    assert found["answers"] == 200
    more = dataclasses.replace(CELL, settings=Settings(held_out=500))
    few = TensorDataset(inputs[190:210], inputs[190:210].argmax(1))
    assert same_answers(more, dense, pruned, few)["answers"] == 20, "all there are"
    assert found == same_answers(cell, dense, pruned, TensorDataset(inputs, inputs.argmax(1))), "the same ones again"


def test_other_metrics_have_no_such_answers() -> None:
    cell = dataclasses.replace(CELL, settings=Settings(metric="support.studies:error_rate", held_out=4))
    assert same_answers(cell, Next(1, 1), Next(1, 1), []) == {}


def test_a_radius_in_steps_of_a_pixel() -> None:
    """A pixel of 255 steps; all colours of it together, the one with the widest range in each."""
    grey, colour = torch.zeros(2, 1, 4, 4), torch.zeros(2, 3, 4, 4)
    grey[0, 0, 0, 0], colour[0, :, 0, 0] = 2.0, torch.tensor([1.0, 2.0, 0.5])
    for images, steps in ((grey, 12.75), (colour, 12.75 / 3**0.5)):
        found = steps_in(torch.utils.data.TensorDataset(images, torch.zeros(2)), 0.1)
        assert found == {"labels_steps": pytest.approx(steps), "labels_step_of": "pixel"}
    assert steps_in(torch.utils.data.TensorDataset(torch.ones(2, 4), torch.zeros(2)), 0.1) == {}
