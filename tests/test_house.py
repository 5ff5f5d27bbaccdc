"""Rules of the house that no linter knows: the underscore, names that occur once, sizes, torch's private functions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
FILES = sorted(SOURCE.rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports, as paths below src; relative imports are not used here."""
    for node in ast.walk(ast.parse(file.read_text("utf8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            module = tuple((node.module or "").split("."))
            for alias in node.names:
                yield (*module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))


def private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_a_file_with_an_underscore_is_imported_from_its_folder_alone() -> None:
    wrong = []
    for file in FILES:
        for path in imports(file):
            for place, part in enumerate(path):
                if path[0] == "prunus" and private(part):
                    folder = SOURCE.joinpath(*path[:place])
                    module = folder.is_dir()
                    if not module or folder not in file.parents:  # a private name, or a private file of another room
                        wrong.append(f"{file.relative_to(SOURCE)} imports {'.'.join(path)}")
    assert not wrong


def test_class_names_occur_once() -> None:
    """Those that begin with an underscore are seen in their own file alone."""
    found = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, ast.ClassDef) and not private(node.name):
                found[node.name].append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_files_and_functions_stay_small() -> None:
    code = [*FILES, *SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
    assert not [file.name for file in code if len(file.read_text("utf8").splitlines()) > 450]
    assert len((SOURCE / "prunus" / "contract.py").read_text("utf8").splitlines()) < 200
    long = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                if (node.end_lineno or 0) - first.lineno >= 80:
                    long.append(f"{file.relative_to(SOURCE)}: {node.name}")
    assert not long


def test_private_functions_of_torch_stand_in_one_file() -> None:
    """`sparse/bench.py` and `sparse/_peers.py` time torch's own private forms as peers; nothing else needs them."""
    pattern = re.compile(r"\btorch(\.\w+)*\._[a-z]\w*|from torch[.\w]* import .*\b_\w|from torch[.\w]*\._\w")
    found = {
        str(file.relative_to(SOURCE / "prunus"))
        for file in FILES
        for line in file.read_text("utf8").splitlines()
        if pattern.search(line) and "getLogger" not in line
    }
    assert found == {"_torch.py", "sparse/bench.py", "sparse/_peers.py"}


def _defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names that a file makes at its top."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def _read(tree: ast.AST, imported: dict[str, str], own: str = "") -> set[tuple[str, str]]:
    """(file of formulas/, name) for everything that a piece of code reads from there."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            found.add((imported[node.value.id].rpartition(".")[2], node.attr))
        elif isinstance(node, ast.Name) and node.id in imported and "." in imported[node.id]:
            module, _, name = imported[node.id].partition(".")
            found.add((module, name))
        elif isinstance(node, ast.Name) and own:
            found.add((own, node.id))
    return found


def _from_formulas(tree: ast.AST) -> dict[str, str]:
    """Names here -> what they are in formulas/: "file" or "file.name"."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prunus.formulas"):
            inside = (node.module or "").removeprefix("prunus.formulas").lstrip(".")
            found |= {alias.asname or alias.name: f"{inside}.{alias.name}".lstrip(".") for alias in node.names}
    return found


def test_formulas_hold_what_rooms_use_and_no_more() -> None:
    """A name in formulas/ serves a room other than papers/, or one that does; the binding to claims serves all."""
    needs: dict[tuple[str, str], set[tuple[str, str]]] = {}
    waiting: set[tuple[str, str]] = set()
    for file in FILES:
        tree, inside = ast.parse(file.read_text("utf8")), file.parent.name == "formulas"
        imported = _from_formulas(tree)
        if inside:
            own = {(file.stem, name): _read(node, imported, file.stem) for name, node in _defined(tree).items()}
            needs |= own
        elif "papers" not in file.parts:
            waiting |= _read(tree, imported)
    used, direct = set(), {name for name in waiting if name in needs}
    while waiting:
        one = waiting.pop()
        if one not in used:
            used.add(one)
            waiting |= needs.get(one, set())
    spare = {name for name in needs if name not in used and not private(name[1]) and name[0] != "binding"}
    assert not spare
    assert len(direct) >= 30
