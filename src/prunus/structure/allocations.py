"""How many units each group keeps, so that the cost stays within a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from prunus.errors import BadInput
from prunus.structure._labels import Array
from prunus.structure.costs import Cost, full
from prunus.structure.groups import Coupling

Counts = list[int]


def best(scores: Array, count: int) -> Array:
    """True for the `count` highest scores, ties by position."""
    mask = np.zeros(len(scores), dtype=bool)
    mask[np.argsort(-scores, kind="stable")[:count]] = True
    return mask


def uniform(coupling: Coupling, scores: Sequence[Array], cost: Cost, target: float, least: Counts, step: int) -> Counts:
    """Every group keeps the same share of its units."""

    def counts(share: float) -> Counts:
        found = [
            _rounded(share * len(group), len(group), least[at], coupling.step(at, step))
            for at, group in enumerate(coupling.groups)
        ]
        return equalised(coupling, found, step)

    return _settled(coupling, cost, target, counts, step)


def overall(coupling: Coupling, scores: Sequence[Array], cost: Cost, target: float, least: Counts, step: int) -> Counts:
    """One threshold for all groups, on scores relative to their group's mean."""
    relative = [each / max(float(each.mean()), 1e-300) for each in scores]
    ranked = np.sort(np.concatenate(relative))

    def counts(share: float) -> Counts:
        threshold = ranked[min(int((1 - share) * len(ranked)), len(ranked) - 1)]
        found = [
            _rounded(float((each >= threshold).sum()), len(each), least[at], coupling.step(at, step))
            for at, each in enumerate(relative)
        ]
        return equalised(coupling, found, step)

    return _settled(coupling, cost, target, counts, step)


def equalised(coupling: Coupling, counts: Counts, step: int = 1) -> Counts:
    """Tied groups keep the share that they keep together."""
    for tie in variables(coupling):
        if len(tie) > 1:
            first = len(coupling.groups[tie[0]])
            share = sum(counts[at] for at in tie) / sum(len(coupling.groups[at]) for at in tie)
            together(coupling, tie, _rounded(share * first, first, 1, coupling.step(tie[0], step)), counts)
    return counts


def together(coupling: Coupling, tie: Sequence[int], width: int, counts: Counts) -> Counts:
    """Set the first group of a tie to a width and the others to the same share; in place, and returned."""
    first = len(coupling.groups[tie[0]])
    for at in tie:
        counts[at] = width * len(coupling.groups[at]) // first
    return counts


def _rounded(wanted: float, size: int, least: int, step: int) -> int:
    """The nearest allowed count: a multiple of `step` (or everything), at least `least`."""
    if step > 1:
        wanted = max(1, round(wanted / step)) * step
    return int(min(size, max(least, round(wanted))))


def _settled(
    coupling: Coupling,
    cost: Cost,
    target: float,
    counts: Callable[[float], Counts],
    step: int,
) -> Counts:
    """The largest share whose cost is within the target, then single steps back up while they fit."""
    low, high = 0.0, 1.0
    reach(coupling, cost, counts(low), target)
    for _ in range(40):
        middle = (low + high) / 2
        if cost(counts(middle)) <= target:
            low = middle
        else:
            high = middle
    found = counts(low)
    more = counts(min(1.0, low + 0.05))
    for variable in sorted(variables(coupling), key=lambda each: found[each[0]] - more[each[0]]):
        first = variable[0]
        if found[first] >= min(more[first], len(coupling.groups[first])):
            continue
        raised = together(
            coupling, variable, min(found[first] + coupling.step(first, step), len(coupling.groups[first])), list(found)
        )
        if cost(raised) <= target:
            found = raised
    return found


def variables(coupling: Coupling) -> list[list[int]]:
    """Groups that move together, the smallest first: ties, and every other group on its own."""
    tied = {at for tie in coupling.ties for at in tie}
    ties = [sorted(tie, key=lambda at: len(coupling.groups[at])) for tie in coupling.ties]
    return [*ties, *[[at] for at in range(len(coupling.groups)) if at not in tied]]


def reach(coupling: Coupling, cost: Cost, counts: Counts, target: float) -> None:
    """Refuse a target that even the smallest allowed widths miss."""
    smallest = cost(counts)
    if smallest > target:
        whole = cost(full(coupling))
        blocked = "; ".join(f"{each.name} ({each.reason})" for each in coupling.fixed[:3])
        more = f" and {len(coupling.fixed) - 3} more" if len(coupling.fixed) > 3 else ""
        raise BadInput(
            f"The model cannot be brought to {target / whole:.1%}: with one unit of every group left it would be at "
            f"{smallest / whole:.1%}. Fixed are: {blocked or 'nothing'}{more}. "
            "Ask for a larger fraction, exclude less, or name the embeddings that may leave."
        )


def least_damage(
    coupling: Coupling, damages: Sequence[Array], cost: Cost, target: float, least: Counts, step: int
) -> Counts:
    """Widths with little damage: again and again the step that costs least damage for what it saves.

    `damages[g][k]` is the damage of group g with k units left. Tied groups move together. Steps of several sizes are
    compared, so that a flat stretch behind a small hill is found.
    """
    moving = variables(coupling)
    counts = full(coupling)
    smallest = [_rounded(0, len(g), least[at], coupling.step(at, step)) for at, g in enumerate(coupling.groups)]
    reach(coupling, cost, equalised(coupling, smallest, step), target)
    now = cost(counts)
    while now > target:
        best_ratio, chosen, chosen_cost = float("inf"), counts, now
        for variable in moving:
            first = variable[0]
            for width in _steps(len(coupling.groups[first]), counts[first], least[first], coupling.step(first, step)):
                trial = together(coupling, variable, width, list(counts))
                price = cost(trial)
                harm = sum(float(damages[at][trial[at]] - damages[at][counts[at]]) for at in variable)
                ratio = max(harm, 0.0) / max(now - price, 1e-300)
                if now - price > 0 and ratio < best_ratio:
                    best_ratio, chosen, chosen_cost = ratio, trial, price
        if chosen is counts:
            break
        counts, now = chosen, chosen_cost
    return counts


def _steps(size: int, count: int, least: int, step: int) -> list[int]:
    """Widths below `count`: one grain less, two, four, ..."""
    grain = max(step, size // 48, 1)
    widths = []
    jump = grain
    while count - jump >= least:
        aligned = (count - jump) // step * step if step > 1 else count - jump
        if least <= aligned < count:
            widths.append(aligned)
        jump *= 2
    return widths


ALLOCATIONS = {"uniform": uniform, "global": overall, "damage": least_damage}
