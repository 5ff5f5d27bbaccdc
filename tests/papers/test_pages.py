from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from prunus.theory import claims

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "papers"


def load_build():
    spec = importlib.util.spec_from_file_location("theory_pages", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_index_page_is_up_to_date():
    committed = (FOLDER / "README.md").read_text("utf8")
    assert committed == load_build().render(), "run python docs/papers/build.py and commit docs/papers/README.md"


def test_index_page_names_every_claim_and_subject():
    text = (FOLDER / "README.md").read_text("utf8")
    for claim in claims.values():
        assert f"| {claim.id} |" in text
    assert {claim.paper for claim in claims.values()} == set(load_build().PAPERS)
    assert {claim.status for claim in claims.values()} <= set(load_build().STATUS)


@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_links_of_the_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", (FOLDER / page).read_text("utf8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize("page", ["tangent.md", "iterand.md"])
def test_code_of_the_pages_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text("utf8"), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("page", ["tangent.md", "iterand.md"])
def test_ids_of_the_pages_exist(page):
    for identifier in re.findall(r"\b[KI]-\d+[a-z]?\b", (FOLDER / page).read_text("utf8")):
        family = [name for name in claims if re.fullmatch(rf"{identifier}[a-z]?", name)]
        assert family, identifier
