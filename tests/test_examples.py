"""The short programs a user would write run as they stand (copies of them live in docs/examples)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fresh import run_fresh

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_example(program: Path, tmp_path: Path) -> None:
    result = run_fresh(program, cwd=tmp_path, seconds=300)
    assert result.returncode == 0, result.stderr[-2000:]
