"""The papers, one folder for each: claims with their printed forms, independent checks, reproductions, plots.

`prunus.theory` is the public name of the index.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

PAPERS = {"closeness": "P", "balanced": "B", "noisy_topk": "N", "tangent": "K", "iterand": "I"}
"""Folder of each paper, and the letter its ledger ids begin with."""


def import_files(prefix: str, papers: Iterable[str] = ()) -> None:
    """Import the files of these papers (all where none is named) whose names begin so: they register themselves."""
    for paper in tuple(papers) or PAPERS:
        folder = importlib.import_module(f"prunus.papers.{paper}").__path__
        for module in pkgutil.iter_modules(folder):
            if module.name.startswith(prefix):
                importlib.import_module(f"prunus.papers.{paper}.{module.name}")
