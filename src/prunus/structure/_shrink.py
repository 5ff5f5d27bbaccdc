"""`shrink` and `find_removal`: which units leave, and the smaller model."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from prunus.contract import Masks
from prunus.errors import BadInput, UnknownName
from prunus.graph import read
from prunus.structure import _surgery, costs
from prunus.structure._call import Example, example_for
from prunus.structure._labels import Array
from prunus.structure._walk import walk
from prunus.structure.allocations import ALLOCATIONS, best
from prunus.structure.groups import Coupling, Fixed, find_groups
from prunus.structure.scores import SCORES, Seen

MEASURES = ("parameters", "multiply-adds")


@dataclass(frozen=True)
class Row:
    """One group of a removal: how many units it had and keeps."""

    name: str
    kind: str
    before: int
    after: int
    damage: float | None = None


@dataclass(frozen=True, eq=False)
class Removal:
    """A choice of units, as masks and as a smaller model.

    Attributes:
        masks: The same choice as zeros: rows and columns of what leaves.
        rows: One line for each group: name, kind, before, after, damage.
        share: What is left of the measure, at most the fraction asked for.
        fixed: Layers whose outputs cannot be removed, with the reason.
    """

    model: nn.Module
    coupling: Coupling
    stays: Array
    example: Example
    masks: Masks
    rows: tuple[Row, ...]
    share: float
    fixed: tuple[Fixed, ...]
    _cut: _surgery.Cut = field(repr=False)

    def apply(self) -> nn.Module:
        """The smaller model: of the same class, with the same keys; checked against the masked original."""
        return self._cut.model


def find_removal(
    model: nn.Module,
    fraction: float,
    *,
    example: Any,
    data: Any = None,
    score: str | None = None,
    measure: str = "multiply-adds",
    allocation: str | None = None,
    exclude: Iterable[str] = (),
    embeddings: Iterable[str] = (),
    exact: bool = True,
    multiple: int = 1,
    loss: Callable[[Any, Any], Tensor] | None = None,
    seed: int = 0,
) -> Removal:
    """Choose the units that leave, and check the smaller model; `model` is not touched. See `shrink`."""
    fraction = _check(fraction, measure, multiple)
    work = copy.deepcopy(model).eval()
    given = example_for(work, example)
    seen = walk(read(work, given.whole, dynamic_batch=False), exact=exact)
    coupling = find_groups(seen, work, named=_globs(embeddings), exclude=_globs(exclude))
    score = score or "magnitude"
    allocation = allocation or "uniform"
    if score not in SCORES:
        raise UnknownName("score", score, SCORES)
    if allocation not in ALLOCATIONS:
        raise UnknownName("allocation", allocation, ALLOCATIONS)
    while True:
        if not coupling.groups:
            raise BadInput(_nothing(coupling))
        cost = costs.parameters(coupling, work) if measure == "parameters" else costs.multiply_adds(coupling)
        whole = cost(costs.everything(coupling))
        scores = SCORES[score](Seen(work, coupling, [], loss, seed))
        least = [1] * len(coupling.groups)
        counts = ALLOCATIONS[allocation](coupling, scores, cost, fraction * whole, least, multiple)
        keep = {at: best(scores[at], count) for at, count in enumerate(counts)}
        stays = coupling.kept(keep)
        try:
            cut, _ = _surgery.operate(model, coupling, stays, given)
            break
        except BadInput as error:
            coupling = _without_failing(work, coupling, given, error)
    rows = tuple(Row(g.name, g.kind, len(g), count) for g, count in zip(coupling.groups, counts))
    masks = _surgery.masks_of(model, coupling, stays)
    share = cost(stays) / whole
    return Removal(model, coupling, stays, given, masks, rows, share, tuple(coupling.fixed), cut)


def shrink(
    model: nn.Module,
    fraction: float,
    *,
    example: Any,
    data: Any = None,
    score: str | None = None,
    measure: str = "multiply-adds",
    exclude: Iterable[str] = (),
    **options: Any,
) -> nn.Module:
    """A smaller ordinary network: of the same class, with the same keys."""
    return find_removal(
        model, fraction, example=example, data=data, score=score, measure=measure, exclude=exclude, **options
    ).apply()


def _check(fraction: object, measure: str, multiple: int) -> float:
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise BadInput(f"The fraction is what stays and must lie between 0 and 1, not {fraction!r}.")
    if measure not in MEASURES:
        raise UnknownName("measure", measure, MEASURES)
    if not isinstance(multiple, int) or multiple < 1:
        raise BadInput(f"multiple is a whole number of at least 1, not {multiple!r}.")
    return float(fraction)


def _globs(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _nothing(coupling: Coupling) -> str:
    blocked = "; ".join(f"{each.name} ({each.reason})" for each in coupling.fixed[:4])
    return (
        "There is nothing to remove from this model: every layer is excluded or fixed"
        + (f", for instance {blocked}." if blocked else ".")
        + " Exclude less, or name the embeddings that may leave."
    )


def _without_failing(model: nn.Module, coupling: Coupling, example: Example, error: BadInput) -> Coupling:
    """Groups whose removal the model's code does not bear are moved to the fixed ones, family by family."""
    families: dict[str, list[int]] = {}
    for at, group in enumerate(coupling.groups):
        families.setdefault(re.sub(r"\d+", "*", group.name) + group.kind, []).append(at)
    bad: dict[int, str] = {}
    for members in families.values():
        keep = {at: np.arange(len(coupling.groups[at])) > 0 for at in members}
        try:
            _surgery.operate(model, coupling, coupling.kept(keep), example)
        except BadInput as problem:
            bad.update({at: str(problem).partition(": ")[2].rstrip(".") for at in members})
    if not bad:
        raise error
    kept = [at for at in range(len(coupling.groups)) if at not in bad]
    where = {old: new for new, old in enumerate(kept)}
    fixed = [Fixed(coupling.groups[at].name, len(coupling.groups[at]), reason) for at, reason in bad.items()]
    ties = [[where[at] for at in tie if at in where] for tie in coupling.ties]
    return Coupling(
        coupling.walk,
        coupling.classes,
        coupling.number,
        [coupling.groups[at] for at in kept],
        [*coupling.fixed, *fixed],
        [tie for tie in ties if len(tie) > 1],
    )
