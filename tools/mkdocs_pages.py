"""What mkdocs does not know by itself: the navigation, and one reference page for each room of the package.

The reference is made from the `__all__` of each room, so a public name cannot be left out; a room's page has its
docstring and one entry for each name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prunus"
FIRST = ("recipes", "glossary", "studies", "certificates", "fast", "tickets", "tangent", "private")
LAST = ("papers", "migration", "architecture")
REPOSITORY_FILES = re.compile(r"\]\((?:\.\./)+((?:src|tests|tools|benchmarks)/[^)#]*|[A-Z]+\.md|LICENSE)\)")


def on_config(config: Any) -> Any:
    """Navigation: the guide in reading order, then papers, reference, decisions."""
    docs = Path(config.docs_dir)
    guide = {page.stem: page for page in sorted((docs / "guide").glob("*.md"))}
    middle = [name for name in guide if name not in (*FIRST, *LAST)]
    order = [name for name in (*FIRST[:2], *middle, *FIRST[2:], *LAST) if name in guide]
    papers = next(folder for folder in ("papers", "theory") if (docs / folder).is_dir())
    pages = sorted(page.name for page in (docs / papers).glob("*.md") if page.name != "README.md")
    config.nav = [
        {"Start": "index.md"},
        {"Guide": [f"guide/{name}.md" for name in order]},
        {"Papers": [f"{papers}/README.md", *(f"{papers}/{name}" for name in pages)]},
        {"Reference": ["reference/index.md", *(f"reference/{room}.md" for room in rooms())]},
        {"Decisions": ["decisions/README.md", *(f"decisions/{page.name}" for page in decisions(docs))]},
    ]
    return config


def decisions(docs: Path) -> list[Path]:
    return [page for page in sorted((docs / "decisions").glob("*.md")) if page.name != "README.md"]


def on_files(files: Files, config: Any) -> Files:
    """Add the reference pages, and the list of decisions."""
    text = {"reference/index.md": index_page()}
    text |= {f"reference/{room}.md": room_page(room) for room in rooms()}
    listed = "\n".join(f"- [{title(page)}]({page.name})" for page in decisions(Path(config.docs_dir)))
    text["decisions/README.md"] = f"# Decisions\n\nWhy things are as they are, one short page each.\n\n{listed}\n"
    for path, content in text.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository that are not pages are shown as names."""
    return REPOSITORY_FILES.sub(r"](#) (`\1`)", markdown).replace("](#) (", "] (")


def title(page: Path) -> str:
    return page.read_text("utf8").split("\n", 1)[0].lstrip("# ")


# ----------------------------------------------------------------------------------------------------------- reference


def rooms() -> list[str]:
    """The rooms in which the public names of `prunus` live, as the package's stub says, that are in the tree."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text("utf8"))
    found = [
        name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "prunus"
        for name in node.names
    ]
    return [name for name in found if _source(name) is not None]


def _source(room: str) -> Path | None:
    return next((path for path in (PACKAGE / f"{room}.py", PACKAGE / room / "__init__.py") if path.is_file()), None)


def _read(room: str) -> tuple[str, list[str]]:
    """Docstring and `__all__` of a room."""
    source = _source(room)
    assert source is not None
    tree = ast.parse(source.read_text("utf8"))
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    return ast.get_docstring(tree) or "", names


def room_page(room: str) -> str:
    entries = "\n\n".join(f"::: prunus.{room}.{name}" for name in _read(room)[1])
    options = "".join(f"      {name}: false\n" for name in ("members", "show_root_heading", "show_root_toc_entry"))
    return f"# prunus.{room}\n\n::: prunus.{room}\n    options:\n{options}\n{entries}\n"


def index_page() -> str:
    """All public names of the package on one page, each with a link to its room."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text("utf8"))
    rows = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "prunus":
            room = node.module.removeprefix("prunus.")
            if _source(room) is not None and node.names[0].name in _read(room)[1]:
                name = node.names[0].name
                rows.append(f"| `prunus.{name}` | [{node.module}.{name}]({room}.md#{node.module}.{name}) |")
    listed = "\n".join(f"- [prunus.{room}]({room}.md): {_read(room)[0].split(chr(10))[0]}" for room in rooms())
    body = "\n".join(rows)
    return (
        "# Reference\n\nEvery public name, made from the docstrings. Examples in them are run by the tests.\n\n"
        f"| name | described in |\n|---|---|\n{body}\n\n## Rooms\n\n{listed}\n"
    )
