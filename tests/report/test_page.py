from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from prunus.cli import run
from prunus.errors import BadInput
from prunus.report import render, write_report
from prunus.report.facts import panels, payload
from prunus.report.words import best, headline, remarks
from prunus.study import Grid, LocalEngine, Store, run_study
from support.browser import browser, opened
from support.studies import tiny

SHOWN = {"certify": 2, "labels": 50, "held_out": 500, "sensitivity": 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real study: two networks, three patterns, two seeds, and a cell that fails."""
    place = tmp_path_factory.mktemp("study")
    cells = tiny(
        model=("fc:64-16-10", "fc:64-10"), pattern=("unstructured", "balanced:16", "2:4"), seed=(0, 1), settings=SHOWN
    )
    cells = [cell for cell in cells if cell.model == "fc:64-16-10" or cell.seed == 0]
    run_study(cells, place, engine=LocalEngine(1))
    with Store(place, create=True) as store:
        store.add(tiny(pattern=("channels",), settings=SHOWN)[0], error="Something <b>else</b> failed.")
    return place


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    with Store(folder) as store:
        return write_report(store, folder / "report.html")


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if found.get("id"):
            self.ids.append(found["id"] or "")
        if tag in ("script", "img", "iframe", "link", "source"):
            self.loads.append(found.get("src") or found.get("href") or "")


def test_the_page_is_one_small_file(page: Path) -> None:
    text = page.read_text("utf8")
    outline = Outline()
    outline.feed(text)
    assert page.stat().st_size < 6e6
    assert all(not url or url.startswith("data:") for url in outline.loads)
    assert len(outline.ids) == len(set(outline.ids))
    assert "Something &lt;b&gt;else&lt;/b&gt; failed." in text


def test_the_summary_says_what_was_measured(folder: Path) -> None:
    with Store(folder) as store:
        found = panels(store.results(), store.bases())
    assert [panel.network for panel in found] == ["fc:64-10", "fc:64-16-10"]
    panel = found[1]
    group = best(panel)
    assert group is not None
    assert panel.methods[0] == "unstructured"
    sentence = headline(panel).replace("\u00a0", " ")
    assert f"{100 * group.means['accuracy'].value:.1f} ±" in sentence
    assert f"{100 * (panel.dense or 0):.1f} % dense" in sentence
    assert "the network gives the same answer as the dense one on" in sentence
    assert any("2 seeds" in text for text in remarks(panel))
    data = payload(panel)
    for row in data["groups"]:
        assert row["values"]["bound"][0] >= row["values"]["attained"][0]
        assert len(row["layers"]) == len(row["masks"]) == 2


def test_the_study_on_the_page_is_the_study(folder: Path, page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"<pre[^>]*><code>(.*?)</code>", page.read_text("utf8"), re.DOTALL)
    text = blocks[0].replace("&#34;", '"').replace("&quot;", '"')
    (tmp_path / "study.toml").write_text(text)
    assert tomllib.loads(text)["settings"]["length"] == "1ep"
    keys = {cell.key for cell in Grid.read(tmp_path / "study.toml").cells()}
    with Store(folder) as store:
        assert {result.key for result in store.results()} <= keys


def test_fine_tuned_cells_stand_beside_the_others(tmp_path: Path) -> None:
    """Two sets of settings in one store: their cells are not taken for seeds of each other, and both files are told."""
    cells = tiny(pattern=("unstructured", "2:4"), settings=SHOWN) + tiny(settings={"finetune": "1ep"} | SHOWN)
    run_study(cells, tmp_path, engine=LocalEngine(1))
    with Store(tmp_path) as store:
        (panel,) = panels(store.results(), store.bases())
        text = render(store)
    assert panel.methods == ["unstructured", "unstructured, tuned", "2:4"]
    assert [len(group.results) for group in panel.groups] == [1, 1, 1]
    assert payload(panel)["looks"] == [[0, 0], [1, 0], [0, 1]]
    assert any("95 % confidence" in sentence for sentence in remarks(panel))
    assert "study1.toml" in text
    assert "study2.toml" in text
    keys = set()
    for number, block in enumerate(re.findall(r"<pre[^>]*><code>(.*?)</code>", text, re.DOTALL)[:2]):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.replace("&#34;", '"'))
        keys |= {cell.key for cell in Grid.read(file).cells()}
    assert keys == {cell.key for cell in cells}


def test_an_empty_study_has_no_page(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store, pytest.raises(BadInput, match="no finished cell"):
        render(store)


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "-o", str(tmp_path / "page.html"), "--title", "Two nets"]) == 0
    shown = capsys.readouterr().out
    assert str(tmp_path / "page.html") in shown
    assert " accuracy (" in shown
    assert "<h1>Two nets</h1>" in (tmp_path / "page.html").read_text("utf8")
    assert run(["report", str(tmp_path / "absent")]) == 2


def test_tables_of_papers_stand_on_the_page(chromium: Any, folder: Path, tmp_path: Path) -> None:
    rows = [{"network": "a", "published": 1.0, "ours": 1.5, "standard errors": 4.2}, {"network": "b", "ours": None}]
    with Store(tmp_path, create=True) as store:
        store.add_reproduction("toy", "A <toy> table", "Nobody 2020, table 1", [{"old": 1}])
        store.add_reproduction("toy", "A <toy> table", "Nobody 2020, table 1", rows)
        alone = write_report(store, tmp_path / "papers.html")
    assert "A &lt;toy&gt; table" in alone.read_text("utf8")
    with opened(chromium, alone, 390, "dark") as (tab, complaints):
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.inner_text("#papers td.far") == "4.2"
        tab.click("#theme")
        assert complaints == []


# ------------------------------------------------------------------------------------------------------ in the browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_offline_without_complaints(chromium: Any, page: Path, width: int, scheme: str) -> None:
    with opened(chromium, page, width, scheme) as (tab, complaints):
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
        drawn = tab.evaluate("[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.trace').length)")
        assert len(drawn) == 6
        assert min(drawn[:5]) > 0
        labels = tab.evaluate("[...document.querySelectorAll('.plot')].map(p => p.getAttribute('aria-label'))")
        assert all(len(label) > 20 for label in labels)
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 200) == (scheme == "dark")
        assert complaints == []


def test_sorting_and_filtering(chromium: Any, page: Path) -> None:
    with opened(chromium, page) as (tab, complaints):
        tab.select_option("#panel", "1")

        def column(key: str) -> list[str]:
            cells = f".panel:not([hidden]) .numbers tbody tr:not([hidden]) td[data-key={key}]"
            return list(tab.evaluate(f"[...document.querySelectorAll('{cells}')].map(c => c.dataset.value)"))

        header = tab.locator(".panel:not([hidden]) .numbers th[data-key=bound]")
        header.locator("button").click()
        up = [float(text) for text in column("bound")]
        assert up == sorted(up)
        assert header.get_attribute("aria-sort") == "ascending"
        header.locator("button").click()
        assert [float(text) for text in column("bound")] == sorted(up, reverse=True)
        tab.locator(".panel:not([hidden]) .numbers th[data-key=method] button").click()
        assert column("method") == sorted(column("method"))
        tab.fill("#filter", "balanced")
        assert set(column("method")) == {"balanced:16"}
        assert tab.inner_text("#count") == "1 of 3 rows"
        tab.fill("#filter", "balanced 50")
        assert tab.inner_text("#count") == "1 of 3 rows", "words in any order; a number is the share of zeros"
        tab.fill("#filter", "balanced 90")
        assert tab.inner_text("#count") == "0 of 3 rows"
        tab.fill("#filter", "nothing like this")
        assert column("method") == []
        tab.fill("#filter", "")
        assert len(column("method")) == 3
        assert complaints == []


def test_hovering_choosing_and_the_other_theme(chromium: Any, page: Path) -> None:
    with opened(chromium, page) as (tab, complaints):
        tab.select_option("#panel", "1")
        point = tab.locator("#plot-accuracy .scatterlayer .point").first
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        tab.mouse.move(box["x"] - 3, box["y"] - 3)
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        tab.wait_for_selector("#plot-accuracy .hoverlayer .hovertext", timeout=5000)
        assert "accuracy" in (tab.text_content("#plot-accuracy .hoverlayer") or "")
        before = tab.inner_text("#layer-table")
        assert tab.locator("#masks canvas").count() == 2
        tab.locator(".panel:not([hidden]) .numbers tbody tr:not(.chosen)").first.click()
        assert tab.inner_text("#layer-table") != before
        assert tab.locator(".numbers tr.chosen").count() == 1
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.click("#theme")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != paper
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        assert tab.evaluate("Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.clientWidth))") <= 690
        light = tab.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--card')").strip()
        assert light == "#ffffff"
        assert not tab.is_visible(".bar")
        assert tab.is_visible("#plot-accuracy")
        tab.emulate_media(media="screen")
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.evaluate("document.querySelector('#plot-accuracy .main-svg').clientWidth") > 800
        tab.set_viewport_size({"width": 390, "height": 800})
        tab.wait_for_function("document.querySelector('#plot-accuracy .main-svg').clientWidth < 390", timeout=10_000)
        assert complaints == []
