"""The compiled parts: selection, sparse products, double-precision convolution. Pointers in, nothing of torch inside.

Each extension module is optional: where no compiler was found at install time it is absent, `load` returns None, and
the callers use their plain torch path. `PRUNUS_CPU=portable|avx2|avx512` forces an instruction set, and
`PRUNUS_NATIVE=0` switches the extensions off, so that every path can be tested on one machine.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

MODULES = ("_select", "_kernels", "_double")


@functools.cache
def load(name: str) -> ModuleType | None:
    """The extension module `prunus.native.<name>`, or None where it was not built or is switched off."""
    if os.environ.get("PRUNUS_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(f"prunus.native.{name}")
    except ModuleNotFoundError:
        return None


def status() -> dict[str, str]:
    """For each extension module the instruction set that runs, or why none does."""
    if os.environ.get("PRUNUS_NATIVE") == "0":
        return dict.fromkeys(MODULES, "switched off by PRUNUS_NATIVE=0")
    found = {name: load(name) for name in MODULES}
    return {name: module.level() if module else "not built: plain torch runs instead" for name, module in found.items()}
