"""The sparse kernels in C++ against double precision and whole numbers, every instruction set: AVX-512 through SIMDe,
NEON under qemu, and all of x86 under the sanitizers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.evidence import FOLDER, record

from support import PROVING, only_when_proving, scale

NOTE = (
    "Random shapes, masks, values and scales through every kernel. Integer products and runs of convolutions equal sums"
    " of whole numbers bit for bit, for 1 and 3 threads; floats are within 1e-5 of the sum of magnitudes of double"
    " precision. Sanitizers: address (with leaks) and undefined behaviour; one finding ends the run. AVX-512 and VNNI"
    " run through SIMDe, NEON under qemu-user."
)
NEON = ("aarch64-linux-gnu-g++", "qemu-aarch64")
EMULATED = {"avx512", "avx512-vnni integers", "avx-vnni integers"}


def check(mode: str, cases: int) -> dict[str, str]:
    """What held, by instruction set."""
    script = Path(__file__).parent / "sanitize.sh"
    run = subprocess.run([str(script), mode, str(cases)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return dict(line.split(": ", 1) for line in run.stdout.splitlines())


@pytest.mark.prove
def test_every_instruction_set_agrees_with_double_precision() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    levels = check("emulate", scale(12, full=2000))
    assert {"portable", "portable integers"} <= set(levels)
    if Path("/usr/include/simde/x86/avx512.h").exists():
        assert set(levels) >= EMULATED
    if PROVING:
        keep("plain", levels)


@pytest.mark.prove
@only_when_proving
def test_the_neon_source_agrees_under_emulation() -> None:
    missing = [name for name in NEON if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    levels = check("neon", 100)
    assert set(levels) == {f"{name}{what}" for name in ("portable", "neon") for what in ("", " integers", " blocks")}
    keep("aarch64", levels)


@pytest.mark.prove
@only_when_proving
def test_the_sanitizers_find_nothing() -> None:
    keep("sanitizers", check("sanitize", 300))


def keep(build: str, levels: dict[str, str]) -> None:
    """These rows in the place of the build's earlier ones."""
    path = FOLDER / "native-checks.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in rows if row["build"] != build]
    rows += [{"build": build, "kernels": name, "held": held} for name, held in levels.items()]
    record("native-checks", rows, NOTE)
