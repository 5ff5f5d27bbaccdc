"""Scores and widths: what is known about the units of a model, and how many of each group stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from prunus.adapters import Batch
from prunus.errors import BadInput
from prunus.layers import listing, matches
from prunus.settings.structure import Options
from prunus.structure import costs
from prunus.structure._damage import damages, study
from prunus.structure._labels import Array
from prunus.structure.allocations import ALLOCATIONS, equalised, least_damage
from prunus.structure.costs import Cost
from prunus.structure.groups import Coupling
from prunus.structure.scores import SCORES, Seen


@dataclass(frozen=True, eq=False)
class Known:
    """Scores of the units of each group and, where it was measured, the damage at each width."""

    scores: list[Array]
    harm: list[Array] | None


def learn(
    model: nn.Module, coupling: Coupling, batches: list[Batch], options: Options, *, by_name: bool = False
) -> Known:
    """Score all units; measure the damage of narrowing where the allocation asks for it."""
    score = options.score or ("reconstruction" if batches else "magnitude")
    allocation = options.allocation or ("damage" if batches else "uniform")
    known = study(model, coupling, batches, options.seed) if batches and score == "reconstruction" else None
    if known is not None:
        scores = [each.scores for each in known.eliminations]
    else:
        scores = SCORES[score](Seen(model, coupling, batches, options.loss, options.seed))
    if allocation != "damage" or by_name:
        return Known(scores, None)
    known = known or study(model, coupling, batches, options.seed)
    return Known(scores, damages(model, coupling, known, batches))


def widths(coupling: Coupling, known: Known, cost: Cost, target: float, options: Options, multiple: int) -> list[int]:
    """How many units of each group stay, so that the cost is within the target."""
    least = [1] * len(coupling.groups)
    if known.harm is not None:
        return least_damage(coupling, known.harm, cost, target, least, multiple)
    return ALLOCATIONS[options.allocation or "uniform"](coupling, known.scores, cost, target, least, multiple)


def widths_by_name(coupling: Coupling, shares: Mapping[str, float], multiple: int) -> list[int]:
    """How many units stay of the groups that are named; the others stay whole."""
    counts = costs.full(coupling)
    for glob, share in shares.items():
        hit = [at for at, g in enumerate(coupling.groups) if any(matches(maker, glob) for maker in g.makers)]
        if not hit:
            raise BadInput(
                f"The fractions name {glob!r}, which matches no group; there are "
                f"{listing([group.name for group in coupling.groups])}."
            )
        for at in hit:
            wanted = max(1, round(share * len(coupling.groups[at]) / multiple)) * multiple
            counts[at] = min(wanted, len(coupling.groups[at]))
    return equalised(coupling, counts)


def shares_of_damage(known: Known, counts: list[int]) -> list[float | None]:
    """Each group's share of the whole damage, None where it was not measured."""
    if known.harm is None:
        return [None] * len(counts)
    each = [float(curve[count]) for curve, count in zip(known.harm, counts)]
    return [value / max(sum(each), 1e-300) for value in each]
