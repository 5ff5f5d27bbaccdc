"""The study of private training: bytes, budgets, and a store that goes on where it stopped."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

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


def test_the_guides_tables_are_the_evidence() -> None:
    """Every row of both tables, to the digits shown."""
    folder = Path(__file__).resolve().parents[3] / "docs"
    rows = json.loads((folder / "evidence" / "private-tanh-mnist.json").read_text("utf8"))["rows"]
    known = {
        (row["method"].split(",")[0], row["epsilon"], row["k"], row["index share"]): row
        for row in rows
        if "seeds" in row
    }
    text = (folder / "guide" / "private.md").read_text("utf8").partition("### Tuned")[2].partition("## Data")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    found, method = 0, ""
    for first, second, *rest in (row for row in cells if row[0] not in ("megabytes sent", "method")):
        by_bytes = first[0].isdigit()
        words = second if by_bytes else first
        method = method if words == "the same" else next(m for m in MEANT if words.startswith(m))
        share = {"1 %": 0.01, "10 %": 0.1, "50 %": 0.5}[words.split(", ")[1][:4].strip()] if MEANT[method][1] else 0.0
        k = 1.0 if method == "dense" else float(rest[0]) if by_bytes else 0.1
        tests = {3.0: rest[1]} if by_bytes else dict(zip((1.0, 3.0, 8.0), rest))
        for epsilon, test in tests.items():
            row = known[MEANT[method][0], epsilon, k, share]
            assert test == f"{row['test']:.1f} %", (words, epsilon, row["test"])
            assert float(first if by_bytes else second) == pytest.approx(row["megabytes sent"], abs=0.051)
            found += 1
    assert found == 13 + 4 * 3
    other = json.loads((folder / "evidence" / "private-tanh-fashion-mnist.json").read_text("utf8"))["rows"]
    score = {
        row["method"]: row["test"] for row in other if (row["epsilon"], row["index share"]) in ((3, 0.0), (3, 0.01))
    }
    said = [f"{words} {score[name]:.1f} %" for words, (name, _) in MEANT.items() if name in score]
    assert len(said) == 3
    assert all(words in text for words in said), said


MEANT = {
    "random mask": ("random", False),
    "noisy top-k": ("noisy-top-k", True),
    "two-level rule": ("two-level", True),
    "warm-up": ("warm-up", False),
    "dense": ("dense", False),
}
"""The guide's words for a method: its name in the evidence, and whether it spends privacy on indices."""
