"""The guide's code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "private.md"


@pytest.mark.filterwarnings("ignore")
def test_guide_code_runs() -> None:
    pytest.importorskip("opacus", reason="needs the extra 'dp'")
    pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert 0.0 < names["private"].optimizer.epsilon <= 3.0
    assert names["kept"].numel() == 1000
