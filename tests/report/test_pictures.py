"""What the page's pictures and legend look like, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prunus.report import write_report
from prunus.study import Store
from support.browser import browser, opened
from support.studies import tiny

PATTERNS = ("unstructured", "2:4", "balanced:16", "channels")
SCORES = ("magnitude", "random", "snip", "synflow", "wanda")
LAYER = {"shape": [4, 4], "kept": 8, "total": 16}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five scores, four patterns, dense engines, one seed, a network at chance, proofs and many layers."""
    folder = tmp_path_factory.mktemp("pictures")
    cells = tiny(score=SCORES, pattern=PATTERNS)
    layers = [{"name": f"encoder.attention_{number}.weight", **LAYER} for number in range(15)]
    common = {"notes": {}, "quality_dense": 0.92, "chance": 0.1, "speedup": 3.0, "layers": layers, "attained": 1.0}
    common |= {"faster_than_dense": 2.9, "faster_than_int8": 2.8, "quality_int8": 0.92, "held_out_bound": 1.5}
    common |= {"quality_integers": 0.9, "speedup_integers": 4.0, "held_out_probability": 0.01, "bound": 3.0}
    common |= {"mac_dense": 200, "mac_kept": 100}
    with Store(folder, create=True) as store:
        for place, cell in enumerate(cells):
            record = {"quality": 0.9 - place / 1000} if place else {"quality": 0.1, "quality_integers": 0.1}
            store.add(cell, common | record)
        return write_report(store, folder / "report.html")


def traces(tab: Any, name: str) -> list[dict[str, Any]]:
    """What a picture was drawn from: of each trace its name, marker, line, way, and whether it has bars."""
    wanted = "({name: t.name, marker: t.marker, line: t.line, mode: t.mode, bars: Boolean(t.error_y?.visible)})"
    return list(tab.evaluate(f"document.querySelector('#plot-{name}').data.map(t => {wanted})"))


def test_patterns_look_the_same_in_legend_picture_and_table(chromium: Any, page: Path) -> None:
    """Filled, open, open with a dot, pale: not told apart by one pixel."""
    fillings = ["full", "open", "dot", "pale"]
    with opened(chromium, page) as (tab, complaints):
        kinds = "[...document.querySelectorAll('#legend div:last-child svg')].map(s => s.classList[1])"
        names = tab.locator("#legend div:last-child button").all_text_contents()
        assert dict(zip(names, tab.evaluate(kinds))) == dict(zip(PATTERNS, fillings))
        cells = "[...document.querySelectorAll('.groups td.text')].map(c => [c.textContent, c.firstChild.classList[1]])"
        assert {name.rpartition(", ")[2]: kind for name, kind in tab.evaluate(cells)} == dict(zip(PATTERNS, fillings))
        drawn = [one for one in traces(tab, "macs") if one["name"].startswith("wanda, ")]
        rings = {one["name"][7:]: one["marker"] for one in drawn if one["mode"] == "lines+markers"}
        assert len({marker["line"]["color"] for marker in rings.values()}) == 1
        assert rings["unstructured"]["color"] == rings["unstructured"]["line"]["color"]
        assert rings["2:4"]["color"] == rings["balanced:16"]["color"] == "#ffffff"
        assert len({marker["color"] for marker in rings.values()}) == 3
        dots = [one["name"] for one in drawn if one["mode"] == "markers"]
        assert dots == ["wanda, balanced:16"], "the dot in the middle is a marker of its own"
        assert complaints == []


def test_lines_mean_what_the_legend_says(chromium: Any, page: Path) -> None:
    """Proved bounds and statistical ones differ in width and size, not in their dashes; dense is wide and grey."""
    with opened(chromium, page) as (tab, complaints):
        lines = [
            one for one in traces(tab, "certificate") if one["name"] == "wanda, balanced:16" and "lines" in one["mode"]
        ]
        thin, thick = sorted(lines, key=lambda one: one["line"]["width"])
        assert thin["line"]["dash"] == thick["line"]["dash"] == "dot"
        assert thin["line"]["width"] < thick["line"]["width"] / 2
        assert thin["marker"]["size"] < thick["marker"]["size"]
        said = tab.inner_text("#how-certificate")
        assert "Large, on thick lines" in said
        assert "Small, on thin lines" in said
        assert "The wide grey line is the dense network." in tab.inner_text("#how-accuracy")
        (dense,) = tab.evaluate("document.querySelector('#plot-accuracy').layout.shapes.map(s => s.line)")
        assert dense["width"] > 4
        assert "dash" not in dense
        assert "in float32 kernels" in tab.inner_text("#how-accuracy")
        assert "by the float32 kernels, against torch" in tab.inner_text("#how-macs")
        assert not any(one["bars"] for one in traces(tab, "accuracy") + traces(tab, "certificate")), "one seed, no bars"
        assert tab.locator(".plot .errorbar path").count() == 0
        assert complaints == []


