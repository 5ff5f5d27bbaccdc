"""What a loss, an accuracy and a teacher's share mean for one output, several labels, tokens and images."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from prunus.adapters import IGNORED, as_batch
from prunus.errors import BadInput
from prunus.study.measure import train_base
from prunus.training import DistilOptions, FitConfig, distil, evaluate, fit, gradual, metrics, perplexity
from prunus.training.objective import Objective
from support.foreign import small
from support.studies import tiny


class Given(nn.Module):
    """Gives the same outputs whatever comes in."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs.clone())

    def forward(self, inputs: Tensor | None = None, **_: Any) -> Tensor:
        return self.outputs


def share(student: Tensor, teacher: Tensor, labels: Tensor, inputs: Any = None, **options: Any) -> float:
    """The teacher's part of the loss."""
    config = FitConfig(distill_from=Given(teacher), distill_weight=1.0, **options)
    whole, _, _ = Objective(Given(student), config)(torch.zeros(1) if inputs is None else inputs, labels)
    return float(whole.detach())


def softened(student: Tensor, teacher: Tensor, heat: float = 4.0) -> Tensor:
    """T^2 KL of scores, classes last, for every place."""
    one, other = (F.log_softmax(t / heat, -1) for t in (student, teacher))
    return heat * heat * (other.exp() * (other - one)).sum(-1)


def test_a_teachers_share_of_class_scores_is_what_it_was() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(6, 5), torch.randn(6, 5)
    soft, wish = F.log_softmax(student / 4.0, dim=-1), F.log_softmax(teacher / 4.0, dim=-1)
    before = 16.0 * F.kl_div(soft, wish, reduction="batchmean", log_target=True)
    assert share(student, teacher, torch.arange(6) % 5) == float(before)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 1, 0]), torch.tensor([0.5, 1.5, -1.0, 2.0])])
def test_students_of_one_output_obey_their_teacher(labels: Tensor) -> None:
    data = TensorDataset(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), labels)
    start, up = nn.Linear(3, 1), Given(torch.full((4, 1), 3.0))
    means = []
    for teacher in (up, Given(-up.outputs.detach())):
        student = copy.deepcopy(start)
        fit(student, data, "20ep", FitConfig(distill_from=teacher, distill_weight=0.9, batch_size=4))
        means.append(float(student(data.tensors[0]).detach().mean()))
    assert means[0] > means[1] + 0.5


def test_one_score_counts_as_the_second_of_two_classes() -> None:
    one, other, labels = torch.tensor([[0.3], [-2.0]]), torch.tensor([[1.0], [0.5]]), torch.tensor([1, 0])
    both = [torch.cat([torch.zeros(2, 1), t], 1) for t in (one, other)]
    assert share(one, other, labels) == pytest.approx(share(both[0], both[1], labels))
    pair, wish = torch.tensor([[0.3, -2.0]]), torch.tensor([[1.0, 0.5]])
    several = share(pair, wish, torch.tensor([[1, 0]]), loss="binary")
    assert several == pytest.approx(share(one, other, labels))


def test_real_numbers_are_matched_by_relative_squares() -> None:
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    expected = (student - teacher).square().mean() / teacher.square().mean()
    assert share(student, teacher, torch.randn(5, 3)) == pytest.approx(float(expected))


def test_a_teachers_share_of_tokens_does_not_grow_with_their_number() -> None:
    student, teacher = torch.randn(2, 1, 5), torch.randn(2, 1, 5)
    shares = []
    for places in (1, 8, 64):
        labels = torch.zeros(2, places, dtype=torch.long)
        shares.append(share(student.repeat(1, places, 1), teacher.repeat(1, places, 1), labels))
    assert shares == pytest.approx([float(softened(student, teacher).mean())] * 3)


@pytest.mark.parametrize("by", ["labels", "mask"])
def test_padded_places_have_no_share(by: str) -> None:
    student, teacher = torch.randn(2, 4, 5), torch.randn(2, 4, 5)
    real = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    inputs = as_batch({"input_ids": torch.ones(2, 4, dtype=torch.long), "attention_mask": real})
    labels = torch.where(real.bool(), 0, IGNORED) if by == "labels" else torch.zeros(2, dtype=torch.long)
    given = torch.zeros(1) if by == "labels" else inputs
    found = share(student, teacher, labels, given, loss=lambda outputs, labels: outputs.mean())
    assert found == pytest.approx(float(softened(student, teacher)[real.bool()].mean()), rel=1e-5)


