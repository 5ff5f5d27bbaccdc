"""The study of private training: bytes, budgets, and a store that goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tools import private_study
from tools.private_study import Scale, Store, Study

from prunus.errors import BadInput
from prunus.papers.noisy_topk.tuned import Setting, bytes_sent, train_once

pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
pytest.importorskip("opacus", reason="needs the extra 'dp'")


def test_bytes_sent() -> None:
    d, base = 1000, Setting("dense", images=2560, epochs=1, k=0.1)  # ten steps
    assert bytes_sent(base, d) == 10 * 4000
    assert bytes_sent(replace(base, method="random"), d) == 10 * (400 + 8)
    assert bytes_sent(replace(base, method="warm-up", warm=0.2), d) == 2 * 4000 + 8 * 400
    # 100 indices of 10 bits are 125 bytes, as is a bit for each of 1,000 coordinates
    assert bytes_sent(replace(base, method="noisy-top-k"), d) == 10 * (400 + 125)
    assert bytes_sent(replace(base, method="two-level", k=0.01), d) == 10 * (40 + 13)


@pytest.mark.data
@pytest.mark.parametrize("method", ["dense", "warm-up", "noisy-top-k"])
def test_a_run_keeps_its_budget(method: str) -> None:
    torch.set_num_threads(1)
    found = train_once(Setting(method, images=1024, epochs=1, epsilon=8.0, model="fc:784-8-10"))
    assert 6.0 < found["epsilon spent"] <= 8.0
    assert found["steps"] == 4
    assert 0.0 <= found["test"] <= 1.0


def _pretend(setting: Setting) -> dict[str, float]:
    """Accuracy that has its best at rate 0.18, so that tuning has something to find."""
    good = 0.9 - abs(setting.rate - 0.18) - (0.05 if setting.clip != 0.1 else 0.0)
    rest = {"epsilon spent": setting.epsilon, "noise multiplier": 1.0, "megabytes": 1.0, "steps": 1, "d": 10}
    return {"validation": good, "test": good - 0.01 * setting.seed, **rest}


def test_a_study_goes_on_where_it_stopped(tmp_path) -> None:
    scale = Scale(seeds=2)
    done: list[Setting] = []
    for _ in range(200):
        study = Study(Store(tmp_path / "runs.jsonl"), scale)  # as after a kill: everything from the file
        setting = next(study.missing(), None)
        if setting is None:
            break
        done.append(setting)
        study.store.add(setting, _pretend(setting))
    assert len(done) == len(set(done)), "no run is made twice"
    trials = [setting for setting in done if setting.seed == 100]
    assert sorted(s.rate for s in trials if s.method == "dense") == [0.06, 0.18, 0.54]
    assert {s.rate for s in done if s.seed != 100} == {0.18}
    rows = Study(Store(tmp_path / "runs.jsonl"), scale).rows("mnist")
    assert {row["seeds"] for row in rows} == {2}
    assert {row["method"] for row in rows} >= {"dense", "random", "warm-up, TP-TopK", "noisy-top-k", "two-level"}
    private_study.write_evidence(Study(Store(tmp_path / "runs.jsonl"), scale), tmp_path)
    text = (tmp_path / "private-tanh-mnist.md").read_text()
    assert "reduced" in text
    assert "99.12" in text


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path) -> None:
    store = Store(tmp_path / "runs.jsonl")
    store.add(Setting("dense"), {"validation": 0.5})
    with store.path.open("a") as file:
        file.write('{"setting": {"meth')
    again = Store(store.path)
    assert again.find(Setting("dense")) is not None
    assert len(again.runs) == 1


@pytest.mark.parametrize("change", [{"method": "best"}, {"k": 0.0}, {"epochs": 0}, {"warm": 1.0}, {"images": 10}])
def test_bad_input(change) -> None:
    with pytest.raises(BadInput):
        Setting(**({"method": "dense"} | change))
