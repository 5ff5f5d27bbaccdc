"""The AVX-512 source of selection, compiled against SIMDe and run on any processor, against the stable-sort oracle."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from prunus import select
from support import scale
from support.selection import check_banks, check_drop_smallest


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if not all(map(shutil.which, ("cmake", "g++"))) or importlib.util.find_spec("nanobind") is None:
        pytest.skip("needs cmake, g++ and nanobind")
    if not any((Path(root) / "simde/x86/avx512.h").exists() for root in ("/usr/include", "/usr/local/include")):
        pytest.skip("needs the SIMDe headers (Debian: libsimde-dev)")
    source, build = Path(__file__).parent / "emulated_select", tmp_path_factory.mktemp("emulated_select")
    configure = ["cmake", "-S", str(source), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (configure, ["cmake", "--build", str(build), "--parallel", "2"]):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    (library,) = build.glob("_select*.so")
    spec = importlib.util.spec_from_file_location("_select", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.prove
def test_the_avx512_source_drops_what_a_stable_sort_drops(
    emulated: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "load", lambda name: emulated)
    monkeypatch.setattr(select, "_LEVEL", "avx512")
    for seed in range(scale(40, full=2_000)):
        check_drop_smallest(seed, 3_000)
        check_banks(seed, 400)
    for seed in range(scale(5, full=140)):
        check_drop_smallest(seed, 150_000)