@pytest.mark.parametrize("side", [(3, 4), (4,)])
def test_classes_of_maps_come_before_their_places(side: tuple[int, ...]) -> None:
    student, teacher = torch.randn(2, 5, *side), torch.randn(2, 5, *side)
    labels = torch.zeros(2, *side, dtype=torch.long)
    labels[0, 0] = IGNORED
    every = softened(student.movedim(1, -1), teacher.movedim(1, -1))
    assert share(student, teacher, labels) == pytest.approx(float(every[labels != IGNORED].mean()), rel=1e-5)


def test_a_teacher_with_other_outputs_is_refused() -> None:
    with pytest.raises(BadInput, match="outputs like the model's"):
        share(torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))


def test_several_labels_for_a_sample_are_counted_each() -> None:
    outputs = torch.tensor([[1.0, -1.0, 2.0], [-1.0, -1.0, 3.0]])
    labels = torch.tensor([[1, 0, 0], [1, 0, 1]])
    data = TensorDataset(torch.zeros(2, 1), labels)
    assert evaluate(Given(outputs), data, loss="binary")[1] == pytest.approx(4 / 6)
    history = fit(nn.Linear(1, 3), data, "1ep", FitConfig(loss="binary", lr=0.0))
    assert history[-1].accuracy in [count / 6 for count in range(7)]


def texts(*lengths: int) -> list[dict[str, Tensor]]:
    rows = [torch.arange(5, 5 + length) for length in lengths]
    return [{"input_ids": ids, "labels": ids.clone()} for ids in rows]


def test_tokens_are_not_compared_with_themselves() -> None:
    model, data = small("llama"), texts(6, 4)
    assert evaluate(model, data)[1] is None
    data[0]["labels"][:3] = IGNORED  # as of a question, of which nothing is learnt
    assert evaluate(model, data)[1] is None
    assert metrics.fitting(data) == "perplexity"
    (record,) = fit(model, data, "1ep", FitConfig(optimizer="adamw"), test=data)
    assert record.accuracy is None
    assert record.test_accuracy is None
    other = [{**row, "labels": row["labels"] % 2} for row in texts(6, 4)]
    assert evaluate(model, other)[1] is not None


def test_a_study_of_texts_asks_for_their_metric_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunus.study.measure.load", lambda cell, part: texts(6, 4))
    monkeypatch.setattr("prunus.training.fit", lambda *given, **named: pytest.fail("it trained"))
    with pytest.raises(BadInput, match="--metric perplexity"):
        train_base(tiny()[0])


def test_texts_of_one_token_do_not_change_a_perplexity() -> None:
    model = small("llama")
    expected = perplexity(model, texts(6, 4))
    assert 1 < expected < 1000
    assert perplexity(model, texts(1, 6, 1, 4), batch_size=2) == pytest.approx(expected)
    assert perplexity(model, texts(1, 6, 4), batch_size=1) == pytest.approx(perplexity(model, texts(6, 4), 1))
    columns = {"input_ids": torch.ones(3, 1, dtype=torch.long), "labels": torch.ones(3, 1, dtype=torch.long)}
    for empty in (texts(1, 1), columns):
        with pytest.raises(BadInput, match="No text has a token to predict"):
            perplexity(model, empty)


def test_training_on_texts_of_one_token_says_what_is_wrong() -> None:
    with pytest.raises(BadInput, match="texts of one token only"):
        fit(small("llama"), texts(1, 1), "1ep", FitConfig(batch_size=2))


def test_masks_that_grow_need_a_step() -> None:
    data = TensorDataset(torch.randn(4, 8), torch.arange(4))
    with pytest.raises(BadInput, match="has no step"):
        gradual.prune_gradually(nn.Linear(8, 4), data, 0.5, length="0ep")


@pytest.mark.parametrize(
    "given", [{"distill_weight": "a"}, {"distill_weight": math.nan}, {"every": 1}, {"batch_size": True}]
)
def test_settings_of_a_wrong_kind_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"^{next(iter(given))}"):
        FitConfig(**given)


def test_distil_and_fit_mean_the_same_by_softened_scores() -> None:
    torch.manual_seed(0)
    data, teacher, student = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), nn.Linear(4, 3), nn.Linear(4, 3)
    student.load_state_dict({name: value + 0.3 for name, value in teacher.state_dict().items()})
    student.weight.data[0] += 1.0
    config = FitConfig(optimizer="adamw", lr=0.0, weight_decay=0.0, batch_size=8)
    options = DistilOptions(hidden=0.0)
    one = distil(copy.deepcopy(student), teacher, data, "1ep", config=config, options=options)[-1].loss
    points = data.tensors[0]
    answers, wanted = student(points).detach(), teacher(points).detach()
    soft = share(answers, wanted, data.tensors[1])
    squares = (answers - wanted).square().mean() / wanted.square().mean()
    assert one == pytest.approx(soft + float(squares), rel=1e-5)
