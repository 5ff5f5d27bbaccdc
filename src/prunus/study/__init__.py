"""Many prunings of a network, kept as they end: grid, store, engines.

    grid = prunus.study.Grid(model=("fc:64-300-100-10",), pattern=("unstructured", "balanced:16"))
    prunus.study.run_study(grid.cells(), Path("runs/digits"))
    prunus.study.Store("runs/digits").rows(["pattern", "sparsity", "accuracy"])

`grid` says what to run, `measure` what is measured, `engines` where, `store` where it is kept, `runner` joins them.
"""

from __future__ import annotations

from prunus.settings.study import Settings
from prunus.study.engines import Engine, Job, LocalEngine, Outcome
from prunus.study.grid import Cell, Grid
from prunus.study.runner import Progress, check_size, estimate, run_study
from prunus.study.store import COLUMNS, Result, Store

__all__ = [
    "COLUMNS",
    "Cell",
    "Engine",
    "Grid",
    "Job",
    "LocalEngine",
    "Outcome",
    "Progress",
    "Result",
    "Settings",
    "Store",
    "check_size",
    "estimate",
    "run_study",
]
