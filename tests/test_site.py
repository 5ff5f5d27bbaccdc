"""`make docs`: the site builds without a warning, has every public name, and opens from disk without a request."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import browser

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a dead link, a page outside the navigation or a name that is not there is an error."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    target = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return target


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link|source)[^>]+?(?:src|href)=\"([^\"]+)", page.read_text("utf8"))
        assert not [address for address in loaded if address.startswith(("http:", "https:", "//"))], page


def test_every_public_name_of_every_room_is_on_its_page(site: Path) -> None:
    import prunus

    pages = sorted((site / "reference").glob("*.html"))
    assert len(pages) > 12
    for page in pages:
        if page.stem != "index":
            text = page.read_text("utf8")
            missing = [name for name in getattr(prunus, page.stem).__all__ if f"prunus.{page.stem}.{name}" not in text]
            assert not missing, f"{page.name} lacks {missing}"


def test_inherited_methods_are_on_the_page_of_their_class(site: Path) -> None:
    text = (site / "reference" / "private.html").read_text("utf8")
    for method in ("select", "privacy", "expected_error"):
        assert f'id="prunus.private.NoisyTopK.{method}"' in text, method
    assert 'id="prunus.contract.Pattern.mask"' in (site / "reference" / "contract.html").read_text("utf8")


def test_examples_are_shown_as_code(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        assert "<blockquote>" not in page.read_text("utf8"), page.name


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_open_from_disk(site: Path, chromium: Any, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    for name in ("index.html", "reference/pruning.html", "guide/glossary.html", "guide/papers.html"):
        page.goto((site / name).as_uri())
        page.wait_for_selector("article h1")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert not complaints
    context.close()


def test_the_search_works_from_disk(site: Path, chromium: Any) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    shown = page.locator(".md-search-result__item a[href*='reference/pruning.html']").first
    page.fill("input.md-search__input", "find_masks")
    for turn in range(360):  # the index is read first
        if turn % 20 == 0:
            page.press("input.md-search__input", "End")  # the search listens to keys, and may not listen yet
        page.wait_for_timeout(500)
        if shown.count():
            break
    assert shown.count()
    context.close()
