"""How many units each group keeps, so that the cost stays within a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from prunus.errors import BadInput
from prunus.structure._labels import Array
from prunus.structure.costs import Cost
from prunus.structure.groups import Coupling

Counts = list[int]


def best(scores: Array, count: int) -> Array:
    """True for the `count` highest scores, ties by position."""
    mask = np.zeros(len(scores), dtype=bool)
    mask[np.argsort(-scores, kind="stable")[:count]] = True
    return mask


def choice(coupling: Coupling, scores: Sequence[Array], counts: Counts) -> Array:
    """Which classes stay when group g keeps its `counts[g]` best units."""
    return coupling.kept({at: best(scores[at], count) for at, count in enumerate(counts)})


def uniform(coupling: Coupling, scores: Sequence[Array], cost: Cost, target: float, least: Counts, step: int) -> Counts:
    """Every group keeps the same share of its units."""

    def counts(share: float) -> Counts:
        return [_rounded(share * len(g), len(g), low, step) for g, low in zip(coupling.groups, least)]

    return _settled(coupling, scores, cost, target, counts, step)


def overall(coupling: Coupling, scores: Sequence[Array], cost: Cost, target: float, least: Counts, step: int) -> Counts:
    """One threshold for all groups, on scores relative to their group's mean."""
    relative = [each / max(float(each.mean()), 1e-300) for each in scores]
    ranked = np.sort(np.concatenate(relative))

    def counts(share: float) -> Counts:
        threshold = ranked[min(int((1 - share) * len(ranked)), len(ranked) - 1)]
        found = [_rounded(float((each >= threshold).sum()), len(each), low, step) for each, low in zip(relative, least)]
        return equalised(coupling, found)

    return _settled(coupling, scores, cost, target, counts, step)


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
    scores: Sequence[Array],
    cost: Cost,
    target: float,
    counts: Callable[[float], Counts],
    step: int,
) -> Counts:
    """The largest share whose cost is within the target, then single steps back up while they fit."""
    low, high = 0.0, 1.0
    reach(coupling, scores, cost, counts(low), target)
    for _ in range(40):
        middle = (low + high) / 2
        if cost(choice(coupling, scores, counts(middle))) <= target:
            low = middle
        else:
            high = middle
    found = counts(low)
    tied = {at for tie in coupling.ties for at in tie}
    more = counts(min(1.0, low + 0.05))
    for at in sorted(range(len(found)), key=lambda at: found[at] - more[at]):
        if at in tied or found[at] >= min(more[at], len(coupling.groups[at])):
            continue
        raised = [*found[:at], min(found[at] + step, len(coupling.groups[at])), *found[at + 1 :]]
        if cost(choice(coupling, scores, raised)) <= target:
            found = raised
    return found


def reach(coupling: Coupling, scores: Sequence[Array], cost: Cost, counts: Counts, target: float) -> None:
    """Refuse a target that even the smallest allowed widths miss."""
    smallest = cost(choice(coupling, scores, counts))
    if smallest > target:
        whole = cost(np.ones(coupling.number, dtype=bool))
        blocked = "; ".join(f"{each.name} ({each.reason})" for each in coupling.fixed[:3])
        more = f" and {len(coupling.fixed) - 3} more" if len(coupling.fixed) > 3 else ""
        raise BadInput(
            f"The model cannot be brought to {target / whole:.1%}: with one unit of every group left it would be at "
            f"{smallest / whole:.1%}. Fixed are: {blocked or 'nothing'}{more}. "
            "Ask for a larger fraction, exclude less, or name the embeddings that may leave."
        )


ALLOCATIONS = {"uniform": uniform, "global": overall}
