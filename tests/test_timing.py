"""The interleaved timer, driven by a clock of our own."""

from __future__ import annotations

import time

import pytest

from prunus import timing


class Clock:
    """Stands still but for what the candidates add to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.log.append(name)


def test_candidates_run_in_turn_and_short_ones_often_enough() -> None:
    clock = Clock()
    runs = {"slow": lambda: clock.run("slow", 1.0), "quick": lambda: clock.run("quick", 0.25)}
    samples = timing.interleave(runs, 3, least=1.0, clock=clock)
    assert samples == {"slow": [1.0] * 3, "quick": [0.25] * 3}
    assert clock.log == ["slow"] * 2 + ["quick"] * 2 + (["slow"] + ["quick"] * 4) * 3


def test_a_slow_second_call_does_not_decide_how_often_one_is_called() -> None:
    clock = Clock()
    runs = {"packs": lambda: clock.run("packs", 0.05 if clock.log.count("packs") == 1 else 0.001)}
    samples = timing.interleave(runs, 2, least=0.01, clock=clock)
    assert samples["packs"] == pytest.approx([0.001, 0.001])
    assert len(clock.log) == 4 + 2 * 10


def test_what_runs_before_a_sample_is_not_counted() -> None:
    clock = Clock()
    runs = {"one": lambda: clock.run("one", 0.1)}
    samples = timing.interleave(runs, 2, least=9.0, clock=clock, before=lambda: clock.run("before", 5.0))
    assert samples["one"] == pytest.approx([0.1, 0.1])
    assert clock.log == ["one", "one", "before", "one", "before", "one"]


def test_ratios_are_taken_within_rounds() -> None:
    samples = {"ours": [1.0, 10.0, 2.0], "other": [3.0, 30.0, 2.0]}  # a busy second round hits both
    assert timing.ratios(samples, "ours") == {"ours": 1.0, "other": 3.0}
    assert timing.spread([1.0, 1.0, 1.0, 1.0]) == 0.0
    assert timing.spread([1.0, 2.0]) == 0.0


def test_one_thread_is_timed_by_the_work_of_the_process() -> None:
    assert timing.clock_for(1) is time.process_time
    assert timing.clock_for(2) is time.perf_counter
