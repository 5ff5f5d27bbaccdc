"""Iterative magnitude pruning with rewinding (ledger I-6), and random tickets of the same density to compare with."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from prunus.contract import Duration, Masks, whole
from prunus.errors import BadInput, UnknownName
from prunus.layers import load_state_tensors, state_tensors
from prunus.pruning import find_masks
from prunus.select import drop_smallest
from prunus.settings.training import FitConfig
from prunus.training.batches import derive, generator
from prunus.training.history import History
from prunus.training.loop import Run, require_filled

CONTROLS = ("shuffle-layers", "shuffle-global", "reinitialise")
PLANNED = ("certified", "statistical")
REWOUND = ("weights", "rate")


@dataclass(frozen=True)
class ImpOptions:
    """What else decides the levels of `imp`.

    Attributes:
        allocation: Remove the smallest weights over all layers ("global") or in each layer ("uniform").
        exclude: Names and globs that are never pruned.
        controls: Trained beside each level at the same density: masks shuffled inside each layer ("shuffle-layers")
            or over all ("shuffle-global"), or the same masks with each layer's initial weights permuted
            ("reinitialise").
        domain: The inputs on which a round's error is bounded. For fraction="certified" a `prunus.Ball`, `Box` or
            `Samples`; for "statistical" the test data unless given.
        error: How far the pruned network of a round may be from the trained one.
        rewound: What goes back in time after a round: the "weights" and the learning rate with them, or the "rate"
            alone, while the kept weights stay as they were trained (Renda et al. 2020).

    Example:
        >>> prunus.training.ImpOptions(controls=("shuffle-layers",)).allocation
        'global'
    """

    allocation: str = "global"
    exclude: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    domain: Any = None
    error: float | None = None
    rewound: str = "weights"

    def __post_init__(self) -> None:
        if self.rewound not in REWOUND:
            raise UnknownName("thing to rewind", self.rewound, REWOUND)
        if self.allocation not in ("global", "uniform"):
            raise UnknownName("allocation for iterative pruning", self.allocation, ("global", "uniform"))
        for control in self.controls:
            if control not in CONTROLS:
                raise UnknownName("control", control, CONTROLS)


@dataclass
class Level:
    """One round of iterative magnitude pruning.

    Attributes:
        index: Number of the round; 0 is dense.
        model: The trained model, with zeros in place.
        masks: Its masks.
        history: Its records.
        controls: The records of the controls, by name.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
        >>> level = prunus.training.imp(prunus.models.make("fc:8-16-4", seed=0), data, 1, 0.5, length="1ep")[1]
        >>> level.index, level.density
        (1, 0.5)
    """

    index: int
    model: nn.Module
    masks: Masks
    history: History
    controls: dict[str, History] = field(default_factory=dict)

    @property
    def density(self) -> float:
        """The part of the prunable weights that is left."""
        return 1.0 - self.masks.sparsity

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        last = self.history[-1]
        found: dict[str, Any] = {"level": self.index, "density": self.density, "loss": last.loss}
        found |= {"accuracy": last.accuracy, "test_accuracy": last.test_accuracy}
        return found | {name: history[-1].test_accuracy for name, history in self.controls.items()}


def imp(
    model: nn.Module,
    data: Dataset[Any],
    rounds: int = 9,
    fraction: float | str = 0.2,
    rewind: str | Duration = "0ep",
    length: str | Duration = "10ep",
    test: Dataset[Any] | None = None,
    *,
    config: FitConfig | None = None,
    options: ImpOptions | None = None,
) -> list[Level]:
    """Iterative magnitude pruning: train, remove the smallest weights, rewind the rest, and again.

    Level 0 is dense; each of the `rounds` removes round(`fraction` x what is left), ties by position, and its masks lie
    inside the ones before. Training goes from the rewinding point to `length` on the schedule of the whole run, with a
    fresh optimizer. With `config.folder` every level keeps its own checkpoints, and `config.resume` goes on where it
    stopped.

    Args:
        model: Any module; it is not touched.
        data: A data set of (input, label) pairs.
        rounds: How often weights are removed.
        fraction: The part of what is left that a round removes; "certified" or "statistical" lets `prunus.plan`
            choose it.
        rewind: The time whose weights the kept ones go back to, and the learning rate with them; see
            `ImpOptions.rewound`.
        length: How long a dense run takes, such as "20ep" or "5000it".
        test: A data set to measure on after every epoch.
        config: How to train.
        options: The allocation, what is never pruned, what is rewound, controls, the error allowed in a round.

    Returns:
        One `Level` for each training, the dense one first.

    Raises:
        BadInput: The rounds or the fraction lie outside their range, or "certified" lacks a domain or an error.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
        >>> levels = prunus.training.imp(prunus.models.make("fc:8-16-4", seed=0), data, 2, 0.5, length="1ep")
        >>> [level.density for level in levels]
        [1.0, 0.5, 0.25]
    """
    config, options = config or FitConfig(), options or ImpOptions()
    _check(rounds, fraction, options)
    job = _Job(model, data, length, test, config, options, fraction)
    job.rewind_to(rewind)
    masks = find_masks(model, 0.0, exclude=options.exclude)
    levels: list[Level] = []
    for index in range(rounds + 1):
        start = state_tensors(levels[-1].model) if levels and options.rewound == "rate" else None
        trained, history = job.train(f"level-{index:02d}", masks, start)
        controls = {name: job.control(name, index, masks) for name in options.controls if index}
        levels.append(Level(index, trained, masks, history, controls))
        if index < rounds:
            masks = job.smaller(trained, masks)
    return levels


def _check(rounds: int, fraction: float | str, options: ImpOptions) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
        raise BadInput(f"rounds is {rounds!r}; it counts the prunings and must be a whole number of at least 0.")
    if isinstance(fraction, str):
        if fraction not in PLANNED:
            raise UnknownName("way to choose the fraction", fraction, PLANNED)
        if options.error is None or (options.domain is None and fraction == "certified"):
            raise BadInput(
                f"fraction={fraction!r} needs the inputs and the error that are allowed: give "
                "ImpOptions(domain=prunus.Ball(1.0), error=0.1)."
            )
    elif not 0.0 < fraction < 1.0:
        raise BadInput(f"fraction is {fraction!r}; the part removed in a round must lie in (0, 1).")


@dataclass
class _Job:
    """What all levels of one call share."""

    model: nn.Module
    data: Dataset[Any]
    length: str | Duration
    test: Dataset[Any] | None
    config: FitConfig
    options: ImpOptions
    fraction: float | str
    start: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)

    def _config(self, place: str) -> FitConfig:
        if self.config.folder is None:
            return self.config
        return self.config.replace(folder=Path(self.config.folder) / place)

    def rewind_to(self, point: str | Duration) -> None:
        """Train the dense network up to the rewinding point and remember its state."""
        copied = copy.deepcopy(self.model)
        config = self._config("rewind").replace(ema=0.0)  # the weights of that time, not their mean: training goes on
        run = Run(copied, self.data, self.length, config, about={"part": "rewind", "to": str(point)})
        self.start = Duration.parse(point).steps(run.per_epoch)
        if self.start >= run.total:
            raise BadInput(f"rewind={str(point)!r} lies at or after the end of training ({self.length}): choose less.")
        run.stop = self.start
        run.train()  # no step at 0ep: but the state is kept, so that a resumed call rewinds to it too
        self.state = {name: value.clone() for name, value in state_tensors(copied).items()}

    def train(self, place: str, masks: Masks, state: Mapping[str, Tensor] | None = None) -> tuple[nn.Module, History]:
        """A copy rewound and trained under `masks`."""
        copied = copy.deepcopy(self.model)
        load_state_tensors(copied, state or self.state)
        about: dict[str, Any] = {"part": place.split("-")[0], "fraction": self.fraction}
        about |= {"allocation": self.options.allocation, "exclude": list(self.options.exclude)}
        about["error"] = self.options.error
        about |= {"rewound": "rate"} if self.options.rewound == "rate" else {}
        run = Run(copied, self.data, self.length, self._config(place), masks, self.test, start=self.start, about=about)
        return copied, run.train()

    def smaller(self, trained: nn.Module, masks: Masks) -> Masks:
        """The masks of the next level, inside `masks`."""
        if isinstance(self.fraction, str):
            return self._planned(trained, masks)
        named = masks.parameters_of(trained).items()
        sizes = {name: p.detach().abs().masked_fill(~masks[name], -1.0) for name, p in named}
        rows = {row.name: row for row in masks.layers}
        if self.options.allocation == "uniform":
            counts = {n: row.total - row.kept + whole(self.fraction, row.kept) for n, row in rows.items()}
            found = {n: drop_smallest(sizes[n], counts[n]) for n in sizes}
        else:
            kept = sum(row.kept for row in rows.values())
            gone = sum(row.total for row in rows.values()) - kept
            found = dict(zip(sizes, drop_smallest(list(sizes.values()), gone + whole(self.fraction, kept))))
        require_filled(found)
        return Masks.adopt(found, {"from": "imp", "fraction": self.fraction})

    def _planned(self, trained: nn.Module, masks: Masks) -> Masks:
        """What `prunus.plan` allows for the trained network of this round; what is gone stays gone."""
        # By name: certificates and training stand side by side, and only this option joins them.
        certificates = importlib.import_module("prunus.certificates")
        domain, training = self.options.domain, trained.training
        if domain is None:
            domain = certificates.OnData(self.test if self.test is not None else self.data)
        trained.eval()
        found = certificates.plan(trained, domain, self.options.error, exclude=self.options.exclude)
        trained.train(training)
        joint = {name: mask & found.masks[name] if name in found.masks else mask for name, mask in masks.items()}
        require_filled(joint)
        return Masks.adopt(joint, {"from": "imp", "fraction": self.fraction, "error": self.options.error})

    def control(self, name: str, index: int, masks: Masks) -> History:
        """The history of a random ticket of the same density."""
        source = generator(self.config.seed, "control", name, index)
        state: Mapping[str, Tensor] | None = None
        if name == "reinitialise":
            state = {key: _permuted(value, source) if key in masks else value for key, value in self.state.items()}
        elif name == "shuffle-layers":
            masks = Masks.adopt({key: _permuted(mask, source) for key, mask in masks.items()})
        else:
            flat = _permuted(torch.cat([mask.reshape(-1) for mask in masks.values()]), source)
            parts = flat.split([mask.numel() for mask in masks.values()])
            masks = Masks.adopt({key: part.view_as(masks[key]).clone() for key, part in zip(masks, parts)})
        return self.train(f"control-{index:02d}-{name}", masks, state)[1]


def _permuted(tensor: Tensor, source: torch.Generator) -> Tensor:
    order = torch.randperm(tensor.numel(), generator=source).to(tensor.device)
    return tensor.reshape(-1)[order].reshape(tensor.shape)


def random_ticket(model: nn.Module, sparsity: float, seed: int = 0, exclude: tuple[str, ...] = ()) -> Masks:
    """Uniformly random masks of exactly this sparsity in every layer: pruning at initialisation without a score.

    Args:
        model: Any module; it is not touched.
        sparsity: Fraction of zeros.
        seed: Seed of the draw.
        exclude: Names and globs that are never pruned.

    Returns:
        The masks.

    Example:
        >>> prunus.training.random_ticket(prunus.models.make("fc:8-16-4", seed=0), 0.75).sparsity
        0.75
    """
    return find_masks(model, sparsity, score="random", exclude=exclude, seed=derive(seed, "random ticket") >> 32)