def test_networks_that_guess_do_not_stretch_the_axis(chromium: Any, page: Path) -> None:
    with opened(chromium, page) as (tab, complaints):
        low, high = tab.evaluate("document.querySelector('#plot-accuracy')._fullLayout.yaxis.range")
        assert 80 < low < 89
        assert 92 < high <= 100
        assert "Below the picture: 1 network that is closer to guessing" in tab.inner_text("#how-accuracy")
        assert complaints == []


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_the_legend_is_small_and_ends_with_the_pictures(chromium: Any, page: Path, width: int) -> None:
    with opened(chromium, page, width) as (tab, complaints):
        box = tab.locator("#legend").bounding_box()
        plot = tab.locator("#plot-pareto").bounding_box()
        assert box["height"] < plot["height"] / 2
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        hidden = "(e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 1)"
        assert not tab.evaluate(f"{hidden}(document.querySelector('#legend'))"), "every entry can be seen"
        if width == 1280:
            tops = "g => [...g.querySelectorAll('button')].map(b => b.getBoundingClientRect().top)"
            for group in tab.locator("#legend > div").all():
                assert len(set(group.evaluate(tops))) == 1, "a group stays in one line"
        for place in ("table", "again"):
            tab.evaluate(f"document.querySelector('#{place}').scrollIntoView({{behavior: 'instant'}})")
            below, above = (tab.locator(f"#{name}").bounding_box() for name in ("legend", place))
            assert below["y"] + below["height"] <= above["y"] + 1
        assert complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_name_of_the_dense_line_stands_beside_the_picture(chromium: Any, page: Path, width: int) -> None:
    """In the picture a network as good as the dense one hid it."""
    with opened(chromium, page, width) as (tab, complaints):
        name = tab.locator("#plot-accuracy .annotation").bounding_box()
        grid = tab.locator("#plot-accuracy .nsewdrag").bounding_box()
        card = tab.locator("#plot-accuracy").bounding_box()
        assert name["x"] >= grid["x"] + grid["width"] - 1
        assert name["x"] + name["width"] <= card["x"] + card["width"] + 1
        assert complaints == []


def test_one_sparsity_is_one_number_on_every_axis(chromium: Any, tmp_path: Path) -> None:
    """Rounded shares of zeros (50.4 %) stretched an axis from 49 to 51, and points were called lines."""
    cells = tiny(pattern=("unstructured", "2:4"))
    common = {"notes": {}, "layers": [], "quality_dense": 0.9, "quality": 0.8, "energy_removed": 0.1, "speedup": 2.0}
    with Store(tmp_path, create=True) as store:
        for cell, share in zip(cells, (0.5, 0.504)):
            store.add(cell, common | {"realised_sparsity": share})
        page = write_report(store, tmp_path / "report.html")
    with opened(chromium, page) as (tab, complaints):
        for name in ("accuracy", "energy"):
            assert tab.locator(f"#plot-{name} .xtick text").all_text_contents() == ["50"]
        low, high = tab.evaluate("document.querySelector('#plot-energy')._fullLayout.xaxis.range")
        assert high - low > 3
        assert "Each mark is one way" in tab.inner_text("#how-accuracy")
        said = tab.inner_text("#how-pareto")
        assert "The cross is the dense network." in said
        assert "integers" not in said, "no integers were measured"
        assert complaints == []


def test_names_of_dense_networks_stand_apart_on_a_phone(chromium: Any, page: Path) -> None:
    with opened(chromium, page, 390) as (tab, complaints):
        texts = tab.locator("#plot-pareto .textpoint text")
        assert texts.all_text_contents() == ["torch", "float32", "int8"]
        boxes = [one.bounding_box() for one in texts.all()]
        for place, one in enumerate(boxes):
            for other in boxes[place + 1 :]:
                beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                over = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
                assert beside or over
        assert complaints == []


def test_on_paper_bars_stay_and_folded_lists_say_so(chromium: Any, page: Path) -> None:
    with opened(chromium, page) as (tab, complaints):
        assert tab.locator("#layer-table td").first.inner_html().startswith("encoder.<wbr>attention_<wbr>0<small>")
        more = tab.locator("#layers .more").first
        assert not more.locator("p").is_visible()
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        assert more.locator("p").is_visible()
        assert more.locator("p").inner_text() == "and 3 more layers"
        assert not tab.locator("#layers .more button").first.is_visible()
        kept = "getComputedStyle(document.querySelector('.meter i')).printColorAdjust"
        assert tab.evaluate(kept) == "exact"
        right = "document.querySelector('.numbers th:last-child').getBoundingClientRect().right"
        assert tab.evaluate(right) <= tab.evaluate("document.querySelector('main').getBoundingClientRect().right")
        tab.emulate_media(media="screen")
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        tab.locator("#layers .more button").first.click()
        assert tab.locator("#layer-table tbody tr:visible").count() == 15
        assert complaints == []
