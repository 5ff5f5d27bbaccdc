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
        return [_rounded(share * len(g), len(g), low, step) for g, low in zip(coupling.groups, least)]

    return _settled(coupling, cost, target, counts, step)


def overall(coupling: Coupling, scores: Sequence[Array], cost: Cost, target: float, least: Counts, step: int) -> Counts:
    """One threshold for all groups, on scores relative to their group's mean."""
    relative = [each / max(float(each.mean()), 1e-300) for each in scores]
    ranked = np.sort(np.concatenate(relative))

    def counts(share: float) -> Counts:
        threshold = ranked[min(int((1 - share) * len(ranked)), len(ranked) - 1)]
        found = [_rounded(float((each >= threshold).sum()), len(each), low, step) for each, low in zip(relative, least)]
        return equalised(coupling, found)

    return _settled(coupling, cost, target, counts, step)


def equalised(coupling: Coupling, counts: Counts) -> Counts:
    """Tied groups keep their mean number."""
    for tie in coupling.ties:
        mean = round(sum(counts[at] for at in tie) / len(tie))
        for at in tie:
            counts[at] = max(1, min(mean, len(coupling.groups[at])))
    return counts


def _rounded(wanted: float, size: int, least: int, step: int) -> int:
    """The nearest allowed count: a multiple of `step` (or everything), at least `least`."""
    if step > 1:
        wanted = round(wanted / step) * step
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
        raised = list(found)
        for at in variable:
            raised[at] = min(found[at] + step, len(coupling.groups[at]))
        if cost(raised) <= target:
            found = raised
    return found


def variables(coupling: Coupling) -> list[list[int]]:
    """Groups that move together: ties, and every other group on its own."""
    tied = {at for tie in coupling.ties for at in tie}
    return [*coupling.ties, *[[at] for at in range(len(coupling.groups)) if at not in tied]]


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
    together = variables(coupling)
    counts = full(coupling)
    reach(coupling, cost, list(least), target)
    now = cost(counts)
    while now > target:
        best_ratio, chosen, chosen_cost = float("inf"), counts, now
        for variable in together:
            first = variable[0]
            for width in _steps(len(coupling.groups[first]), counts[first], least[first], step):
                trial = list(counts)
                for at in variable:
                    trial[at] = width
                price = cost(trial)
                harm = sum(float(damages[at][width] - damages[at][counts[at]]) for at in variable)
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
