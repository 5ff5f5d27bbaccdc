from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prunus.cli import run, theory
from prunus.errors import BadInput
from prunus.papers import verify
from prunus.papers.checking import Check
from prunus.theory import Case, claims


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run(["theory", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_lists_every_claim(capsys):
    status, out, _ = call(capsys)
    assert status == 0
    lines = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert set(claims) <= lines
    assert f"{len(claims)} claims" in out


def test_lists_one_paper(capsys):
    status, out, _ = call(capsys, "k", "--json")
    assert status == 0
    assert [row["id"] for row in json.loads(out)] == [name for name in claims if name.startswith("K-")]


def test_list_as_json(capsys):
    status, out, _ = call(capsys, "--json")
    assert status == 0
    rows = json.loads(out)
    assert [row["id"] for row in rows] == list(claims)
    assert set(rows[0]) == {"id", "title", "status", "source", "erratum", "paper", "name"}


def test_explains_one_claim_with_an_example_that_runs(capsys):
    status, out, _ = call(capsys, "K-2", "--json")
    assert status == 0
    record = json.loads(out)
    assert record["id"] == "K-2a"
    assert set(record["arguments"]) == {"angle", "depth", "norm_x", "norm_y"}
    assert record["example"].startswith("prunus theory K-2a angle=")
    status, out, _ = call(capsys, *record["example"].split()[2:], "--json")
    assert status == 0
    assert json.loads(out)["corrected"]["limit"] == pytest.approx(2.0)
    status, out, _ = call(capsys, "K-2a")
    assert status == 0
    for word in ("norm_x", "erratum:", "source:", "example: prunus theory K-2a", "printed"):
        assert word in out


def test_says_what_is_published_and_calls_only_errors_errata(capsys):
    _, out, _ = call(capsys, "P-17b")
    assert "published: (5): delta_0 >= 0" in out
    assert "erratum: " in out
    _, out, _ = call(capsys, "K-26l")
    assert "note: Not an error" in out
    assert "erratum:" not in out
    _, out, _ = call(capsys, "P-17b", "--json")
    assert json.loads(out)["published"] == claims["P-17b"].published != ""


def test_evaluates_printed_beside_corrected(capsys):
    status, out, _ = call(capsys, "I-9a", "error=0.5", "delta=0.01", "resamples=10")
    assert status == 0
    (row,) = [line for line in out.splitlines() if line.startswith("width")]
    assert row.split()[:3] == ["width", "14", "8"]
    assert "erratum:" in out
    assert "source: Chijiwa" in out


def test_evaluates_as_json(capsys):
    status, out, _ = call(capsys, "B-3", "n=4", "r=2", "--json")
    record = json.loads(out)
    assert status == 0
    assert record["arguments"] == {"n": 4, "r": 2}
    assert record["corrected"] == claims["B-3"](n=4, r=2)
    assert record["printed"] == claims["B-3"].printed(n=4, r=2)
    status, out, _ = call(capsys, "K-1a", "correlation=0.5", "--json")
    assert json.loads(out)["printed"] is None


def test_lists_and_nested_lists_are_arguments(capsys):
    status, out, _ = call(capsys, "I-12f", "widths=4,3,3", "error=0.5", "delta=0.1", "resamples=100")
    assert status == 0
    assert "[352, 156]" in out
    status, out, _ = call(capsys, "I-16a", "weights=[[1.0]]", "error=0.5", "resamples=19", "half=1", "--json")
    assert status == 0
    assert json.loads(out)["corrected"]["success"] == pytest.approx(0.7192137099)


def test_seed_reaches_the_claims_that_draw(capsys):
    words = ["I-16b", "weights=[[0.3]]", "error=0.5", "resamples=50", "half=4", "--json"]
    zero, one, explicit = (json.loads(call(capsys, *words, *more)[1]) for more in ([], ["--seed", "1"], ["seed=1"]))
    assert zero["arguments"]["seed"] == 0
    assert one["corrected"] == explicit["corrected"] != zero["corrected"]


def test_every_value_shape_is_parsed():
    shapes = {"4": 4, "0.5": 0.5, "1e3": 1000.0, "true": True, "False": False, "exact": "exact"}
    for text, value in shapes.items():
        assert theory.parse_value(text) == value
        assert type(theory.parse_value(text)) is type(value)
    assert theory.parse_value("1,2.5,x") == [1, 2.5, "x"]
    assert theory.parse_value("[[1, 2], [3, 4]]") == [[1, 2], [3, 4]]
    with pytest.raises(BadInput, match="not valid JSON"):
        theory.parse_value("[1, 2")


@pytest.mark.parametrize(
    "words, part",
    [
        (["Z-9"], "There is no claim named 'Z-9'; the nearest of the"),
        (["zonohedron"], "No claim mentions 'zonohedron'"),
        (["--check", "Z-9"], "There is no claim named 'Z-9'"),
        (["K-1a", "0.5"], "must have the form name=value"),
        (["K-1a", "correlation="], "must have the form name=value"),
        (["K-1a", "=3"], "must have the form name=value"),
        (["K-1a", "correlation=0.5", "correlation=0.6"], "given twice"),
        (["K-1a", "rho=0.5"], "it takes correlation"),
        (["K-4", "angle=1", "depth=2", "density=0"], "density must be a finite number in (0, 1]"),
        (["--vacuity", "--width", "256.5"], "--width takes whole numbers separated by commas"),
        (["--vacuity", "--layers", "three"], "--layers takes whole numbers separated by commas"),
        (["--vacuity", "--width", "true"], "--width takes whole numbers"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(capsys, words, part):
    status, out, err = call(capsys, *words)
    assert status == 2
    assert part in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_checks_some_claims(capsys):
    status, out, _ = call(capsys, "--check", "K-2a", "I-9a")
    assert status == 0
    assert "tangent.finite_networks_approach_the_limit (Monte Carlo, K-2a" in out
    assert "iterand.widths_by_search" in out
    assert "checks of 2 claims" in out
    assert "all hold." in out
    assert "tickets.sampled_neurons" not in out


def test_check_as_json(capsys):
    status, out, _ = call(capsys, "--check", "I-8c", "--json")
    record = json.loads(out)
    assert status == 0
    assert record["failed"] == 0
    assert record["passed"] == len(record["results"]) == len(claims["I-8c"].cases) + 1
    methods = {result["method"] for result in record["results"]}
    assert methods == {"reference value", "enumeration"}


def test_failures_are_printed_and_give_status_one(capsys, monkeypatch):
    wrong = Case(given={"error": 0.2}, expect={"bound": 0.3})
    claim = replace(claims["I-8c"], cases=(*claims["I-8c"].cases, wrong))

    def broken() -> str:
        raise AssertionError("two is not three")

    monkeypatch.setattr(verify, "select", lambda identifiers: [claim])
    monkeypatch.setattr(verify, "select_checks", lambda chosen: [Check("demo.broken", ("I-8c",), "property", broken)])
    status, out, _ = call(capsys, "--check")
    assert status == 1
    assert f"FAILED I-8c case {len(claim.cases) - 1} (I-8c): bound is 0.2, expected 0.3" in out
    assert "FAILED demo.broken (I-8c): two is not three" in out
    assert "2 failed." in out
    status, out, _ = call(capsys, "--check", "--json")
    assert status == 1
    assert json.loads(out)["failed"] == 2


def test_vacuity_calls_vacuous_vacuous(capsys):
    status, out, _ = call(capsys, "--vacuity", "--width", "256", "--layers", "3")
    assert status == 0
    assert "vacuous" in out
    status, out, _ = call(capsys, "--vacuity", "--width", "256,1024", "--layers", "3", "--json")
    rows = json.loads(out)
    assert status == 0
    assert {row["width"] for row in rows} == {256, 1024}
    assert {row["theorem"] for row in rows} == {"1", "1'", "2", "3"}


def test_installed_command_and_its_help():
    script = Path(sys.executable).with_name("prunus")
    command = [str(script)] if script.exists() else [sys.executable, "-c", "from prunus.cli import main; main()"]
    done = subprocess.run([*command, "theory", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for word in ("--check", "--vacuity", "--json", "--seed", "prunus theory B-3 n=4 r=2"):
        assert word in done.stdout
    done = subprocess.run([*command, "theory", "Z-9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("prunus: There is no claim named 'Z-9'")


@pytest.mark.parametrize("words", [["Theorem 3.5"], ["theorem", "3.5"], ["Yang", "Theorem 3.5"], ["k", "theorem 3.5"]])
def test_searches_by_theorem_paper_and_word(capsys, words):
    status, out, _ = call(capsys, *words, "--json")
    assert status == 0
    found = {row["id"] for row in json.loads(out)}
    assert {"K-5", "K-10a"} <= found
    assert all(name.startswith("K-") for name in found)


def test_letters_are_explained_and_titles_stand_alone(capsys):
    _, out, _ = call(capsys)
    assert "K  tangent kernels: Yang and Wang" in out
    _, out, _ = call(capsys, "B-3")
    assert out.splitlines()[0].endswith("in each bank")
    assert "status: wrong, the argument fails" in " ".join(out.split())
    assert "code: prunus.formulas.energy.bank_energy" in out


@pytest.mark.parametrize("words", [["n=4", "r=2", "law=laplace"], ["n=4", "r=4"]])
def test_the_corrected_value_comes_where_the_published_formula_has_none(capsys, words):
    status, out, _ = call(capsys, "B-3", *words, "--json")
    assert status == 0
    record = json.loads(out)
    assert record["corrected"]["energy"] > 0
    assert record["printed"] is None
    assert record["printed_fails"]
    status, out, _ = call(capsys, "B-3", *words)
    assert status == 0
    assert "The published formula has no value here" in out


def test_yes_and_no_are_truth_values(capsys):
    yes, no = (
        json.loads(call(capsys, "P-9e", "d=64", "exponent=0.5", f"replacement={word}", "--json")[1])
        for word in ("yes", "no")
    )
    assert yes["arguments"]["replacement"] is True
    assert no["arguments"]["replacement"] is False
    assert yes["corrected"] != no["corrected"]
