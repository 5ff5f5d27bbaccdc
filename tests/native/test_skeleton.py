"""The skeleton in the README of native/ compiles, and its levels agree."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "src" / "prunus" / "native"
MAIN = """
#include <cstdio>
#include "choose.h"
int main() {
    float x[11], y[11], z[11];
    for (int i = 0; i < 11; ++i) x[i] = 0.3f * float(i);
    prunus::skeleton::kernels().scale(x, 11, 1.7f, y);
    prunus::skeleton::portable_kernels.scale(x, 11, 1.7f, z);
    for (int i = 0; i < 11; ++i)
        if (y[i] != z[i] || y[i] != x[i] * 1.7f) return 1;
    std::puts(prunus::skeleton::kernels().name);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_skeleton_compiles_and_its_levels_agree(tmp_path: Path) -> None:
    text = (NATIVE / "README.md").read_text("utf8")
    files = dict(re.findall(r"^`(\w+\.\w+)`,[^\n]*\n\n```cpp\n(.*?)```", text, re.M | re.S))
    assert set(files) == {"scale.h", "body.h", "portable.cpp", "avx2.cpp", "choose.h"}
    for name, code in {**files, "main.cpp": MAIN}.items():
        (tmp_path / name).write_text(code)
    x86 = platform.machine() in ("x86_64", "AMD64")
    flags = {"avx2.cpp": ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"], "portable.cpp": [], "main.cpp": []}
    for name in flags if x86 else ("portable.cpp", "main.cpp"):
        common = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", f"-I{NATIVE}", *(["-DPRUNUS_X86=1"] if x86 else [])]
        subprocess.run([*common, *flags[name], "-c", name], cwd=tmp_path, check=True)
    subprocess.run(["g++", *(str(part) for part in tmp_path.glob("*.o")), "-o", "try"], cwd=tmp_path, check=True)
    for level in ("portable", "avx2"):
        run = subprocess.run(
            [tmp_path / "try"], env={**os.environ, "PRUNUS_CPU": level}, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() in ("portable", level)
