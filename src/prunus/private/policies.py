"""Which coordinates a step of DP-SGD keeps, and how many: masks for a list of gradients, and schedules for the share.

A policy draws boolean masks from the batch's mean gradient and says what the draw costs. Policies whose masks do not
depend on the records (random, fixed, from noise that is private already) cost nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunus.errors import BadInput, UnknownName
from prunus.private.index_mechanism import IndexMechanism
from prunus.private.mechanism import NoisyTopK
from prunus.private.randomness import source
from prunus.select import drop_smallest

Keep = Callable[[int], float]


@dataclass(frozen=True)
class Falling:
    """Kept fraction that falls linearly from `start` to `end` over `steps` steps, and stays there.

    Example:
        >>> keep = prunus.private.Falling(end=0.1, steps=10, start=0.9)
        >>> [round(keep(step), 2) for step in (0, 5, 10, 20)]
        [0.9, 0.5, 0.1, 0.1]
    """

    end: float
    steps: int
    start: float = 0.999

    def __post_init__(self) -> None:
        if not 0.0 < self.end <= self.start <= 1.0 or self.steps < 1:
            raise BadInput(
                f"A falling share needs 0 < end <= start <= 1 and at least one step, got {self.start} to {self.end} "
                f"in {self.steps}."
            )

    def __call__(self, step: int) -> float:
        done = min(step / self.steps, 1.0)
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True)
class WarmUp:
    """Dense private steps first; then the coordinates with the most of their noisy gradients, for good.

    Noisy gradients are private already, so choosing from them costs nothing more.

    by: "sum" ranks by the magnitude of the summed gradients; "squares" by the sum of their squares, as TP-TopK does
        (Zhang and Xie 2026; the noise floor it takes off is the same for all coordinates and changes no order).

    Example:
        >>> prunus.private.WarmUp(steps=100, k=0.1)
        WarmUp(steps=100, k=0.1, by='sum')
    """

    steps: int
    k: float
    by: str = "sum"

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0.0 < self.k <= 1.0:
            raise BadInput(f"A warm-up needs at least one step and k in (0, 1], got {self.steps} and {self.k}.")
        if self.by not in ("sum", "squares"):
            raise UnknownName("ranking of a warm-up", self.by, ("sum", "squares"))


class Policy:
    """Masks of one step. `k` is the share kept without a schedule; `needs_gradients` says whether
    `masks` reads the values of the gradients (else any tensors of the same shapes will do)."""

    k: float = 1.0
    needs_gradients: bool = False

    def epsilon(self, d: int, fraction: float, step: int) -> float:
        """Pure epsilon of the masks of a step, before sampling."""
        return 0.0

    def masks(self, gradients: Sequence[Tensor], fraction: float, step: int) -> list[Tensor] | None:
        """A boolean mask for each gradient; None keeps everything."""
        return None

    def after(self, noisy: Sequence[Tensor], step: int) -> None:
        """Called with the noisy gradients of the step."""


@dataclass
class Drawn(Policy):
    """Noisy top-k or the two-level rule on the mean gradient of the batch.

    swaps: how many indices one record is assumed to move at most; None assumes nothing (the worst case).
    """

    mech: IndexMechanism
    group: int | None = None
    swaps: int | None = None
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        self.k = float(self.mech.k)
        self.needs_gradients = True
        if not 0.0 < self.k <= 1.0 or isinstance(self.mech.k, int):
            raise BadInput("DP-SGD keeps a share of the coordinates: give the mechanism's k as a fraction.")

    def _at(self, fraction: float) -> IndexMechanism:
        return dataclasses.replace(self.mech, k=float(fraction))

    def epsilon(self, d: int, fraction: float, step: int) -> float:
        mech = self._at(fraction)
        worst = mech.worst_epsilon(d, self.group)
        if self.swaps is None or not isinstance(mech, NoisyTopK):
            return worst
        return min(2.0 * mech.theta * self.swaps, worst)

    def masks(self, gradients: Sequence[Tensor], fraction: float, step: int) -> list[Tensor] | None:
        seed = None if self.insecure_seed is None else self.insecure_seed * 1_000_003 + step
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        mech = self._at(fraction)
        count = mech.count_in_group(flat.numel())
        exact = dataclasses.replace(mech, k=count) if self.group is None else mech
        return _masks(exact.select(flat, self.group, seed), gradients)


@dataclass
class Random(Policy):
    """A uniform set of coordinates at every step, whatever the gradients."""

    k: float = 1.0
    insecure_seed: int | None = None

    def masks(self, gradients: Sequence[Tensor], fraction: float, step: int) -> list[Tensor] | None:
        seed = None if self.insecure_seed is None else self.insecure_seed * 1_000_003 + step
        d = sum(gradient.numel() for gradient in gradients)
        kept = source(seed).subset(max(round(fraction * d), 1), d)
        return _masks(torch.from_numpy(kept).to(gradients[0].device), gradients)


@dataclass
class Fixed(Policy):
    """Masks chosen without reading the records, in the order of the optimizer's parameters."""

    held: list[Tensor]

    def __post_init__(self) -> None:
        total = sum(mask.numel() for mask in self.held)
        self.k = sum(int(mask.sum()) for mask in self.held) / max(total, 1)

    def masks(self, gradients: Sequence[Tensor], fraction: float, step: int) -> list[Tensor] | None:
        return self.held


