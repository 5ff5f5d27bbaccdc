"""Figures 3 to 8 of Yang and Wang at reduced width: networks pruned at random, rescaled or by IMP, and trained.

The paper trains 160 epochs on CIFAR-10 at base widths of 32 to 128, two runs for each point. Here widths are 4 to 16,
images are averaged to 16 x 16, each network sees some 12,000 of them, once. What can be compared is the order of the
methods and whether the gap to the full network narrows with the width; accuracies cannot, and differences of 2 points
are within the noise of one run on 2,000 test images. The figures have no printed numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch.utils.data import TensorDataset

from prunus.data import load
from prunus.models import make
from prunus.papers.reproducing import reproduction
from prunus.papers.runs import first, standardised
from prunus.papers.tangent.reproductions_lottery import SOURCE, at_initialisation, trained_under
from prunus.pruning import find_masks
from prunus.settings.training import FitConfig
from prunus.training.loop import fit
from prunus.training.lottery import imp

Rows = list[dict[str, Any]]
_NOTE = "figure without numbers; width, images and epochs are reduced here"
_REDUCED = (
    "reduced: 4,000 of 50,000 images, averaged to 16 x 16, 3 epochs of 160 (batch 50, cosine), 2,000 test images, "
    "one run of two, base widths {} in place of {}"
)
# Ledger K-23, shortened: rate and momentum as published.
_CIFAR = FitConfig(lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="cosine-epoch", batch_size=50)
_MNIST = FitConfig(lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch_size=128)


@dataclass(frozen=True)
class Scale:
    """How far a figure is reduced: the zoo's width factors, training images, test images, length, IMP's rounds.

    Each round of IMP removes the fraction `rate` of what is left, over all layers; the other methods keep as much.
    """

    widths: tuple[float, ...]
    images: int = 4000
    tests: int = 2000
    length: str = "3ep"
    rounds: int = 3
    rate: float = 0.7


@lru_cache(maxsize=1)
def small_cifar(folder: Path | None, images: int, tests: int) -> tuple[TensorDataset, TensorDataset]:
    """The first images of CIFAR-10, standardised, two by two pixels averaged to 16 x 16."""
    train, test = load("cifar10", folder=folder), load("cifar10", split="test", folder=folder)
    pair = standardised(first(train, images), first(test, tests))
    one, two = (TensorDataset(F.avg_pool2d(part.tensors[0], 2), part.tensors[1]) for part in pair)
    return one, two


@lru_cache(maxsize=64)
def accuracies(
    name: str, width: float, method: str, scale: Scale, folder: Path | None, seed: int
) -> dict[float, float]:
    """Test accuracy in percent by density, on small CIFAR-10, for "full", "random", "random rescaled" or "imp".

    Remembered, as figures 3, 6, 7 and 8 show the same networks.
    """
    pair, config = small_cifar(folder, scale.images, scale.tests), _CIFAR.replace(seed=seed)
    model = make(name, width=width, seed=seed)
    if method == "full":
        history = fit(model, pair[0], scale.length, config, test=pair[1])
        return {1.0: 100.0 * float(history[-1].test_accuracy or 0.0)}
    if method == "imp":
        levels = imp(model, pair[0], scale.rounds, scale.rate, "0ep", scale.length, pair[1], config=config)
        return {level.density: 100.0 * float(level.history[-1].test_accuracy or 0.0) for level in levels[1:]}
    found = {}
    for number in range(1, scale.rounds + 1):
        # A seed of its own: uniform weights and uniform scores of one seed are the same numbers.
        masks = find_masks(model, 1 - (1 - scale.rate) ** number, score="random", seed=seed + 1000 * number)
        rescale = method == "random rescaled"
        found[1 - masks.sparsity] = trained_under(model, masks, pair, scale.length, config, rescale)
    return found


def compared(name: str, methods: Sequence[str], scale: Scale, folder: Path | None, seed: int) -> Rows:
    """One row for each width, method and density, with the gap to the full network."""
    rows, one = [], replace(scale, widths=())
    for width in scale.widths:
        whole = accuracies(name, width, "full", one, folder, seed)[1.0]
        for method in methods:
            for density, value in accuracies(name, width, method, one, folder, seed).items():
                rows.append(row_of(width, density, method, value, whole))
    return rows


def row_of(width: float, density: float, method: str, value: float, whole: float) -> dict[str, Any]:
    row = {"width factor": width, "density": round(density, 4), "method": method, "ours": round(value, 2)}
    return row | {"full": round(whole, 2), "gap": round(whole - value, 2), "published": _NOTE}


def mean_gaps(rows: Rows) -> dict[float, float]:
    """The gap to the full network by width, averaged over densities and methods."""
    widths = sorted({row["width factor"] for row in rows})
    return {w: statistics.fmean(row["gap"] for row in rows if row["width factor"] == w) for w in widths}


_BY_WIDTH = Scale(widths=(0.25, 0.5, 1.0))  # base widths 4, 8 and 16
_TWO_WIDTHS = Scale(widths=(0.25, 0.5))
_VGG_SCALE = Scale(widths=(0.125, 0.25))  # base widths 8 and 16
_MNIST_SCALE = Scale((0.125,), 6000, 10_000, "8ep")
_ALL = ("random", "random rescaled", "imp")


@reproduction(
    "tangent-figure-3", "Random pruning without rescaling, ResNet-20 of three widths (reduced: 4, 8, 16 on 16 x 16)",
    f"{SOURCE}, figure 3; {_REDUCED.format('4, 8 and 16', '32, 64 and 128')}", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_3(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: the gap to the full network narrows with the width, to 1 point at width 128 and sparsity .866."""
    return compared("resnet20", ("random",), scale, folder, seed)


