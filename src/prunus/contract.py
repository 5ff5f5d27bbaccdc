"""What the rooms hand each other. Read this first.

`Masks` says which weights stay; `Duration` is a length of training with a unit; `ScoreContext`, `Score`, `Pattern` and
`Allocation` are what `prunus.find_masks` is made of; `reproduction` registers a published result that can be run again.

    score  x  pattern  x  allocation  ->  Masks

A *score* ranks weights (higher stays), a *pattern* says which sets of zeros are allowed, an *allocation* how many zeros
each layer gets. `sparsity` is always the fraction of zeros and `density` its complement.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prunus.errors import BadInput
from prunus.weights import Weight, named_parameters, plain_name, plain_names, prunable_weights

if TYPE_CHECKING:
    from prunus._hold import Hold

__all__ = [
    "Allocation",
    "Duration",
    "LayerRow",
    "Masks",
    "Pattern",
    "Reproduction",
    "Score",
    "ScoreContext",
    "check_sparsity",
    "reproduction",
    "reproductions",
    "whole",
]


# --------------------------------------------------------------------------------------------------------------- masks


@dataclass(frozen=True)
class LayerRow:
    """One line of `Masks.layers`."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int

    @property
    def sparsity(self) -> float:
        return 1 - self.kept / self.total if self.total else 0.0


