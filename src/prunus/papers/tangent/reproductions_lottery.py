"""Iterative magnitude pruning against pruning at initialisation, by width (Yang and Wang), and fine-tuning."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from prunus.contract import Masks
from prunus.data import load
from prunus.models import load_weights, make
from prunus.papers.reproducing import reproduction
from prunus.papers.runs import digits, first, standardised, summary
from prunus.pruning import find_masks
from prunus.settings.training import FitConfig
from prunus.training.loop import fit
from prunus.training.lottery import imp
from prunus.training.objective import accuracy
from prunus.training.rescaling import recalibrate, rescaled

SOURCE = "Yang and Wang"
# Ledger I-14 d: (width, density) -> (IMP, random, random rescaled); digits, 40 epochs, three seeds.
LEDGER: dict[tuple[int, float], tuple[float, float | None, float | None]] = {
    (32, 1.0): (97.1, None, None), (32, 0.512): (96.7, 95.7, 95.5), (32, 0.210): (95.1, 88.4, 88.4),
    (32, 0.107): (94.5, 49.5, 54.0), (32, 0.044): (90.5, 10.0, 11.8), (128, 1.0): (97.1, None, None),
    (128, 0.512): (97.4, 96.7, 96.5), (128, 0.210): (97.4, 95.6, 96.2), (128, 0.107): (97.1, 92.2, 93.5),
    (128, 0.044): (96.5, 48.5, 73.6),
}  # fmt: skip


def trained_under(
    model: nn.Module,
    masks: Masks,
    pair: tuple[Dataset[Any], Dataset[Any]],
    length: str,
    config: FitConfig,
    rescale: bool = False,
) -> float:
    """Test accuracy in percent of a copy trained with `masks` held, with the factor 1/sqrt(density) where asked."""
    copied = copy.deepcopy(model)
    if rescale:
        with rescaled(copied, masks):
            history = fit(copied, pair[0], length, config, masks, pair[1])
    else:
        history = fit(copied, pair[0], length, config, masks, pair[1])
    return 100.0 * float(history[-1].test_accuracy or 0.0)


def at_initialisation(
    model: nn.Module, sparsity: float, pair: tuple[Dataset[Any], Dataset[Any]], length: str, config: FitConfig
) -> dict[str, float]:
    """Random, random rescaled, SNIP and GraSP masks of one sparsity, each trained from the same weights."""
    uniform = find_masks(model, sparsity, score="random", seed=config.seed)
    found = {
        "random": trained_under(model, uniform, pair, length, config),
        "random rescaled": trained_under(model, uniform, pair, length, config, rescale=True),
    }
    for score in ("snip", "grasp"):
        options = {"score": score, "allocation": "global", "data": pair[0], "seed": config.seed}
        masks = find_masks(model, sparsity, **options)  # type: ignore[arg-type]
        found[score] = trained_under(model, masks, pair, length, config)
    return found


@reproduction(
    "imp-widths-digits", "IMP against random, rescaled, SNIP and GraSP by width (I-14 d)", SOURCE, minutes=6.0
)
def widths_digits(
    seed: int = 0,
    seeds: int = 3,
    widths: Sequence[int] = (32, 128),
    levels: Sequence[int] = (3, 7, 10, 14),
    length: str = "40ep",
) -> list[dict[str, Any]]:
    """Digits, 64-w-w-10, plain SGD, He-normal; 20 % per level, global, rewound to initialisation."""
    pair, rows = digits(), []
    config = FitConfig(lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
    for width in widths:
        found: dict[tuple[int, str], list[float]] = {}
        for number in range(seed + 1, seed + 1 + seeds):
            model = make(f"fc:64-{width}-{width}-10", init="kaiming_normal", seed=number, bias=False)
            own = config.replace(seed=number)
            rounds = imp(model, pair[0], max(levels), 0.2, "0ep", length, pair[1], config=own)
            for level in (0, *levels):
                last = rounds[level].history[-1].test_accuracy
                found.setdefault((level, "imp"), []).append(100.0 * float(last or 0.0))
                if level:
                    for name, value in at_initialisation(
                        model, rounds[level].masks.sparsity, pair, length, own
                    ).items():
                        found.setdefault((level, name), []).append(value)
        for (level, name), values in found.items():
            density = round(0.8**level, 3) if level else 1.0
            known = dict(zip(("imp", "random", "random rescaled"), LEDGER.get((width, density), ())))
            rows.append(
                {"width": width, "density": density, "method": name, **summary(values), "ledger": known.get(name)}
            )
    return rows


@reproduction(
    "imp-mnist-2x2048", "Figure 4 on MNIST with 2 x 2048, shortened",
    f"{SOURCE}, figure 4 at its full width; reduced: 6,000 of 60,000 images, 3 epochs of 40, one run of two",
    minutes=12.0, needs=("mnist",),
)  # fmt: skip
def mnist_wide(
    seed: int = 0, folder: Path | None = None, images: int = 6000, length: str = "3ep", width: float = 1.0
) -> list[dict[str, Any]]:
    """Three of 40 epochs on a tenth of the images, densities .5, .25 and .125. The figure has no printed numbers."""
    pair = standardised(first(load("mnist", folder=folder), images), load("mnist", split="test", folder=folder))
    config = FitConfig(lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch_size=128, seed=seed)
    model = make("fc-2x2048", width=width, init="kaiming_normal", seed=seed)
    rows: list[dict[str, Any]] = []
    for level in imp(model, pair[0], 3, 0.5, "0ep", length, pair[1], config=config):
        last = 100.0 * float(level.history[-1].test_accuracy or 0.0)
        name = "imp" if level.index else "dense"
        rows.append({"density": level.density, "method": name, "ours": round(last, 2)})
        if level.index:
            others = at_initialisation(model, level.masks.sparsity, pair, length, config)
            rows += [{"density": level.density, "method": n, "ours": round(v, 2)} for n, v in others.items()]
    return [row | {"published": "figure without numbers"} for row in rows]


@reproduction(
    "finetune-resnet20", "The trained ResNet-20 pruned to 80 % and 90 %, fine-tuned for two epochs",
    "Yao et al. 2019", minutes=70.0, needs=("cifar10", "resnet-cifar10"),
)  # fmt: skip
def finetune_resnet20(
    seed: int = 0,
    folder: Path | None = None,
    images: int | None = None,
    length: str = "2ep",
    cases: Sequence[tuple[float, str]] = (
        (0.8, "unstructured"),
        (0.8, "balanced:16"),
        (0.9, "unstructured"),
        (0.9, "balanced:16"),
    ),
) -> list[dict[str, Any]]:
    """Magnitude masks, batch norm recalibrated, then two epochs at a small rate with the masks held."""
    from prunus.data.files import data_folder

    place = data_folder(folder, "The trained ResNet-20", "resnet-cifar10/")
    (weights,) = sorted((place / "resnet-cifar10").glob("resnet20*.th"))[:1]
    train, test = load("cifar10", folder=folder), load("cifar10", split="test", folder=folder)
    part = train if images is None else first(train, images)
    dense = make("resnet20")
    load_weights(dense, str(weights))
    before = accuracy(dense.eval(), test)
    rows = []
    for sparsity, pattern in cases:
        model = copy.deepcopy(dense)
        masks = find_masks(model, sparsity, pattern=pattern, exclude=("linear*",))
        masks.apply_(model)
        once = accuracy(model, test)
        recalibrate(model, train)
        settled = accuracy(model, test)
        config = FitConfig(
            lr=0.01, weight_decay=1e-4, schedule="cosine-epoch", batch_size=128, augment="crop-flip", seed=seed
        )
        fit(model, part, length, config, masks)
        after = accuracy(model.eval(), test)
        row = {"sparsity": round(masks.sparsity, 4), "pattern": pattern, "dense": before, "pruned": once}
        rows.append(row | {"recalibrated": settled, "fine-tuned": after})
    return [
        {k: round(100 * v, 2) if isinstance(v, float) and k != "sparsity" else v for k, v in r.items()} for r in rows
    ]
