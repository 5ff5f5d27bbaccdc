"""The sparse kernels in C++ against double precision, every instruction set; AVX-512 through SIMDe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support import scale


@pytest.mark.prove
def test_every_instruction_set_agrees_with_double_precision() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    script = Path(__file__).parent / "sanitize.sh"
    cases = scale(40, full=3400)
    run = subprocess.run([str(script), "emulate", str(cases)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    levels = [line.split(":")[0] for line in run.stdout.splitlines()]
    assert {"portable", "portable integers"} <= set(levels)
    if Path("/usr/include/simde/x86/avx512.h").exists():
        assert {"avx512", "avx512-vnni integers", "avx-vnni integers"} <= set(levels)


@pytest.mark.prove
def test_the_neon_source_agrees_under_emulation() -> None:
    missing = [name for name in ("aarch64-linux-gnu-g++", "qemu-aarch64") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    script = Path(__file__).parent / "sanitize.sh"
    run = subprocess.run([str(script), "neon", str(scale(10, full=400))], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    levels = {line.split(":")[0] for line in run.stdout.splitlines()}
    assert {"portable", "neon", "portable integers", "neon integers", "portable blocks", "neon blocks"} == levels
