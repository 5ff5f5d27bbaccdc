"""The papers, one folder for each: claims with their printed forms, independent checks, reproductions, plots.

`prunus.theory` is the public name of the index.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

PAPERS = {"closeness": "P", "balanced": "B", "noisy_topk": "N", "tangent": "K", "iterand": "I"}
"""Folder of each paper, and the letter its ledger ids begin with."""

LETTERS = {
    "P": "closeness of pruned networks: Qian and Klabjan, A Probabilistic Approach to Neural Network Pruning",
    "B": "balanced sparsity: Yao et al., Balanced Sparsity for Efficient DNN Inference on GPU, and its appendix",
    "N": "noisy top-k: the kept coordinates of a gradient chosen privately",
    "K": "tangent kernels: Yang and Wang, On the Neural Tangent Kernel Analysis of Randomly Pruned Neural Networks",
    "I": "tickets: Chijiwa et al., Pruning Randomly Initialized Neural Networks with Iterative Randomization",
}
"""What the first letter of an id stands for."""

STATUS = {
    "right": "verified as published",
    "sloppy": "true after an obvious repair",
    "misprint": "the formula as published is wrong",
    "wrong": "the argument fails; a corrected statement is given",
    "added": "not in the paper; derived and checked here",
}
"""What a claim's status means."""


def import_files(prefix: str, papers: Iterable[str] = ()) -> None:
    """Import the files of these papers (all where none is named) whose names begin so: they register themselves."""
    for paper in tuple(papers) or PAPERS:
        folder = importlib.import_module(f"prunus.papers.{paper}").__path__
        for module in pkgutil.iter_modules(folder):
            if module.name.startswith(prefix):
                importlib.import_module(f"prunus.papers.{paper}.{module.name}")
