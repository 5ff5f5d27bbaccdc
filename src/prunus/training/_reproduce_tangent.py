"""Figures 3 to 8 of Yang and Wang at reduced width: networks pruned at random, rescaled or by IMP, and trained.

The paper trains 160 epochs on CIFAR-10 at base widths of 32 to 128. Here widths are 4 to 16, images are halved to
16 x 16, and each network sees some 15,000 of them: what can be compared is the order of the curves and whether the gap
to the full network narrows with the width, not accuracies. The figures have no printed numbers.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from prunus.contract import reproduction
from prunus.data import load
from prunus.models import make
from prunus.pruning import find_masks
from prunus.training._reproduce_lottery import SOURCE, at_initialisation, trained_under
from prunus.training._reproduce_tickets import first, standardised
from prunus.training.loop import fit
from prunus.training.lottery import imp
from prunus.training.settings import FitConfig

Rows = list[dict[str, Any]]
Pair = tuple[Dataset, Dataset]
_NOTE = "figure without numbers; width, images and epochs are reduced here"
# Ledger K-23, shortened: rate and momentum as published.
_CIFAR = FitConfig(lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="cosine", batch_size=50)
_MNIST = FitConfig(lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch_size=128)


@dataclass(frozen=True)
class Scale:
    """How far a figure is reduced: the zoo's width factors, training images, test images, length, IMP's rounds.

    Each round of IMP halves the density, and the other methods are trained at the densities that it reaches.
    """

    widths: Sequence[float]
    images: int = 5000
    tests: int = 2000
    length: str = "3ep"
    rounds: int = 3


def small_cifar(folder: Path | None, scale: Scale) -> Pair:
    """The first images of CIFAR-10, standardised, two by two pixels averaged to 16 x 16."""
    train, test = load("cifar10", folder=folder), load("cifar10", split="test", folder=folder)
    pair = standardised(first(train, scale.images), first(test, scale.tests))
    one, two = (TensorDataset(F.avg_pool2d(part.tensors[0], 2), part.tensors[1]) for part in pair)
    return one, two


def full(model: nn.Module, pair: Pair, scale: Scale, config: FitConfig) -> float:
    """Test accuracy in percent of the network without masks."""
    history = fit(copy.deepcopy(model), pair[0], scale.length, config, test=pair[1])
    return 100.0 * float(history[-1].test_accuracy or 0.0)


def compared(
    build: Callable[[float], nn.Module], pair: Pair, scale: Scale, methods: Sequence[str], config: FitConfig
) -> Iterator[dict[str, Any]]:
    """One row for each width, density and method of "random", "random rescaled" and "imp", with the gap to the full."""
    for width in scale.widths:
        model = build(width)
        if "imp" in methods:
            levels = imp(model, pair[0], scale.rounds, 0.5, "0ep", scale.length, pair[1], config=config)
            ours = {level.density: 100.0 * float(level.history[-1].test_accuracy or 0.0) for level in levels}
            whole = ours.pop(levels[0].density)
        else:
            ours, whole = {}, full(model, pair, scale, config)
        for number in range(1, scale.rounds + 1):
            density = 0.5**number
            masks = find_masks(model, 1 - density, score="random", seed=config.seed)
            for method in methods:
                if method == "imp":
                    value = list(ours.values())[number - 1]
                else:
                    value = trained_under(model, masks, pair, scale.length, config, rescale=method == "random rescaled")
                yield row_of(width, density, method, value, whole)


def row_of(width: float, density: float, method: str, value: float, whole: float) -> dict[str, Any]:
    row = {"width factor": width, "density": density, "method": method, "ours": round(value, 2)}
    return row | {"full": round(whole, 2), "gap": round(whole - value, 2), "published": _NOTE}


def mean_gaps(rows: Rows) -> dict[float, float]:
    """The gap to the full network by width, averaged over densities and methods."""
    widths = sorted({row["width factor"] for row in rows})
    return {w: statistics.fmean(row["gap"] for row in rows if row["width factor"] == w) for w in widths}


def _resnet(scale: Scale, methods: Sequence[str], folder: Path | None, seed: int) -> Rows:
    def build(width: float) -> nn.Module:
        return make("resnet20", width=width, seed=seed)

    return list(compared(build, small_cifar(folder, scale), scale, methods, _CIFAR.replace(seed=seed)))


_BY_WIDTH = Scale(widths=(0.25, 0.5, 1.0))  # base widths 4, 8 and 16
_TWO_WIDTHS = Scale(widths=(0.25, 0.5))
_VGG_SCALE = Scale(widths=(0.125, 0.25))  # base widths 8 and 16
_MNIST_SCALE = Scale((0.125,), 6000, 10_000, "8ep")


@reproduction(
    "tangent-figure-3", "Random pruning without rescaling, ResNet-20 of three widths (reduced: 4, 8, 16 on 16 x 16)",
    f"{SOURCE}, figure 3", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_3(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: the gap to the full network narrows with the width, to 1 point at width 128 and sparsity .866."""
    return _resnet(scale, ("random",), folder, seed)


