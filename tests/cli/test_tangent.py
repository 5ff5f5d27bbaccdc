from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.cli import run

SMALL = ["--inputs", "24", "--tests", "40", "--networks", "1"]


def test_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "kernels.svg"
    arguments = ["tangent", "fc:64-32-32-10", *SMALL, "--densities", "1", "--densities", "0.5", "--plot", str(plot)]
    assert run([*arguments, "--widths", "1", "--widths", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    names = [(row["network"], row["density"]) for row in record["rows"]]
    assert names == [("limit", None), ("width 1", 1), ("width 1", 0.5), ("width 4", 1), ("width 4", 0.5)]
    narrow, wide = record["rows"][1], record["rows"][3]
    assert wide["distance"] < narrow["distance"]
    assert plot.read_text().startswith("<svg")
    assert run(arguments) == 0
    text = capsys.readouterr().out
    for word in ("condition", "accuracy", "limit", "width 1", "wrote"):
        assert word in text


def test_how_wide(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tangent", "fc:64-16-1", *SMALL, "--densities", "0.5", "--sigma", "0.5", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["widths"]
    assert plan["width"] >= 50
    assert len(plan["pilots"]) == 2
    assert "not a theorem" in plan["statement"]


def test_other_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tangent", "fc:64-32-10", *SMALL, "--densities", "0.5", "--score", "snip"]) == 0
    assert "no theorem" in capsys.readouterr().out


def test_a_network_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from torch import nn\nnet = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))\n"
    (tmp_path / "own_network.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["tangent", "own_network:net", *SMALL, "--densities", "1", "--densities", "0.5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["network"] for row in rows] == ["as it is", "as it is"]
    assert rows[0]["distance"] is None
    assert rows[0]["largest"] > rows[1]["largest"]  # not rescaled: pruned weights are all that changes
    assert run(["tangent", "own_network:net", *SMALL, "--widths", "2"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fc:64-8-10", "--densities", "0"], "density"),
        (["fc:64-8-10", "--densities", "1.5"], "density"),
        (["fc:64-8-10", "--score", "size"], "magnitude"),
        (["fc:64-8-10", "--networks", "0"], "networks"),
        (["fc:64-8-10", "--plot", "kernels.png"], "svg"),
        (["fc:64-8-10", "--sigma", "-1"], "sigma"),
        (["fc:7-8-10"], "shape"),
        (["nothing"], "resnet20"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tangent", *arguments, *(SMALL if "--networks" not in arguments else SMALL[:4])]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
