"""The study of private training: bytes, budgets, and a store that goes on where it stopped."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tools import private_study
from tools.private_study import TUNED, Scale, Store, Study

from prunus.errors import BadInput
from prunus.models.convolutional import TanhCNN
from prunus.papers.noisy_topk import tuned
from prunus.papers.noisy_topk._tanh_gradients import per_example_gradients
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
    # where many are kept, a bit for each coordinate is shorter than a list
    assert bytes_sent(replace(base, method="noisy-top-k", k=0.3), d) == 10 * (1200 + 125)


@pytest.mark.data
@pytest.mark.parametrize("method", ["dense", "warm-up", "noisy-top-k"])
def test_a_run_keeps_its_budget(method: str) -> None:
    torch.set_num_threads(1)
    found = train_once(Setting(method, images=1024, epochs=1, epsilon=8.0, model="fc:784-8-10"))
    assert 6.0 < found["epsilon spent"] <= 8.0
    assert found["steps"] == 4
    assert 0.0 <= found["test"] <= 1.0


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_written_out_gradients_are_those_of_automatic_differentiation(width: float) -> None:
    torch.manual_seed(0)
    model = TanhCNN(width)
    inputs, labels = torch.randn(6, 1, 28, 28).relu(), torch.randint(10, (6,))
    inputs[:, :, :6] = 0.0  # flat areas: every window of a pool ties there, and the first place gets the gradient
    found = per_example_gradients(model, inputs, labels)
    for example in range(6):
        model.zero_grad()
        one = slice(example, example + 1)
        torch.nn.functional.cross_entropy(model(inputs[one]), labels[one]).backward()
        for parameter, gradients in zip(model.parameters(), found, strict=True):
            torch.testing.assert_close(gradients[example], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.data
def test_a_run_of_the_usual_network_is_the_same_with_hooks(monkeypatch) -> None:
    torch.set_num_threads(1)
    setting = Setting("random", images=512, epochs=1, epsilon=8.0)
    fast = train_once(setting)
    monkeypatch.setattr(tuned, "TanhCNN", type(None))
    slow = train_once(setting)
    assert abs(fast.pop("validation") - slow.pop("validation")) < 0.002
    assert abs(fast.pop("test") - slow.pop("test")) < 0.002
    assert fast == slow


def _pretend(setting: Setting) -> dict[str, float]:
    """Accuracy with a best rate: 0.54 for random masks, 0.18 else; a third at epsilon 1, three times that at k 0.03."""
    best = (0.54 if setting.method == "random" else 0.18) / (3.0 if setting.epsilon == 1.0 else 1.0)
    best *= 3.0 if setting.k == 0.03 else 1.0
    good = 0.9 - 0.1 * abs(math.log(setting.rate / best)) - (0.05 if setting.clip != 0.1 else 0.0)
    rest = {"epsilon spent": setting.epsilon, "noise multiplier": 1.0, "megabytes": 1.0, "steps": 1, "d": 10}
    return {"validation": good, "test": good - 0.01 * setting.seed, **rest}


def test_a_study_goes_on_where_it_stopped(tmp_path) -> None:
    scale = Scale(data=("mnist",), seeds=2)
    done: list[Setting] = []
    for _ in range(400):
        study = Study(Store(tmp_path / "runs.jsonl"), scale)  # as after a kill: everything from the file
        setting = next(study.missing(), None)
        if setting is None:
            break
        done.append(setting)
        study.store.add(setting, _pretend(setting))
    assert len(done) == len(set(done)), "no run is made twice"
    trials = [setting for setting in done if setting.seed == 100 and setting.epsilon == 3.0 and setting.k == 0.1]
    assert sorted(s.rate for s in trials if s.method == "dense" and s.clip == 0.1) == [0.06, 0.18, 0.54]
    assert sorted(s.rate for s in trials if s.method == "random" and s.clip == 0.1) == [0.06, 0.18, 0.54, 1.62]
    assert [s.rate for s in trials if s.method == "random" and s.clip == 1.0] == [0.54]
    finals = {(s.method, s.epsilon, s.k): s.rate for s in done if s.seed < 100 and s.index_share == 0.01}
    assert finals["random", 3.0, 0.1] == 0.54
    assert finals["random", 1.0, 0.1] == 0.18
    assert finals["dense", 8.0, 0.1] == 0.18
    assert finals["random", 3.0, 0.03] == 1.62
    assert finals["random", 1.0, 0.03] == 0.54
    assert finals["two-level", 3.0, 0.1] == 0.18
    rows = Study(Store(tmp_path / "runs.jsonl"), scale).rows("mnist")
    assert {row["seeds"] for row in rows} == {2}
    assert len(rows) == len(TUNED) * 3 + 3 * 2 * 3 + 3
    assert {row["method"] for row in rows} >= {"dense", "random", "warm-up, TP-TopK", "noisy-top-k", "two-level"}
    private_study.write_evidence(Study(Store(tmp_path / "runs.jsonl"), scale), tmp_path)
    text = (tmp_path / "private-tanh-mnist.md").read_text()
    assert "reduced" in text
    assert "99.12" in text
    assert "the standard error of two seeds is 0.50 (33 degrees of freedom)" in text
    assert "from 1.4 points on" in text


def test_a_pooled_error_weighs_rows_by_their_seeds() -> None:
    rows = [
        {"seeds": 2, "standard error": 0.3},
        {"seeds": 5, "standard error": 0.2},
        {"seeds": 1, "standard error": ""},
    ]
    error, freedom = private_study.pooled_error(rows)
    assert freedom == 5
    assert error == pytest.approx(math.sqrt((1 * 0.3**2 * 2 + 4 * 0.2**2 * 5) / 5 / 2))
    assert private_study.pooled_error(rows[2:])[1] == 0


def test_rows_of_a_study_that_has_begun(tmp_path) -> None:
    """What is not tuned yet is not shown."""
    store = Store(tmp_path / "runs.jsonl")
    study = Study(store, Scale())
    assert study.rows("mnist") == []
    for setting in study.missing():
        store.add(setting, _pretend(setting))
        if setting.seed == 0:
            break
    assert [row["method"] for row in study.rows("mnist")] == ["dense"]
    assert study.rows("fashion-mnist") == []


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


@pytest.mark.parametrize("data", ["mnist", "fashion-mnist"])
def test_the_guides_tables_are_the_evidence(data: str) -> None:
    folder = Path(__file__).resolve().parents[3] / "docs"
    rows = json.loads((folder / "evidence" / f"private-tanh-{data}.json").read_text("utf8"))["rows"]
    text = (folder / "guide" / "private.md").read_text("utf8")
    shown = text.partition(f"<!-- private-tanh-{data} by bytes -->")[2].partition("<!-- end -->")[0]
    assert [line for line in shown.splitlines() if line] == private_study.guide_table(rows)


def test_a_guides_table_has_every_measured_row_once(tmp_path) -> None:
    def row(method: str, epsilon: float, test: float, **more: float) -> dict[str, Any]:
        return {"method": method, "epsilon": epsilon, "k": 0.1, "index share": 0.0, "test": test} | more

    sent = {"megabytes sent": 2.0}
    rows = [
        row("dense", 3.0, 90.04, **{"megabytes sent": 20.0, "k": 1.0}),
        row("noisy-top-k", 3.0, 89.0, **sent, **{"index share": 0.5}),
        row("random", 1.0, 80.0, **sent),
        row("random", 3.0, 88.96, **sent),
        {"method": "published", "epsilon": 3.0, "test": 98.0},
    ]
    table = [
        "| megabytes sent | method | k | epsilon 1 | epsilon 3 |",
        "|---|---|---|---|---|",
        "| 2.0 | noisy top-k, 50 % of epsilon on the indices | 0.1 |  | 89.0 % |",
        "| 2.0 | random mask | 0.1 | 80.0 % | 89.0 % |",
        "| 20.0 | dense | 1 |  | 90.0 % |",
    ]
    assert private_study.guide_table(rows) == table
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- private-tanh-mnist by bytes -->\nold\n<!-- end -->\nafter\n", "utf8")
    (tmp_path / "private-tanh-mnist.json").write_text(json.dumps({"rows": rows}), "utf8")
    private_study.fill_guide(page, tmp_path)
    lines = [line for line in page.read_text("utf8").splitlines() if line]
    assert lines == ["before", "<!-- private-tanh-mnist by bytes -->", *table, "<!-- end -->", "after"]
