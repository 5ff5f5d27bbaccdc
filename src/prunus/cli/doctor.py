"""`prunus doctor`: what is installed, what the processor can do, and which kernels run."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from prunus.cli.options import Json

DEVELOPERS = ("test", "check", "docs", "wheel")
"""Extras for working on prunus itself: a line each."""


def doctor(*, json: Json = False) -> None:
    """Say which versions, processor instructions and kernels run here, and what is missing.

    Example: `prunus doctor --json`
    """
    from prunus.cli.output import console, print_json, print_table

    record = examine()
    if json:
        print_json(record)
        return
    rows = [["prunus", record["prunus"]], ["python", record["python"]], ["processor", record["processor"]]]
    rows += [[name, version] for name, version in record["packages"].items()]
    rows += [[f"kernels {name}", level] for name, level in record["kernels"].items()]
    for extra, packages in record["extras"].items():
        if extra in DEVELOPERS:
            missing = [name for name, version in packages.items() if version is None]
            rows.append(
                [f"to work on prunus (extra {extra})", f"lacks {', '.join(missing)}" if missing else "complete"]
            )
        else:
            rows += [[f"{name} (extra {extra})", version or "not installed"] for name, version in packages.items()]
    rows += [["data folder", record["data"]]]
    print_table(["what", "here"], rows, left=(0, 1))
    for line in record["remarks"]:
        console().print(line)


def examine() -> dict[str, Any]:
    """The same as a record."""
    from prunus import __version__, native

    kernels, required = native.status(), requirements()
    remarks = []
    if any("not built" in level for level in kernels.values()):
        remarks.append("Some kernels were not built: install a C++ compiler and install prunus again to get them.")
    flags = _flags()
    if "avx2" in kernels.values() and "avx512f" not in flags:
        remarks.append("This processor has no AVX-512; the AVX2 kernels run.")
    return {
        "prunus": __version__,
        "python": platform.python_version(),
        "processor": f"{_processor()}, {os.cpu_count()} cores, {' '.join(flags) or 'no vector instructions known'}",
        "packages": required.get("", {}),
        "extras": {extra: packages for extra, packages in required.items() if extra},
        "kernels": {name.removeprefix("_"): level for name, level in kernels.items()},
        "data": os.environ.get("PRUNUS_DATA") or "PRUNUS_DATA is not set; digits travels with the package",
        "remarks": remarks,
    }


def requirements() -> dict[str, dict[str, str | None]]:
    """Extra -> package -> installed version, as the installed package declares them; the core is the extra ""."""
    found: dict[str, dict[str, str | None]] = {"": {}}
    for line in metadata.requires("prunus") or ():
        name = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
        if name:
            found.setdefault(extra[1] if extra else "", {})[name[0]] = _version(name[0])
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpuinfo(field: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field), "")


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _flags() -> list[str]:
    known = _cpuinfo("flags").split()
    return [flag for flag in ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_int8") if flag in known]
