from __future__ import annotations

import math

import pytest

from prunus.errors import BadInput
from prunus.training import FitConfig, Schedule


def test_cosine_per_epoch_is_the_ledgers_formula() -> None:
    for step in range(50):
        epoch = step // 5
        expected = 0.5 * 0.3 * (1 + math.cos(math.pi * epoch / 10))
        assert Schedule("cosine", by="epoch").rate(0.3, step, 50, 5) == pytest.approx(expected, rel=1e-15)


def test_cosine_per_iteration_where_the_length_is_in_iterations() -> None:
    rates = [Schedule("cosine", by="epoch").rate(1.0, step, 50, 5, in_epochs=False) for step in range(50)]
    assert len(set(rates)) == 50
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0


def test_the_imagenet_schedule_of_the_paper() -> None:
    """I-5: five warm-up epochs 0.1 i/5, 95 cosine, 5 at 1e-5."""
    schedule = Schedule("cosine", warmup="5ep", cooldown="5ep", cooldown_lr=1e-5, by="epoch")
    rates = [schedule.rate(0.1, epoch * 10, 1050, 10) for epoch in range(105)]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert rates[5] == pytest.approx(0.1)
    assert rates[100:] == [1e-5] * 5
    assert rates[99] == pytest.approx(0.05 * (1 + math.cos(math.pi * 94 / 95)))


def test_a_warm_up_before_a_cosine_by_epoch_step_by_step() -> None:
    def rates(warmup: str, total: int = 20, in_epochs: bool = True) -> list[float]:
        schedule = Schedule("cosine", warmup=warmup, by="epoch")
        return [schedule.rate(1.0, step, total, 4, in_epochs) for step in range(total)]

    def fall(epochs: int) -> list[float]:
        return [0.5 * (1 + math.cos(math.pi * epoch / epochs)) for epoch in range(epochs) for _ in range(4)]

    one = [0.25, 0.5, 0.75, 1.0]  # a single epoch rises at every step: by epoch it would have the full rate at once
    assert rates("1ep") == pytest.approx(one + fall(4))
    assert rates("2ep") == pytest.approx([0.5] * 4 + [1.0] * 4 + fall(3))
    assert rates("4it") == pytest.approx(one + fall(4))
    # The warm-up ends inside an epoch: the rest of it has the full rate, and the cosine falls with the next epoch.
    assert rates("0.5ep") == rates("2it") == pytest.approx([0.5, 1.0] + fall(5)[2:])
    assert rates("1.5ep") == pytest.approx([i / 6 for i in range(1, 7)] + fall(4)[2:])
    steps = [0.5 * (1 + math.cos(math.pi * step / 16)) for step in range(16)]
    assert rates("1ep", in_epochs=False) == pytest.approx(one + steps)  # a length in steps
    assert rates("0ep") == pytest.approx(fall(5))


def test_steps_fall_at_the_milestones() -> None:
    schedule = Schedule("step", milestones=("80ep", "120ep"))
    assert [schedule.rate(0.1, epoch * 7, 160 * 7, 7) for epoch in (0, 79, 80, 119, 120, 159)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    assert Schedule("constant").rate(0.1, 10**6, 10**7, 7) == 0.1


def test_short_names_and_default_rates() -> None:
    assert FitConfig(schedule="warmup").plan(400).warmup == "20it"
    rates = [FitConfig(schedule="warmup").plan(400).rate(1.0, step, 400, per_epoch=40) for step in range(20)]
    assert rates == pytest.approx([(step + 1) / 20 for step in range(20)])  # also where the length is in epochs
    assert FitConfig().lr == 0.1
    assert FitConfig(optimizer="adamw").lr == 1e-3
    assert FitConfig().replace(lr=0.5).lr == 0.5


@pytest.mark.parametrize("every", ["10min", "0.5min", "1ep", "500it"])
def test_intervals(every: str) -> None:
    assert FitConfig(every=every).every == every


@pytest.mark.parametrize("every", ["0min", "xmin", "-1min", "soon", "3"])
def test_wrong_intervals(every: str) -> None:
    with pytest.raises(BadInput):
        FitConfig(every=every)


def test_the_record_is_json_and_leaves_out_what_does_not_decide() -> None:
    import json

    record = FitConfig(folder="somewhere", loss=lambda outputs, labels: outputs.sum()).record()
    assert "folder" not in record
    assert "resume" not in record
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    "wrong",
    [{"clip": -1.0}, {"clip": float("nan")}, {"temperature": float("nan")}, {"every": "0it"}, {"batch_size": 2.5}]
    + [{"lr": "a"}, {"momentum": None}],
)
def test_settings_out_of_range_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        FitConfig(**wrong)


def test_a_schedule_does_not_turn_round() -> None:
    with pytest.raises(BadInput, match="factor"):
        Schedule("step", factor=-1.0)