@reproduction(
    "tangent-figure-4", "Random, rescaled, IMP, SNIP and GraSP on MNIST (reduced: 2 x 256 of 2 x 2048)",
    f"{SOURCE}, figure 4; reduced: width 256 in place of 2048, 6,000 of 60,000 images, 8 epochs of 40, one run of two. "
    "At its full width, with fewer epochs: imp-mnist-2x2048", minutes=3.0, needs=("mnist",),
)  # fmt: skip
def figure_4(seed: int = 0, folder: Path | None = None, scale: Scale = _MNIST_SCALE) -> Rows:
    """Published: curves of the five methods by density, without a claim in words."""
    train, test = load("mnist", folder=folder), load("mnist", split="test", folder=folder)
    pair = standardised(first(train, scale.images), first(test, scale.tests))
    config = _MNIST.replace(seed=seed)
    rows: Rows = []
    for width in scale.widths:
        model = make("fc-2x2048", width=width, init="kaiming_normal", seed=seed)
        levels = imp(model, pair[0], scale.rounds, scale.rate, "0ep", scale.length, pair[1], config=config)
        reached = [100.0 * float(level.history[-1].test_accuracy or 0.0) for level in levels]
        for level, value in zip(levels[1:], reached[1:]):
            others = at_initialisation(model, level.masks.sparsity, pair, scale.length, config)
            for method, found in {"imp": value, **others}.items():
                rows.append(row_of(width, round(level.density, 4), method, found, reached[0]))
    return rows


@reproduction(
    "tangent-figure-5", "Random, rescaled and IMP, VGG-11 of two widths (reduced: 8 and 16 on 16 x 16)",
    f"{SOURCE}, figure 5; {_REDUCED.format('8 and 16', '64 and 128')}", minutes=3.0, needs=("cifar10",),
)  # fmt: skip
def figure_5(seed: int = 0, folder: Path | None = None, scale: Scale = _VGG_SCALE) -> Rows:
    """Published: curves by density at widths 64 and 128, similar to those of figure 3."""
    return compared("vgg11", _ALL, scale, folder, seed)


@reproduction(
    "tangent-figure-6", "Random, rescaled and IMP, ResNet-20 of two widths (reduced: 4 and 8 on 16 x 16)",
    f"{SOURCE}, figure 6; {_REDUCED.format('4 and 8', '32, 64 and 128')}", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_6(seed: int = 0, folder: Path | None = None, scale: Scale = _TWO_WIDTHS) -> Rows:
    """Published: curves by density at widths 32, 64 and 128."""
    return compared("resnet20", _ALL, scale, folder, seed)


@reproduction(
    "tangent-figure-7", "Gap of random pruning with rescaling, ResNet-20 of three widths (reduced: 4, 8, 16)",
    f"{SOURCE}, figure 7; {_REDUCED.format('4, 8 and 16', '32, 64 and 128')}", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_7(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: at one density, the gap to the full network narrows with the width."""
    return compared("resnet20", ("random rescaled",), scale, folder, seed)


@reproduction(
    "tangent-figure-8", "Gap of IMP, ResNet-20 of three widths (reduced: 4, 8, 16 on 16 x 16)",
    f"{SOURCE}, figure 8; {_REDUCED.format('4, 8 and 16', '32, 64 and 128')}", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_8(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: at one density, the gap to the full network narrows with the width."""
    return compared("resnet20", ("imp",), scale, folder, seed)
