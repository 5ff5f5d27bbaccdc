from __future__ import annotations

import json
from pathlib import Path

import pytest

import prunus
from prunus.cli import run
from prunus.training import Ticket, evaluate

SMALL = ["fc:64-32-10", "--data", "digits", "--length", "3ep"]


def command(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


@pytest.mark.parametrize("method", ["edge-popup", "iterand", "gem-miner", "multicoated"])
def test_a_ticket_is_found_and_kept(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", method, "--period", 7, "--rate", 0.2, "--sparsity", 0.6, "-o", tmp_path / "run", "--json"]
    assert command("ticket", *SMALL, *options) == 0
    told = json.loads(capsys.readouterr().out)
    ticket = Ticket.load(tmp_path / "run" / "ticket.safetensors", prunus.models.make("fc:64-32-10"))
    assert ticket.method == method
    assert ticket.masks.sparsity == pytest.approx(0.6, abs=1e-3)
    found = evaluate(ticket.model, prunus.data.load("digits", split="test"))[1]
    assert found == told["final"]["test_accuracy"]
    assert told["events"] == {"iterand": 63 // 7, "gem-miner": 62 // 7}.get(method, 0)
    assert (told["ticket_bytes"] < 9000) == (method != "iterand")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["settings"]["config"]["lr"] == 0.3


def test_presets_give_the_papers_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ticket", "--presets", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["conv6-iterand"]["lr"] == 0.2
    assert rows["imdb-lstm-iterand"]["lr"] == 2.5
    assert rows["imagenet-resnet50-iterand"]["status"] == "not run here"
    assert command("ticket", "--preset", "digits-iterand", "--length", "1ep", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["period"], told["rate"], told["config"]["lr"]) == (7, 0.1, 0.3)
    assert command("ticket", "--preset", "digits-sgd") == 2
    assert "prunus train" in capsys.readouterr().err


def test_people_see_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ticket", *SMALL, "--ramp", "cubic", "--ranking", "absolute", "--allocation", "global") == 0
    assert "sparsity 0.500" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [
    ["--method", "magic"], ["--period", "0"], ["--rate", "2"], ["--sparsity", "0.99999"], ["--ranking", "up"],
])  # fmt: skip
def test_bad_input_is_status_two(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ticket", *SMALL, *wrong) == 2
    assert capsys.readouterr().err.startswith("prunus: ")
    assert command("ticket") == 2


def test_a_warm_up_stands_before_the_cosine_by_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ticket", *SMALL, "--warmup", "1ep", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    schedule = told["config"]["schedule"]
    assert (schedule["shape"], schedule["by"], schedule["warmup"]) == ("cosine", "epoch", "1ep")
    assert told["final"]["lr"] == pytest.approx(0.15)  # one epoch of warm-up, then the second of two of the cosine
