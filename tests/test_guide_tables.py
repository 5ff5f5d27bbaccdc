"""The tables of the guide's pages on quality, smaller networks and Hugging Face folders are those of the evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("quality", "shrink", "hugging-face")
PAGES = {name: (ROOT / "docs" / "guide" / f"{name}.md").read_text("utf8") for name in NAMES}
MARKS = [
    (page, name) for page, text in PAGES.items() for name in re.findall(r"<!-- ([a-z0-9-]+) -->", text) if name != "end"
]


@pytest.mark.parametrize(("page", "name"), MARKS)
def test_the_table_is_the_evidence(page: str, name: str) -> None:
    found = re.search(rf"<!-- {name} -->(.*?)<!-- end -->", PAGES[page], re.DOTALL)
    assert found is not None
    shown = [line for line in found[1].splitlines() if line.startswith("|")]
    measured = (ROOT / "docs" / "evidence" / f"{name}.md").read_text("utf8").splitlines()
    assert shown == [line for line in measured if line.startswith("|")]
    assert len(shown) >= 3