@reproduction(
    "tangent-figure-4", "Random, rescaled, IMP, SNIP and GraSP on MNIST (reduced: 2 x 256 of 2 x 2048)",
    f"{SOURCE}, figure 4; at its full width, shortened: imp-mnist-2x2048", minutes=3.0, needs=("mnist",),
)  # fmt: skip
def figure_4(seed: int = 0, folder: Path | None = None, scale: Scale = _MNIST_SCALE) -> Rows:
    """Published: curves of the five methods by density, without a claim in words."""
    train, test = load("mnist", folder=folder), load("mnist", split="test", folder=folder)
    pair = standardised(first(train, scale.images), first(test, scale.tests))
    config = _MNIST.replace(seed=seed)
    rows: Rows = []
    for width in scale.widths:
        model = make("fc-2x2048", width=width, init="kaiming_normal", seed=seed)
        levels = imp(model, pair[0], scale.rounds, 0.5, "0ep", scale.length, pair[1], config=config)
        reached = [100.0 * float(level.history[-1].test_accuracy or 0.0) for level in levels]
        for level, value in zip(levels[1:], reached[1:]):
            others = at_initialisation(model, level.masks.sparsity, pair, scale.length, config)
            for method, found in {"imp": value, **others}.items():
                rows.append(row_of(width, round(level.density, 4), method, found, reached[0]))
    return rows


@reproduction(
    "tangent-figure-5", "Random, rescaled and IMP, VGG-11 of two widths (reduced: 8 and 16 on 16 x 16)",
    f"{SOURCE}, figure 5", minutes=3.0, needs=("cifar10",),
)  # fmt: skip
def figure_5(seed: int = 0, folder: Path | None = None, scale: Scale = _VGG_SCALE) -> Rows:
    """Published: curves by density at widths 64 and 128, similar to those of figure 3."""

    def build(width: float) -> nn.Module:
        return make("vgg11", width=width, seed=seed)

    methods = ("random", "random rescaled", "imp")
    return list(compared(build, small_cifar(folder, scale), scale, methods, _CIFAR.replace(seed=seed)))


@reproduction(
    "tangent-figure-6", "Random, rescaled and IMP, ResNet-20 of two widths (reduced: 4 and 8 on 16 x 16)",
    f"{SOURCE}, figure 6", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_6(seed: int = 0, folder: Path | None = None, scale: Scale = _TWO_WIDTHS) -> Rows:
    """Published: curves by density at widths 32, 64 and 128."""
    return _resnet(scale, ("random", "random rescaled", "imp"), folder, seed)


@reproduction(
    "tangent-figure-7", "Gap of random pruning with rescaling, ResNet-20 of three widths (reduced: 4, 8, 16)",
    f"{SOURCE}, figure 7", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_7(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: at one density, the gap to the full network narrows with the width."""
    return _resnet(scale, ("random rescaled",), folder, seed)


@reproduction(
    "tangent-figure-8", "Gap of IMP, ResNet-20 of three widths (reduced: 4, 8, 16 on 16 x 16)",
    f"{SOURCE}, figure 8", minutes=4.0, needs=("cifar10",),
)  # fmt: skip
def figure_8(seed: int = 0, folder: Path | None = None, scale: Scale = _BY_WIDTH) -> Rows:
    """Published: at one density, the gap to the full network narrows with the width."""
    return _resnet(scale, ("imp",), folder, seed)
