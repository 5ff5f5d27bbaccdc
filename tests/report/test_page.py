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
from prunus.report import render, table, write_report
from prunus.report.facts import panels, payload
from prunus.report.words import best, headline, remarks
from prunus.study import Cell, Grid, Store, run_study
from prunus.study.speeds import fastest_engine
from support.browser import browser, opened
from support.studies import Here, tiny

SHOWN = {"certify": 2, "labels": 50, "held_out": 500, "sensitivity": 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real study: two networks, three patterns, two seeds, and a cell that fails."""
    place = tmp_path_factory.mktemp("study")
    cells = tiny(
        model=("fc:64-16-10", "fc:64-10"), pattern=("unstructured", "balanced:16", "2:4"), seed=(0, 1), settings=SHOWN
    )
    cells = [cell for cell in cells if cell.model == "fc:64-16-10" or cell.seed == 0]
    run_study(cells, place, engine=Here())
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
    assert sentence.startswith(
        f"With 50 % zeros ({panel.title(group)}), the network gives the same answer as the dense"
    )
    assert "% of 500 held-out inputs; proved for" in sentence
    assert "(one input by up to 25 of 255 steps)" in sentence  # digits lie between 0 and 1, the radius is .1
    assert any("2 seeds" in text for text in remarks(panel))
    data = payload(panel)
    for row in data["groups"]:
        assert row["values"]["bound"][0] >= row["values"]["attained"][0]
        assert len(row["layers"]) == len(row["masks"]) == 2


def told(text: str, folder: Path) -> list[Cell]:
    """The cells of all files that a page says to save."""
    blocks = re.findall(r"<pre[^>]*><code>(.*?)</code>", text, re.DOTALL)[:-1]  # the last one has the commands
    cells = []
    for number, block in enumerate(blocks):
        file = folder / f"told{number}.toml"
        file.write_text(block.replace("&#34;", '"').replace("&quot;", '"'))
        assert tomllib.loads(file.read_text())["settings"]["length"] == "1ep"
        cells += Grid.read(file).cells()
    return cells


def test_the_study_on_the_page_is_the_study(folder: Path, page: Path, tmp_path: Path) -> None:
    keys = [cell.key for cell in told(page.read_text("utf8"), tmp_path)]
    with Store(folder) as store:
        assert sorted(keys) == sorted(result.key for result in store.results())


def test_methods_with_scores_of_their_own_can_be_run_again(tmp_path: Path) -> None:
    """Their scores are not scores to ask for, and not every method was run with every pattern and seed."""
    cells = tiny(method=("prune", "reconstruct"), pattern=("unstructured", "2:4"), sparsity=(0.5, 0.9), settings=SHOWN)
    cells += tiny(score=("snip",), sparsity=(0.9,), settings=SHOWN)
    cells += tiny(method=("reconstruct",), pattern=("balanced:16",), sparsity=(0.5,), seed=(1, 2), settings=SHOWN)
    cells += tiny(method=("shrink",), pattern=("channels",), settings=SHOWN)
    with Store(tmp_path, create=True) as store:
        for cell in cells:
            store.add(cell, {"quality": 0.9, "notes": {}, "layers": []})
        text = render(store)
    again = told(text, tmp_path)
    assert sorted(cell.key for cell in again) == sorted(cell.key for cell in cells)
    assert len(list(tmp_path.glob("told*.toml"))) == 4


def test_dense_engines_stand_beside_the_pruned_networks(tmp_path: Path) -> None:
    """A network that a dense engine beats is not on the line of the best, and the summary says who is faster."""
    cells = tiny(pattern=("unstructured", "balanced:16"), settings=SHOWN | {"second_batch": 8})
    speeds = {"speedup": 4.0, "faster_than_dense": 2.0, "faster_than_dense_second": 2.5}
    speeds |= {"faster_than_int8": 0.5, "faster_than_int8_second": 1.2, "quality_int8": 0.95}
    common = {"notes": {}, "layers": [], "quality_dense": 0.96, "chance": 0.1, **speeds}
    with Store(tmp_path, create=True) as store:
        for cell, quality in zip(cells, (0.955, 0.94)):
            store.add(cell, {"quality": quality, **common})
        (panel,) = panels(store.results(), store.bases())
        text = render(store)
    assert [(rival.name, rival.faster) for rival in panel.rivals] == [
        ("torch", 1.0), ("dense float32", 2.0), ("dense int8", 8.0),
    ]  # fmt: skip
    assert [group.pattern for group in panel.front] == ["unstructured"]
    assert [panel.unbeaten(rival) for rival in panel.rivals] == [False, True, True]
    said = headline(panel).replace("\u00a0", " ")
    assert "Dense int8 is faster: the pruned network has 0.50 of its speed (1.2 at batch 8)." in said
    assert "2.0 times as fast as the fastest dense float32 engine (2.5 at batch 8)" in said
    assert "dense, int8 (fastest engine)" in text
    assert "0.50 / 1.20\u00a0×" in text


def test_the_dense_int8_rival_is_named_and_useful(tmp_path: Path) -> None:
    """An engine whose outputs are as far off as zeros is no rival; the one that was judged is named beside the fastest,
    with its answers and its file, and a bound is rounded down."""
    cells = tiny(pattern=("unstructured",), settings=SHOWN | {"second_batch": 8})
    rows = [("dense, torch", 1.0, 0.0), ("dense, ONNX Runtime", 2.0, 0.0), ("int8, ONNX Runtime", 3.0, 0.02)]
    rows += [("int8 static, OpenVINO", 4.0, 0.03), ("int8 static, ONNX Runtime", 9.0, 1.04)]
    peers = [
        {"batch": batch, "name": name, "faster": faster, "error": error}
        for batch in (cells[0].settings.batch, 8)
        for name, faster, error in rows
    ]
    assert fastest_engine(peers, "int8", 8) == peers[8]
    assert fastest_engine(peers[4:5], "int8", peers[4]["batch"]) is None
    for error in (float("nan"), None):  # outputs of another shape, and what a store makes of that
        assert fastest_engine([{**peers[3], "error": error}], "int8", peers[3]["batch"]) is None
    judged = {"engine_int8": "ONNX Runtime", "agreement_int8": 0.98, "agreement_low_int8": 0.97359}
    speeds = {"speedup": 4.0, "faster_than_dense": 2.0, "faster_than_int8": 1.0, "quality_int8": 0.95}
    record = {"notes": {}, "layers": [], "quality_dense": 0.96, "quality": 0.95, "chance": 0.1, "bytes_dense": 1e6}
    with Store(tmp_path, create=True) as store:
        store.add_base(cells[0], {"peers": peers, "bytes_dense_int8": 260_000, **judged})
        store.add(cells[0], record | speeds)
        (panel,) = panels(store.results(), store.bases())
        text = render(store)
    int8 = panel.rivals[2]
    assert (int8.second, int8.engines, int8.judged) == (4.0, ("OpenVINO",), "ONNX Runtime")
    rows_shown = {row["method"][0]: row for row in table.dense_rows(panel)}
    shown = rows_shown["dense, int8 (OpenVINO; quality: ONNX Runtime)"]
    assert shown["agreement"][0].replace("\u00a0", " ") == "98.0 % (≥ 97.3)"
    assert shown["disk"][0].replace("\u00a0", " ") == "260 kB"
    assert shown["smaller"][0].replace("\u00a0", " ") == "3.85 ×"
    assert shown["float32"][0].replace("\u00a0", " ") == "2.00 / 2.00 ×"
    assert "dense, int8 (OpenVINO; quality: ONNX Runtime)" in text


def test_the_summary_does_not_choose_by_noise_in_times(tmp_path: Path) -> None:
    """Of networks with zeros of one pattern it names the one that keeps most answers, whichever was timed faster; one
    that saves more wins still."""
    cells = tiny(score=("magnitude", "wanda"), sparsity=(0.5, 0.75), settings=SHOWN)
    common = {"notes": {}, "layers": [], "quality_dense": 0.96, "quality": 0.96 + 1e-9, "chance": 0.1}
    speeds = {("magnitude", 0.5): 4.0, ("wanda", 0.5): 4.8, ("magnitude", 0.75): 5.9, ("wanda", 0.75): 6.0}
    with Store(tmp_path, create=True) as store:
        for cell in cells:
            kept = 0.9 if cell.score == "magnitude" else 0.7
            if cell.sparsity == 0.5:
                store.add(cell, {"agreement": kept, "speedup": speeds[cell.score, cell.sparsity], **common})
        (panel,) = panels(store.results(), store.bases())
        chosen = best(panel)
        assert chosen is not None
        assert chosen.score == "magnitude"
        assert table.rows(panel)[0]["lost"][0] == "0.0"
        for cell in cells:
            if cell.sparsity == 0.75:
                kept = 0.5 if cell.score == "magnitude" else 0.6
                store.add(cell, {"agreement": kept, "speedup": speeds[cell.score, cell.sparsity], **common})
        (panel,) = panels(store.results(), store.bases())
        chosen = best(panel)
        assert chosen is not None
        assert (chosen.score, chosen.sparsity) == ("wanda", 0.75)


def test_cells_with_another_allocation_stand_beside_the_others(tmp_path: Path) -> None:
    """They are named where both occur, and only there."""
    shared = {"method": ("reconstruct",), "pattern": ("unstructured",)}
    cells = tiny(**shared, settings=SHOWN) + tiny(**shared, settings={"allocation": "damage"} | SHOWN)
    run_study(cells, tmp_path / "both", engine=Here())
    run_study(cells[1:], tmp_path / "one", engine=Here())
    with Store(tmp_path / "both") as store:
        (panel,) = panels(store.results(), store.bases())
        render(store)
    assert panel.methods == ["reconstruct, unstructured", "reconstruct by damage, unstructured"]
    assert [len(group.results) for group in panel.groups] == [1, 1]
    assert payload(panel)["legend"][0] == ["reconstruct", "reconstruct by damage"]
    with Store(tmp_path / "one") as store:
        (panel,) = panels(store.results(), store.bases())
    assert panel.methods == ["reconstruct, unstructured"]


def test_fine_tuned_cells_stand_beside_the_others(tmp_path: Path) -> None:
    """Two sets of settings in one store: their cells are not taken for seeds of each other, and both files are told."""
    cells = tiny(pattern=("unstructured", "2:4"), settings=SHOWN) + tiny(settings={"finetune": "1ep"} | SHOWN)
    run_study(cells, tmp_path, engine=Here())
    with Store(tmp_path) as store:
        (panel,) = panels(store.results(), store.bases())
        text = render(store)
    assert panel.methods == ["magnitude, unstructured", "magnitude, unstructured, tuned", "magnitude, 2:4"]
    assert [len(group.results) for group in panel.groups] == [1, 1, 1]
    assert payload(panel)["looks"] == [[0, 0], [1, 0], [0, 1]]
    assert payload(panel)["legend"] == [["magnitude", "magnitude, tuned"], ["unstructured", "2:4"]]
    assert any("95 % confidence" in sentence for sentence in remarks(panel))
    assert "study1.toml" in text
    assert "study2.toml" in text
    assert {cell.key for cell in told(text, tmp_path)} == {cell.key for cell in cells}


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


def test_another_network_starts_with_all_its_methods(chromium: Any, page: Path) -> None:
    """What was switched off for one network switched off something else for the next; the page says whose it is."""
    with opened(chromium, page) as (tab, complaints):
        assert "1 of 2" in tab.inner_text(".hero:not([hidden]) .which")
        tab.locator("#legend button").first.click()
        off = tab.locator("#legend button[aria-pressed=false]")
        assert off.count() == 1
        tab.select_option("#panel", "1")
        assert off.count() == 0
        assert "fc:64-16-10 on digits: 2 of 2" in tab.inner_text(".hero:not([hidden]) .which")
        assert complaints == []


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


@pytest.mark.parametrize("span", [1.3, 8.0, 300.0])
def test_axes_of_perplexities_have_round_numbers_whatever_they_span(chromium: Any, tmp_path: Path, span: float) -> None:
    """Between 60.6 and 79 there was a single number on the axis."""
    cells = tiny(pattern=("unstructured", "balanced:16"), settings=SHOWN | {"metric": "perplexity"})
    common = {"notes": {}, "layers": [], "quality_dense": 60.6, "chance": 1e5, "speedup": 1.5}
    with Store(tmp_path, create=True) as store:
        for cell, quality in zip(cells, (61.0, 60.6 * span)):
            store.add(cell, {"quality": quality, **common})
        page = write_report(store, tmp_path / "report.html")
    with opened(chromium, page) as (tab, complaints):
        numbers = tab.locator("#plot-accuracy .ytick text").all_text_contents()
        assert 3 <= len(numbers) <= 12, numbers
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
        assert tab.inner_text("#count") == "nothing matches, of 3 rows"
        tab.fill("#filter", "balanced 0.5")
        assert tab.inner_text("#count") == "1 of 3 rows", "as commands write it"
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
