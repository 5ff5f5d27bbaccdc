"""The public face: what editors and type checkers see is what runs, and both checkers report mistakes in user code."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import prunus

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "src" / "prunus" / "__init__.pyi"
USER = """\
import torch

import prunus

model = torch.nn.Linear(8, 8)
masks = prunus.find_masks(model, 0.5, pattern="2:4")
sparsity: float = prunus.prune(model, {"*": 0.5}, score="magnitude").sparsity
prunus.find_masks(model, sparcity=0.9)  # wrong keyword
prunus.prune(model, 0.5, paterns="2:4")  # wrong keyword
prunus.find_masks(model, 0.5, exclude=3)  # wrong type
prunus.certify(model, masks, prunus.Ball(radius="one"))  # wrong type
prunus.training.fit(model, [], length=3)  # wrong type
prunus.find_mask(model, 0.5)  # misspelt name
prunus.sparse.explian(model)  # misspelt name
masks.layers[0].kepd  # misspelt name
"""
WRONG = {number for number, line in enumerate(USER.splitlines(), 1) if "#" in line}


def stub_names() -> dict[str, str]:
    """Public name -> module it is imported from, as the stub says."""
    found = {}
    for node in ast.parse(STUB.read_text("utf8")).body:
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                assert name.asname == name.name, f"{name.name} is not exported: write 'import {name.name} as ...'"
                found[name.name] = node.module or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = "prunus"
    return found


def test_the_stub_names_what_run_time_offers() -> None:
    assert set(stub_names()) == set(prunus.__all__) == set(dir(prunus))


@pytest.mark.parametrize("name", sorted(prunus.__all__))
def test_each_name_is_the_object_the_stub_speaks_of(name: str) -> None:
    home = stub_names()[name]
    expected = importlib.import_module(f"prunus.{name}") if name in prunus._ROOMS else None
    if expected is None and name != "__version__":
        expected = getattr(importlib.import_module(home), name)
    assert getattr(prunus, name) is expected or name == "__version__"


def test_a_misspelt_name_is_an_error_with_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"'find_mask'.*find_masks"):
        prunus.find_mask  # noqa: B018


def test_rooms_are_attributes_in_a_fresh_process() -> None:
    rooms = ", ".join(f"prunus.{room}" for room in prunus._ROOMS)
    code = f"import sys, prunus; assert 'torch' not in sys.modules; {rooms}; prunus.theory.claims"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-1000:]


# ------------------------------------------------------------------------------------------------------------ checkers


@cache
def report(checker: str) -> tuple[set[int], dict[str, str]]:
    """The lines of the user's program with an error, and the type each public name has."""
    import tempfile

    revealed = [name for name in sorted(prunus.__all__) if name not in prunus._ROOMS]
    types = "import prunus\n\n" + "\n".join(f"reveal_type(prunus.{name})" for name in revealed) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        user, names = Path(folder) / "user.py", Path(folder) / "names.py"
        user.write_text(USER)
        names.write_text(types)
        lines = _mypy(user, names) if checker == "mypy" else _pyright(user, names)
    wrong = {line for file, line, kind, _ in lines if file == "user.py" and kind == "error"}
    shown = {
        revealed[line - 3]: text
        for file, line, kind, text in lines
        if file == "names.py" and kind in ("note", "information")
    }
    return wrong, shown


def _mypy(*files: Path) -> list[tuple[str, int, str, str]]:
    # The cache of `make check` is used again: torch is not read a second time.
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)], cwd=ROOT, capture_output=True, text=True
    )
    found = re.findall(r"^(\S+?):(\d+): (\w+): (.*)$", run.stdout, re.MULTILINE)
    assert found, run.stderr
    return [(Path(file).name, int(line), kind, text) for file, line, kind, text in found]


def _pyright(*files: Path) -> list[tuple[str, int, str, str]]:
    folder = files[0].parent
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")], "include": ["."]}))
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYRIGHT_PYTHON_GLOBAL_NODE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    try:
        rows = json.loads(run.stdout)["generalDiagnostics"]
    except ValueError:
        pytest.fail(f"pyright did not run: {run.stdout[-500:]} {run.stderr[-500:]}")
    return [
        (Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["severity"], row["message"]) for row in rows
    ]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_in_user_code_are_reported_and_every_name_has_a_type(checker: str) -> None:
    wrong, shown = report(checker)
    assert wrong == WRONG
    assert set(shown) == set(prunus.__all__) - set(prunus._ROOMS)
    untyped = [name for name, text in shown.items() if re.fullmatch(r'.*"?(Any|Unknown)"?', text)]
    assert not untyped
