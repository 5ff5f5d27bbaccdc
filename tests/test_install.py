"""Where no compiler is found the package installs all the same and says so."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {target!r})
import torch, prunus
from prunus.cli import run
assert prunus.__file__.startswith({target!r})
assert prunus.find_masks(torch.nn.Linear(64, 8), 0.75, pattern="balanced:16").sparsity == 0.75
run(["doctor", "--json"])
"""


def test_install_without_a_compiler(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="needs the build backend in this environment")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    environment = {**os.environ, "CXX": "/bin/false", "CC": "/bin/false"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    installed = subprocess.run([*command, str(source)], env=environment, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr[-2000:]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(target=str(target))], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-2000:]
    record = json.loads(result.stdout)
    assert all("not built" in level for level in record["kernels"].values())
    assert any("compiler" in remark for remark in record["remarks"])


def test_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "prunus", "--version"], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stdout.strip() == importlib.metadata.version("prunus")