class Masks(Mapping[str, Tensor]):
    """Which weights stay: a frozen mapping from parameter names to boolean tensors, True where the weight is kept.

    Names are plain: what wrappers add ("module.", "_orig_mod.") is stripped, here and in the models the masks meet. A
    tensor shared by two modules has one mask, under its first name. `notes` is a small record of how the masks were
    made; it travels with the file and does not take part in comparison.
    """

    def __init__(self, masks: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        for name, mask in masks.items():
            _check_mask(name, mask)
        self._masks = {
            plain: masks[name].detach().clone(memory_format=torch.contiguous_format)
            for name, plain in plain_names(masks).items()
        }
        self.notes = dict(notes or {})

    @classmethod
    def adopt(cls, masks: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> Masks:
        """Like the constructor without copying: for tensors that nobody else holds."""
        new = cls({}, notes)
        for name, mask in masks.items():
            _check_mask(name, mask)
        new._masks = {plain: masks[name].contiguous() for name, plain in plain_names(masks).items()}
        return new

    @classmethod
    def from_model(cls, model: nn.Module) -> Masks:
        """The masks a model already carries: those `torch.nn.utils.prune` left, and the zeros of every other weight.

        A weight without a single zero gets no mask.
        """
        found: dict[str, Tensor] = {}
        buffers = {plain_name(name): buffer for name, buffer in model.named_buffers()}
        for name in named_parameters(model):
            base = name.removesuffix("_orig")
            if base != name and f"{base}_mask" in buffers:
                found[base] = buffers[f"{base}_mask"] != 0
        for name, weight in prunable_weights(model).items():
            kept = weight.parameter.detach() != 0
            if not bool(kept.all()):
                found[name] = kept
        return cls.adopt(found, {"from": "model"})

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name if name in self._masks else plain_name(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        same_names = self._masks.keys() == other._masks.keys()
        return same_names and all(torch.equal(mask.cpu(), other[name].cpu()) for name, mask in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Masks) -> Masks:
        """Keep what both keep; a weight that only one of them covers follows that one."""
        if not isinstance(other, Masks):
            return NotImplemented
        joint = dict(self._masks)
        for name, mask in other.items():
            mine = joint.get(name)
            if mine is not None and mine.shape != mask.shape:
                raise BadInput(
                    f"The masks disagree on {name!r}: shapes {tuple(mine.shape)} and {tuple(mask.shape)}; "
                    "join only masks of one model."
                )
            joint[name] = mask.clone() if mine is None else mine & mask.to(mine.device)
        return Masks.adopt(joint)

    @property
    def layers(self) -> list[LayerRow]:
        """One row for each mask: name, shape, total, kept, sparsity."""
        return [
            LayerRow(name, tuple(mask.shape), mask.numel(), int(mask.count_nonzero())) for name, mask in self.items()
        ]

    @property
    def sparsity(self) -> float:
        """Fraction of zeros over all weights the masks cover."""
        rows = self.layers
        total = sum(row.total for row in rows)
        return 1 - sum(row.kept for row in rows) / total if total else 0.0

    def parameters_of(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The model's parameters the masks speak of, by mask name; refuses masks of another model."""
        parameters = named_parameters(model)
        for name, mask in self.items():
            if name not in parameters:
                raise BadInput(
                    f"The masks name {name!r}, which this model does not have as a parameter; "
                    "use masks that were found for this model."
                )
            if parameters[name].shape != mask.shape:
                raise BadInput(
                    f"The mask of {name!r} has shape {tuple(mask.shape)} but the parameter has "
                    f"{tuple(parameters[name].shape)}; use masks that were found for this model."
                )
        return {name: parameters[name] for name in self}

    def apply_(self, model: nn.Module) -> nn.Module:
        """Set what the masks drop to +0.0, in place; returns the model. Nothing is touched if a mask does not fit."""
        parameters = self.parameters_of(model)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.masked_fill_(~self[name].to(parameter.device), 0.0)
        return model

    def hold(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Hold:
        """Keep the zeros at exactly +0.0 while training: a context manager, and a handle with `remove()`."""
        from prunus._hold import Hold

        return Hold(self, model, optimizer)

    def to(self, device: torch.device | str) -> Masks:
        return Masks.adopt({name: mask.to(device) for name, mask in self.items()}, self.notes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, eight weights to a byte, with a checksum over everything."""
        from prunus._maskfile import write_masks

        write_masks(self, Path(path))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Masks:
        """Read what `save` wrote; a damaged or foreign file is refused."""
        from prunus._maskfile import read_masks

        return read_masks(Path(path))

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        return Masks(self._masks, self.notes)

    def __repr__(self) -> str:
        rows = self.layers
        lines = [
            f"Masks over {len(rows)} tensors, {sum(row.total for row in rows):,} weights, sparsity {self.sparsity:.4f}"
        ]
        lines += [
            f"  {row.name}  {'x'.join(map(str, row.shape))}  keeps {row.kept:,}  ({row.sparsity:.4f})"
            for row in rows[:8]
        ]
        return "\n".join(lines + ([f"  ... and {len(rows) - 8} more"] if len(rows) > 8 else []))


def _check_mask(name: str, mask: object) -> None:
    if not isinstance(name, str) or not plain_name(name):
        raise BadInput(f"A mask needs the name of a parameter, not {name!r}.")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise BadInput(f"The mask of {name!r} must be a boolean tensor, not {kind}.")


# ---------------------------------------------------------------------------------------- score x pattern x allocation


@dataclass(frozen=True, eq=False)
class ScoreContext:
    """What a score may look at: the model, its weights that may be pruned, data, a loss, and a seeded generator."""

    model: nn.Module
    weights: Mapping[str, Weight]
    data: Any = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0

    def generator(self, salt: int = 0) -> torch.Generator:
        # Far from any seed a person gives: a model drawn with the same seed must not be drawn with the same numbers.
        return torch.Generator().manual_seed(
            (self.seed * 1_000_003 + salt + 0x5DEE_CE66_D1CE_4E5B) & 0x7FFF_FFFF_FFFF_FFFF
        )


Score = Callable[[ScoreContext], Mapping[str, Tensor]]
"""Returns for every weight a tensor of its shape; the higher a score, the sooner its weight stays."""


@runtime_checkable
class Pattern(Protocol):
    """Which sets of zeros are allowed inside one weight."""

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        """True where kept: as close to this fraction of zeros as the pattern allows, ties by position.

        With `absolute` the scores rank by magnitude, so that weights themselves can serve as scores without a copy.
        """
        ...

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        """Scores of what lives or dies together, flat, and how many weights each stands for."""
        ...

    def check(self, weight: Weight, sparsity: float) -> None:
        """Refuse, in one sentence, a sparsity this pattern cannot give this weight."""
        ...


Allocation = Callable[[Mapping[str, Weight], Mapping[str, Tensor], float, Pattern, bool], Mapping[str, float]]
"""(weights, scores, sparsity of the whole, pattern, absolute) -> the sparsity of each tensor."""


def whole(sparsity: float, total: int) -> int:
    """sparsity * total to the nearest whole number, halves upwards; safe against the last bits of the product."""
    return math.floor(round(sparsity * total, 6) + 0.5)


def check_sparsity(value: object, where: str = "") -> float:
    """`value` as a float in [0, 1), or one sentence that says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"A sparsity{where} must be a number in [0, 1), not {value!r}.")
    if not 0 <= value < 1:
        raise BadInput(f"The sparsity{where} is {value}; it is the fraction of zeros and must lie in [0, 1).")
    return float(value)


# ------------------------------------------------------------------------------------------------------------ duration


@dataclass(frozen=True)
class Duration:
    """A length of training with its unit: "160ep" are epochs, "5000it" optimiser steps. Epochs may be fractions."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, text: str | Duration) -> Duration:
        if isinstance(text, Duration):
            return text
        body, unit = str(text).strip()[:-2], str(text).strip()[-2:]
        try:
            amount = Fraction(body)
        except (ValueError, ZeroDivisionError):
            amount = Fraction(-1)
        if unit not in ("ep", "it") or amount < 0 or (unit == "it" and amount.denominator != 1):
            raise BadInput(f'{text!r} is not a length of training: write epochs as "160ep" or steps as "5000it".')
        return cls(amount, unit)

    def steps(self, per_epoch: int) -> int:
        """Optimiser steps, given how many make an epoch."""
        return int(self.amount) if self.unit == "it" else round(self.amount * per_epoch)

    def __str__(self) -> str:
        amount = str(self.amount) if self.amount.denominator == 1 else f"{float(self.amount):g}"
        return f"{amount}{self.unit}"


# ------------------------------------------------------------------------------------------------------- reproductions


@dataclass(frozen=True)
class Reproduction:
    """A published result that can be run again: `run(**options)` gives rows with the published numbers beside ours."""

    id: str
    title: str
    source: str
    run: Callable[..., Iterable[Mapping[str, Any]]]
    minutes: float = 1.0
    needs: tuple[str, ...] = ()
    out_of_reach: str = ""
    tags: tuple[str, ...] = field(default=())


reproductions: dict[str, Reproduction] = {}


def reproduction(
    id: str, title: str, source: str, **details: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the reproduction of a published result; refuses a second one under the same id."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        if id in reproductions:
            raise BadInput(f"A reproduction named {id!r} exists already; choose another name.")
        reproductions[id] = Reproduction(id, title, source, run, **details)
        return run

    return register
