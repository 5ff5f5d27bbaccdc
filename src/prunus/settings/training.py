"""How a network is trained, as plain frozen data: the optimizer, the learning rate over time, what is kept on disk."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.duration import Duration
from prunus.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.nn import Module
else:  # flags are made from the annotations, without torch
    Generator = Tensor = Module = Any

OPTIMIZERS = ("sgd", "adam", "adamw")
SHAPES = ("constant", "cosine", "step")
SCHEDULES = (*SHAPES, "warmup", "cosine-epoch")
PRECISIONS = ("full", "bf16")
GROUPED = ("lr", "weight_decay")
LOSSES = ("auto", "cross_entropy", "binary", "mse")


@functools.lru_cache(maxsize=256)
def _steps(text: str, per_epoch: int) -> int:
    """A duration in steps; asked for at every step, parsed once."""
    return Duration.parse(text).steps(per_epoch)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time: `warmup`, then `shape`, then `cooldown` at a fixed rate.

    Attributes:
        shape: "constant", "step", or "cosine": lr_e = lr (1 + cos(pi e / E)) / 2 with e the step, or the epoch (ledger
            I-2).
        warmup: How long the rate rises linearly to lr, as in "5ep".
        milestones: When "step" multiplies the rate by `factor`, as in "80ep"; without any, at one half and at three
            quarters of the length.
        factor: The factor of "step".
        cooldown: How long the rate stays at `cooldown_lr` at the end.
        cooldown_lr: The rate of the cooldown.
        by: "step" changes the rate of warm-up and cosine at every step; "epoch" after each epoch, as some papers do,
            where the length is given in epochs. A warm-up of one epoch, of a part of one, or in steps rises at every
            step all the same, and the cosine falls with the next epoch.

    Example:
        >>> schedule = prunus.training.Schedule("step", milestones=("2ep",))
        >>> [round(schedule.rate(0.1, step, total=40, per_epoch=10), 3) for step in (0, 19, 20)]
        [0.1, 0.1, 0.01]
    """

    shape: str = "cosine"
    warmup: str = "0ep"
    milestones: tuple[str, ...] = ()
    factor: float = 0.1
    cooldown: str = "0ep"
    cooldown_lr: float = 1e-5
    by: str = "step"

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UnknownName("shape of a schedule", self.shape, SHAPES)
        if self.by not in ("step", "epoch"):
            raise UnknownName("unit of a schedule", self.by, ("step", "epoch"))
        for text in (self.warmup, self.cooldown, *self.milestones):
            Duration.parse(text)
        for name in ("factor", "cooldown_lr"):
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0.0):
                raise BadInput(f"{name} of a schedule is {value!r}; it must be a finite number of at least 0.")

    def rate(self, lr: float, step: int, total: int, per_epoch: int, in_epochs: bool = True) -> float:
        """The learning rate of the step number `step` (from 0) in a run of `total` steps.

        Args:
            lr: the base learning rate.
            step: number of the step.
            total: steps of the run.
            per_epoch: steps of an epoch.
            in_epochs: False lets a schedule by epochs fall at every step all the same.

        Returns:
            The learning rate.
        """
        warm, cool = _steps(self.warmup, per_epoch), _steps(self.cooldown, per_epoch)
        unit = per_epoch if in_epochs and self.by == "epoch" else 1
        if step < warm:
            whole = self.warmup.strip().endswith("ep") and warm > unit and warm % unit == 0
            each = unit if whole else 1  # one epoch alone would have the full rate from the start
            return lr * (step // each + 1) / (warm // each)
        if cool and step >= total - cool:
            return self.cooldown_lr
        if self.shape == "constant":
            return lr
        if self.shape == "step":
            marks = [_steps(text, per_epoch) for text in self.milestones] or [total // 2, 3 * total // 4]
            return lr * self.factor ** sum(step >= mark for mark in marks)
        done, all_ = step // unit - warm // unit, max(1, math.ceil((total - cool) / unit) - warm // unit)
        return 0.5 * lr * (1.0 + math.cos(math.pi * done / all_))


@dataclass(frozen=True)
class FitConfig:
    """Everything about a training run but the model, the data and the length. All fields have working defaults.

    Attributes:
        optimizer: "sgd", "adam" or "adamw".
        lr: Learning rate; 0.1 for sgd and 0.001 for the others unless given.
        momentum: Momentum of sgd.
        nesterov: Whether sgd uses Nesterov's momentum.
        weight_decay: Weight decay.
        schedule: "constant", "cosine" (at every step), "cosine-epoch" (after each epoch), "step", "warmup" (a twentieth
            of the length, then cosine), or a `Schedule`.
        batch_size: Samples in a step.
        accumulate: In how many parts a batch goes through the model; gradients are added up, so that a step is the
            same (but for batch norms) and needs less memory.
        precision: "full", or "bf16": forward passes under autocast, weights and their updates in full.
        groups: Other settings for some parameters: {name or glob: {"lr": ..., "weight_decay": ...}}. The first that
            fits a parameter counts; the schedule scales its rate as it does the others.
        ema: Decay of a running mean of the weights, such as 0.999; it is measured after every epoch and is what the run
            leaves in the model. 0 leaves it out.
        clip: Largest norm of the gradient; None sets no limit.
        loss: "auto" picks cross entropy for class labels, the logistic loss for one output and squares for real labels;
            "cross_entropy", "binary" or "mse"; or a function of (outputs, labels).
        label_smoothing: The part of each label that is spread over all classes while training, in [0, 1).
        spectral_penalty: Weight of twice the sum of squared spectral norms (ledger P-26; 2e-3 is a good one).
        penalty: Any function of the model, added to the loss as it is.
        distill_from: A trained network whose outputs are learnt too: softened scores of classes, or values as they are.
        distill_weight: The share of that network's outputs in the loss.
        temperature: How much those outputs are softened.
        augment: "none", "crop-flip", "resized-crop-flip", or a function of (inputs, generator).
        workers: Processes for data that is slow to read.
        seed: Seed of every random choice.
        folder: Where checkpoints go, or None.
        every: How often a checkpoint is written: "1ep", "500it" or "10min".
        keep: How many checkpoints are kept.
        resume: Go on from the newest checkpoint.
        tensorboard: A folder for TensorBoard's event files.
        progress: Whether to show a live line; None shows it in a terminal.
        callbacks: `Callback` objects, or functions of a `Record` called after every epoch.

    Raises:
        BadInput: A number lies outside its range, a name is not known, or resume=True without a folder.

    Example:
        >>> config = prunus.training.FitConfig(optimizer="adam", batch_size=32)
        >>> config.lr, config.replace(lr=0.01).lr
        (0.001, 0.01)
    """

    optimizer: str = "sgd"
    lr: float = None  # type: ignore[assignment]  # filled in below: it depends on the optimizer
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    schedule: str | Schedule = field(
        default="cosine", metadata={"help": "constant, cosine, cosine-epoch (after each epoch), step or warmup."}
    )
    batch_size: int = 64
    accumulate: int = 1
    precision: str = "full"
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    ema: float = 0.0
    clip: float | None = None
    loss: str | Callable[[Tensor, Tensor], Tensor] = "auto"
    label_smoothing: float = 0.0
    spectral_penalty: float = 0.0
    penalty: Callable[[Module], Tensor] | None = None
    distill_from: Module | None = field(
        default=None, metadata={"help": "Weights of a trained network of the same kind to learn from."}
    )
    distill_weight: float = 0.5
    temperature: float = 4.0
    augment: str | Callable[[Tensor, Generator], Tensor] = field(
        default="none", metadata={"help": "none, crop-flip or resized-crop-flip."}
    )
    workers: int = 0
    seed: int = 0
    folder: str | Path | None = None
    every: str = "1ep"
    keep: int = 2
    resume: bool = False
    tensorboard: str | Path | None = None
    progress: bool | None = None
    callbacks: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        if self.lr is None:
            object.__setattr__(self, "lr", 0.1 if self.optimizer == "sgd" else 1e-3)
        if isinstance(self.schedule, str) and self.schedule not in SCHEDULES:
            raise UnknownName("schedule", self.schedule, SCHEDULES)
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise UnknownName("loss", self.loss, LOSSES)
        for name, low in (("lr", 0.0), ("weight_decay", 0.0), ("spectral_penalty", 0.0), ("momentum", 0.0)):
            value = getattr(self, name)
            if not (_is_number(value) and value >= low):
                raise BadInput(f"{name} is {value!r}; it must be a finite number of at least {low:g}.")
        if self.precision not in PRECISIONS:
            raise UnknownName("precision", self.precision, PRECISIONS)
        for name in ("ema", "label_smoothing"):
            value = getattr(self, name)
            if not (_is_number(value) and 0.0 <= value < 1.0):
                raise BadInput(f"{name} is {value!r}; it must lie in [0, 1).")
        if self.label_smoothing and self.loss not in ("auto", "cross_entropy"):
            raise BadInput(f"label_smoothing belongs to the cross entropy of class labels, not to loss={self.loss!r}.")
        _check_groups(self.groups)
        for name, least in (("batch_size", 1), ("keep", 1), ("workers", 0), ("accumulate", 1)):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
                raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {least}.")
        for name in ("nesterov", "resume"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name} is {getattr(self, name)!r}; it must be true or false.")
        if self.clip is not None and not (_is_number(self.clip) and self.clip > 0.0):
            raise BadInput(f"clip is {self.clip!r}; the largest norm of a gradient must be a positive number.")
        if not (_is_number(self.distill_weight) and 0.0 <= self.distill_weight <= 1.0):
            raise BadInput(f"distill_weight is {self.distill_weight!r}; it must lie in [0, 1].")
        if not (_is_number(self.temperature) and self.temperature > 0.0):
            raise BadInput(f"temperature is {self.temperature!r}; it must be positive.")
        if self.resume and self.folder is None:
            raise BadInput("resume=True needs a folder: name the one that holds the run's checkpoints.")
        interval(self.every)

    def replace(self, **changes: Any) -> FitConfig:
        """A copy with some fields changed.

        Args:
            changes: new values by the names of fields.

        Returns:
            The copy.
        """
        return dataclasses.replace(self, **changes)

    def plan(self, total: int) -> Schedule:
        """The schedule as a `Schedule`, with the short names spelt out for a run of `total` steps.

        Args:
            total: steps of the run.

        Returns:
            The schedule.
        """
        if isinstance(self.schedule, Schedule):
            return self.schedule
        if self.schedule == "warmup":
            return Schedule("cosine", warmup=f"{max(1, total // 20)}it")
        if self.schedule == "cosine-epoch":
            return Schedule("cosine", by="epoch")
        return Schedule(self.schedule)

    def record(self) -> dict[str, Any]:
        """The fields that decide the result, as JSON: what a resumed run must agree on."""
        silent = {"folder", "every", "keep", "resume", "tensorboard", "progress", "callbacks", "workers"}
        found: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name not in silent and not (entry.name in LATER and value == LATER[entry.name]):
                found[entry.name] = _plain(value)
        return found


LATER: dict[str, Any] = {"accumulate": 1, "precision": "full", "groups": {}, "ema": 0.0, "label_smoothing": 0.0}
"""Settings that older runs did not know, with what they had instead: such runs can still be resumed."""


def _check_groups(groups: Any) -> None:
    if not isinstance(groups, Mapping) or not all(isinstance(value, Mapping) for value in groups.values()):
        raise BadInput('groups must be a mapping of names to settings, as in {"*.bias": {"weight_decay": 0.0}}.')
    for glob, settings in groups.items():
        for name, value in settings.items():
            if name not in GROUPED:
                raise UnknownName(f"setting of the group {glob!r}", name, GROUPED)
            if not (_is_number(value) and value >= 0.0):
                raise BadInput(f"{name} of the group {glob!r} is {value!r}; it must be a finite number of at least 0.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def interval(text: str) -> tuple[float, str]:
    """("1ep", "500it" or "10min") as a positive number and its unit."""
    if not isinstance(text, str):
        raise BadInput(f"every={text!r} is no interval: write epochs, iterations or minutes, as in '1ep' or '10min'.")
    if text.endswith("min"):
        try:
            minutes = float(text[:-3])
        except ValueError:
            minutes = math.nan
        if not minutes > 0.0:
            raise BadInput(
                f"every={text!r} is no interval: write epochs, iterations or minutes, as in '1ep' or '10min'."
            )
        return minutes, "min"
    if Duration.parse(text).steps(1_000_000) < 1:
        raise BadInput(f"every={text!r} is no interval: give at least one step, as in '100it'.")
    return 0.0, "steps"


def _plain(value: Any) -> Any:
    """Numbers and text as they are; a schedule as a dict; a network by the hash of its weights; functions by name."""
    if isinstance(value, Schedule):
        return dataclasses.asdict(value) | {"milestones": list(value.milestones)}
    if hasattr(value, "state_dict"):
        from prunus.storage import digest

        tensors = {name: part for name, part in value.state_dict().items() if hasattr(part, "dtype")}
        return f"network {digest(tensors)[:16]}"
    if isinstance(value, Mapping):
        return {name: dict(settings) for name, settings in value.items()}
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return value


DISTILLING = FitConfig(optimizer="adamw", lr=5e-4, weight_decay=0.0, batch_size=32, clip=1.0)
"""How `distil` trains unless told otherwise. Without a limit on gradients a network that lost much may diverge."""
