"""Types shared by all subpackages. Read this first.

`Masks` (in `masks.py`) says which weights are kept; `Duration` (in `duration.py`) is a length of training with a unit;
`ScoreContext`, `Score`, `Pattern` and `Allocation` are the parts of `prunus.find_masks`.

    score  x  pattern  x  allocation  ->  Masks

A *score* ranks weights (the highest are kept), a *pattern* says which sets of zeros are allowed, an *allocation* says
how many zeros each layer gets. `sparsity` is always the fraction of zeros and `density` its complement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prunus.duration import Duration
from prunus.errors import BadInput
from prunus.layers import Weight
from prunus.masks import LayerRow, Masks

__all__ = [
    "Allocation",
    "Duration",
    "LayerRow",
    "Masks",
    "Pattern",
    "Score",
    "ScoreContext",
    "check_sparsity",
    "whole",
]


@dataclass(frozen=True, eq=False)
class ScoreContext:
    """What a score may use: the model, its prunable weights, data, a loss, and a seeded random generator.

    Attributes:
        model: The model; do not change it.
        weights: The prunable weights by parameter name.
        data: Batches, as given to `find_masks`, or None.
        loss: Loss of (outputs, labels), or None for cross-entropy.
        seed: Seed of every random choice.

    Example:
        >>> import torch, prunus
        >>> def small_first(context):
        ...     return {name: -weight.parameter.abs() for name, weight in context.weights.items()}
        >>> prunus.find_masks(torch.nn.Linear(4, 4), 0.5, score=small_first).sparsity
        0.5
    """

    model: nn.Module
    weights: Mapping[str, Weight]
    data: Any = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0

    def draw_seed(self, salt: int = 0) -> int:
        """A seed of its own for each `salt`.

        Args:
            salt: Any whole number.

        Returns:
            The seed.
        """
        # Far from any seed a person gives: a model drawn with the same seed must not be drawn with the same numbers.
        return (self.seed * 1_000_003 + salt + 0x5DEE_CE66_D1CE_4E5B) & 0x7FFF_FFFF_FFFF_FFFF

    def generator(self, salt: int = 0) -> torch.Generator:
        """A generator of its own for each `salt`; all draws of a score come from these.

        Args:
            salt: Any whole number.

        Returns:
            A generator on the CPU.
        """
        return torch.Generator().manual_seed(self.draw_seed(salt))


Score = Callable[[ScoreContext], Mapping[str, Tensor]]
"""Returns for every weight a tensor of its shape; weights with higher scores are kept first."""


@runtime_checkable
class Pattern(Protocol):
    """Which sets of zeros are allowed inside one weight tensor.

    Example:
        >>> isinstance(prunus.patterns.parse("2:4"), prunus.contract.Pattern)
        True
    """

    def mask(self, scores: Tensor, weight: Weight, sparsity: float, *, absolute: bool = False) -> Tensor:
        """Choose what is kept: as close to this fraction of zeros as the pattern allows; of equal scores the first.

        Args:
            scores: A tensor of the weight's shape.
            weight: The weight, with its layout.
            sparsity: Wanted fraction of zeros.
            absolute: Rank by magnitude, so that the weights themselves can be passed as scores without a copy.

        Returns:
            A boolean tensor of the same shape, True where kept.
        """
        ...

    def units(self, scores: Tensor, weight: Weight, *, absolute: bool = False) -> tuple[Tensor, int]:
        """Scores of the groups that are kept or dropped together.

        Args:
            scores: A tensor of the weight's shape.
            weight: The weight, with its layout.
            absolute: Take the magnitudes of the scores.

        Returns:
            One score for each group as a flat tensor, and the number of weights in a group.
        """
        ...

    def check(self, weight: Weight, sparsity: float) -> None:
        """Refuse a weight that this pattern does not fit, and a sparsity that it cannot have.

        Args:
            weight: The weight that would be pruned.
            sparsity: Wanted fraction of zeros.

        Raises:
            BadInput: It does not fit.
        """
        ...


Allocation = Callable[[Mapping[str, Weight], Mapping[str, Tensor], float, Pattern, bool], Mapping[str, float]]
"""(weights, scores, sparsity of the whole, pattern, absolute) -> the sparsity of each tensor."""


def whole(sparsity: float, total: int) -> int:
    """`sparsity * total` to the nearest whole number, halves upwards, whatever the last bits of the product are.

    Args:
        sparsity: Fraction of zeros.
        total: Number of weights.

    Returns:
        Number of zeros.

    Example:
        >>> from prunus.contract import whole
        >>> whole(0.9, 15), whole(0.29, 100)
        (14, 29)
    """
    return math.floor(round(sparsity * total, 6) + 0.5)


def check_sparsity(value: object, where: str = "") -> float:
    """Check a fraction of zeros.

    Args:
        value: What the user gave.
        where: Words for the message, such as " of 'fc'".

    Returns:
        The value as a float in [0, 1).

    Raises:
        BadInput: It is not a number, or lies outside [0, 1).

    Example:
        >>> from prunus.contract import check_sparsity
        >>> check_sparsity(0.9)
        0.9
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"A sparsity{where} must be a number in [0, 1), not {value!r}.")
    if not 0 <= value < 1:
        hint = f": write {value / 100:g} for {value:g} %." if 5 <= value < 100 else "."
        raise BadInput(f"The sparsity{where} is {value}; it is the fraction of zeros and must lie in [0, 1){hint}")
    return float(value)