@dataclass
class Warmed(Policy):
    """See `WarmUp`."""

    plan: WarmUp

    def __post_init__(self) -> None:
        self.k = self.plan.k
        self._sum: list[Tensor] = []
        self._held: list[Tensor] | None = None

    def masks(self, gradients: Sequence[Tensor], fraction: float, step: int) -> list[Tensor] | None:
        return self._held

    def after(self, noisy: Sequence[Tensor], step: int) -> None:
        if self._held is not None:
            return
        squares = self.plan.by == "squares"
        seen = [part.detach().square() if squares else part.detach().clone() for part in noisy]
        self._sum = seen if step == 0 else [a + b for a, b in zip(self._sum, seen)]
        if step + 1 >= self.plan.steps:
            d = sum(part.numel() for part in self._sum)
            self._held = drop_smallest(self._sum, d - max(round(self.plan.k * d), 1), absolute=True)
            self._sum = []


def policy_for(
    mech: Any, parameters: dict[str, Tensor], group: int | None, swaps: int | None, insecure_seed: int | None
) -> Policy:
    """The policy behind what a caller may give: a mechanism, "random", "dense", `Masks`, a `WarmUp`, or a policy."""
    if isinstance(mech, Policy):
        return mech
    if mech is None or mech == "dense":
        return Policy()
    if isinstance(mech, IndexMechanism):
        return Drawn(mech, group, swaps, insecure_seed)
    if isinstance(mech, WarmUp):
        return Warmed(mech)
    if isinstance(mech, str):
        if mech != "random":
            raise UnknownName("kind of mask", mech, ("dense", "random"))
        return Random(insecure_seed=insecure_seed)
    from prunus.contract import Masks

    if isinstance(mech, Masks):
        unknown = sorted(set(mech) - set(parameters))
        if unknown:
            raise BadInput(f"The masks name {unknown[0]!r}, which is no parameter that is trained here.")
        ones = {name: torch.ones_like(value, dtype=torch.bool) for name, value in parameters.items()}
        return Fixed(
            [mech[name].to(value.device) if name in mech else ones[name] for name, value in parameters.items()]
        )
    raise BadInput(
        f"{mech!r} chooses no coordinates: give a NoisyTopK, TwoLevelTopK, 'random', 'dense', masks or WarmUp."
    )


def _masks(kept: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    flat = torch.zeros(sum(g.numel() for g in gradients), dtype=torch.bool, device=gradients[0].device)
    flat[kept] = True
    return [part.view(g.shape) for part, g in zip(flat.split([g.numel() for g in gradients]), gradients)]
