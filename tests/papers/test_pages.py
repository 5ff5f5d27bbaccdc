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


def test_written_pages_are_up_to_date():
    for name, text in load_build().pages().items():
        assert (FOLDER / name).read_text("utf8") == text, f"{name}: run python docs/papers/build.py and commit it"


def test_an_errata_sheet_says_published_right_why_and_how():
    for paper in load_build().PAPERS:
        text = (FOLDER / f"errata-{paper.replace('_', '-')}.md").read_text("utf8")
        for claim in claims.values():
            listed = f"## {claim.id}:" in text
            assert listed == (claim.paper == paper and claim.status in ("misprint", "wrong", "sloppy")), claim.id
            assert not listed or claim.erratum, f"{claim.id} does not say why"
        for entry in text.split("\n## ")[1:]:
            for part in ("Published", "Right", "Why", "Checked by"):
                assert re.search(rf"- \*\*{part}\*\*: \S", entry), f"{entry.partition(':')[0]} has no {part!r}"


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
