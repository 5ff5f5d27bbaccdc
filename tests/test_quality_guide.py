"""The tables of the guide's page on quality are those of the evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guide" / "quality.md").read_text("utf8")
MARKS = [name for name in re.findall(r"<!-- ([a-z0-9-]+) -->", GUIDE) if name != "end"]


@pytest.mark.parametrize("name", MARKS)
def test_the_table_is_the_evidence(name: str) -> None:
    found = re.search(rf"<!-- {name} -->(.*?)<!-- end -->", GUIDE, re.DOTALL)
    assert found is not None
    shown = [line for line in found[1].splitlines() if line.startswith("|")]
    measured = (ROOT / "docs" / "evidence" / f"{name}.md").read_text("utf8").splitlines()
    assert shown == [line for line in measured if line.startswith("|")]
    assert len(shown) >= 3
