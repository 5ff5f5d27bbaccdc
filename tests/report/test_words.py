"""What the page says: which kernels a number is of, who is faster, and what things are called."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from prunus.report import render, svg, table
from prunus.report.facts import Panel, panels, plain_name
from prunus.report.words import as_fast, headline, meanings, remarks
from prunus.study import Store
from support.studies import tiny

COMMON: dict[str, Any] = {"notes": {}, "layers": [], "quality_dense": 0.9173, "chance": 0.1}


def study(folder: Path, records: list[dict[str, Any]], settings: dict[str, Any] | None = None) -> tuple[Panel, str]:
    """The only panel and the page of a study with these records."""
    cells = tiny(sparsity=tuple(0.5 + place / 100 for place in range(len(records))), settings=settings or {})
    with Store(folder, create=True) as store:
        for cell, record in zip(cells, records):
            store.add(cell, COMMON | record)
        (panel,) = panels(store.results(), store.bases())
        return panel, render(store)


def test_a_study_with_integers_says_which_kernels_a_number_is_of(tmp_path: Path) -> None:
    """The loss is that of the kernels whose speed is told, so that headline and table agree."""
    both = {"quality": 0.9, "quality_integers": 0.91, "quality_int8": 0.916, "faster_than_int8": 1.5, "speedup": 2.0}
    slow = {"quality": 0.9, "quality_integers": 0.85, "speedup": 3.0, "speedup_integers": 2.0}
    panel, text = study(tmp_path, [both | {"speedup_integers": 4.0}, slow])
    rows = table.rows(panel)
    assert [name for _, name, _ in table.columns(rows)][2:5] == ["in float32", "in integers", "lost"]
    assert [row["lost"][0] for row in rows] == ["0.7", "1.7"]
    assert "91.0 % accuracy in integers (91.7 % dense" in headline(panel).replace("\u00a0", " ")
    assert "loss, speed and size are of the faster ones" in text
    assert "accuracy in integers</dt>" in text
    dense = {row["method"][1]: row for row in table.dense_rows(panel)}
    assert (dense["dense int8"]["quality"][1], dense["dense int8"]["integers"][1]) == (None, 0.916)
    assert (dense["torch"]["quality"][1], dense["torch"]["lost"][0]) == (pytest.approx(0.9173), "0.0")


def test_answers_are_those_of_the_kernels_whose_speed_is_told(tmp_path: Path) -> None:
    """A share in float32 says nothing about the network in integers."""
    both = {"quality": 0.9, "quality_integers": 0.91, "speedup": 2.0, "agreement": 0.98, "agreement_low": 0.97}
    whole = {"speedup_integers": 4.0, "agreement_integers": 0.95, "agreement_low_integers": 0.94}
    panel, _ = study(tmp_path, [both | whole, both])
    assert [row["agreement"][0] for row in table.rows(panel)] == [
        "95.0\u00a0% (≥\u00a094.0)",
        "98.0\u00a0% (≥\u00a097.0)",
    ]
    old, _ = study(tmp_path / "old", [both | {"speedup_integers": 4.0}])
    assert table.rows(old)[0]["agreement"][1] is None, "not counted then"


def test_a_study_without_integers_has_plain_names(tmp_path: Path) -> None:
    panel, text = study(tmp_path, [{"quality": 0.9, "speedup": 2.0}])
    assert [name for _, name, _ in table.columns(table.rows(panel))][2:4] == ["quality", "lost"]
    assert "in float32" not in headline(panel)
    assert "In float32 and in integers" not in text


def test_a_rounding_error_is_no_better_quality(tmp_path: Path) -> None:
    """The mean of eighteen times .9173 is not .9173: torch was taken to be better than a faster dense engine."""
    speeds = {"quality": 0.9, "speedup": 4.0, "faster_than_dense": 1.5}
    panel, _ = study(tmp_path, [speeds] * 18)
    assert [rival.name for rival in panel.rivals] == ["torch", "dense float32"]
    assert [panel.unbeaten(rival) for rival in panel.rivals] == [False, True]


@pytest.mark.parametrize(
    ("ratio", "second", "said"),
    [
        (1.03, "0.98 at batch 2", "about as fast as dense int8 (1.03, and 0.98 at batch 2)"),
        (0.951, "", "about as fast as dense int8 (0.95)"),
        (1.05, "", "1.1 times as fast as dense int8"),
        (2.04, "1.5 at batch 2", "2.0 times as fast as dense int8 (1.5 at batch 2)"),
    ],
)
def test_nobody_is_faster_by_a_few_percent(ratio: float, second: str, said: str) -> None:
    assert as_fast(ratio, "dense int8", second) == said


def test_the_headline_does_not_say_one_times_as_fast(tmp_path: Path) -> None:
    speeds = {"speedup": 4.0, "faster_than_int8": 1.034, "faster_than_int8_second": 0.976}
    panel, _ = study(tmp_path, [{"quality": 0.91, **speeds}], {"second_batch": 2})
    assert "is about as fast as dense int8 (1.03, and 0.98 at batch 2)" in headline(panel)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("hf:models/minilm", "minilm"),
        ("hf:minilm/", "minilm"),
        ("tools.showcase:efficientnet_lite0", "efficientnet_lite0"),
        ("mine:net width 0.5", "net width 0.5"),
        ("fc:64-16-10", "fc:64-16-10"),
        ("resnet20 width 2", "resnet20 width 2"),
        ("texts.csv:answer", "texts.csv:answer"),
    ],
)
def test_captions_have_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_modules_of_the_user_must_be_importable(tmp_path: Path) -> None:
    """Captions are plain, "Do it again" is whole; two networks of the same plain name keep their modules."""
    (cell,) = tiny()
    with Store(tmp_path, create=True) as store:
        store.add(dataclasses.replace(cell, model="mine.nets:small"), COMMON | {"quality": 0.9})
        text = render(store)
        assert [panel.name for panel in panels(store.results(), {})] == ["small on digits"]
        store.add(dataclasses.replace(cell, model="yours.nets:small"), COMMON | {"quality": 0.9})
        names = {panel.name for panel in panels(store.results(), {})}
        both = render(store)
    assert names == {"mine.nets:small on digits", "yours.nets:small on digits"}
    assert "The module <code>mine.nets</code> must be importable (on <code>PYTHONPATH</code>)." in text
    assert "The modules <code>mine.nets</code> and <code>yours.nets</code> must be importable" in both
    assert "mine.nets:small&#34;]" in text
    assert "must be importable" not in study(tmp_path / "zoo", [{"quality": 0.9}])[1]


def test_engines_are_named_in_full(tmp_path: Path) -> None:
    (cell,) = tiny()
    engines = ("dense, torch", "int8, ONNX Runtime", "int8 static, ONNX Runtime")
    with Store(tmp_path, create=True) as store:
        store.add_base(cell, {"peers": [{"batch": 1, "name": name, "faster": 1.0, "error": 0.1} for name in engines]})
        store.add(cell, COMMON | {"quality": 0.9})
        text = render(store)
    assert '<td class="text">int8 dynamic, ONNX Runtime</td>' in text
    assert '<td class="text">int8 static, ONNX Runtime</td>' in text
    assert "Output error: how far its outputs are from those of torch" in text


def test_seeds_are_told_of_the_networks_that_have_them(tmp_path: Path) -> None:
    """One network with three seeds among others with one: the page said that all numbers were means over three."""
    cells = [*tiny(seed=(0, 1, 2)), *tiny(pattern=("2:4",))]
    with Store(tmp_path, create=True) as store:
        for cell in cells:
            store.add(cell, COMMON | {"quality": 0.9})
        (panel,) = panels(store.results(), store.bases())
    assert any(said.startswith("1 of 2 networks was made with several seeds") for said in remarks(panel))


def test_the_words_of_a_page_are_explained_on_it(tmp_path: Path) -> None:
    """Those that occur, and no others; every pattern of a kind by its own numbers."""
    patterns = ("unstructured", "balanced:16", "2:4", "blocks:4x4", "kernels")
    cells = [*tiny(pattern=patterns), *tiny(method=("reconstruct+distil",), score=("wanda",))]
    with Store(tmp_path, create=True) as store:
        for cell in cells:
            store.add(cell, COMMON | {"quality": 0.9})
        (panel,) = panels(store.results(), store.bases())
        text = render(store)
    said = dict(meanings(panel))
    assert {"dense", "magnitude", "reconstruct", "distil", *patterns} <= set(said)
    assert not {"wanda", "perplexity", "int8, in integers", "2-norm"} & set(said)
    assert said["2:4"] == "of every 4 neighbouring weights at most 2 stay"
    assert said["balanced:16"] == "equally many of every 16 neighbouring weights stay"
    assert said["blocks:4x4"] == "blocks of 4 × 4 weights go as a whole"
    assert "<dt>balanced:16</dt>" in text


def test_names_of_layers_break_after_dots_and_underscores() -> None:
    assert svg.breakable("encoder.layer_0._a<b") == "encoder.<wbr>layer_<wbr>0._<wbr>a&lt;b"
